"""Episodes of real length on two cores: fifteen screenshots of 1080p, windowed vision, and a policy 64 wide."""

import io
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw
from torch import Tensor
from transformers import AutoProcessor
from transformers.image_utils import (
    IMAGENET_STANDARD_MEAN,
    IMAGENET_STANDARD_STD,
    OPENAI_CLIP_MEAN,
    OPENAI_CLIP_STD,
)

from arpo.agent.actions import Action, Scroll
from arpo.envs.protocol import StepResult
from arpo.inference.engine import GenerateRequest, InferenceEngine, Response
from arpo.inference.vllm import VllmEngine
from arpo.models.collate import collate
from arpo.models.families import qwen2_5_vl, qwen3_vl
from arpo.models.policy import LoraSettings, Policy
from arpo.models.tiny import VISION_SPREAD
from arpo.models.tokenization import ChatTokenizer, tokenize
from arpo.rollout.settings import RolloutSettings
from arpo.types import Observation, Outcome, Step, Task, Trajectory, screenshot_key
from tests.exchanges import in_turn
from tests.inference.talk import questions, trajectory_of
from tests.integration.parts import Recorder, train

WIDTH, HEIGHT = 1920, 1080
MAX_PIXELS = 2_116_800
"""Of UI-TARS: 2,691 tokens a screenshot of 1080p."""
CONTEXT = 65_536
WORDS = ("file", "edit", "view", "report", "budget", "total", "save", "cell", "date", "open", "window", "mail")
DIRECTIONS = ("up", "down", "left", "right")
TOKENS = 40
"""Of a response; the longest has some twenty."""
RATE = 7e-5
"""Moves log-probabilities of this policy by twenty times the noise in an update."""
TOLERANCE = 0.01
"""Ten times this policy's noise in bfloat16; a 7B has more noise, and a run more tolerance."""
SHARPER = 2.0
"""The factor of all logits once it has learned: a word in a hundred would be wrong, and end the episode."""


def response(generator: random.Random) -> str:
    """A thought of words that cannot be foreseen, and a direction."""
    thought = " ".join(generator.choices(WORDS, k=generator.randint(1, 8)))
    direction = generator.choice(DIRECTIONS)
    return f"Thought: {thought}\nAction: scroll(start_box='(960,540)', direction='{direction}')"


MAKES: dict[str, Callable[..., Path]] = {
    "qwen2_5_vl": partial(
        qwen2_5_vl.make_tiny, vision={"fullatt_block_indexes": [1]}
    ),  # the other layer has windows, as most of the 7B's
    "qwen3_vl": qwen3_vl.make_tiny,
}
PIXELS = {
    "qwen2_5_vl": (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD),
    "qwen3_vl": (IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD),
}
"""Mean and deviation by which published checkpoints normalise colours."""


def write_talker(directory: Path, family: str = "qwen2_5_vl") -> Path:
    """Write a policy that has learned to respond like that, whatever it sees: a random one is never understood."""
    generator = random.Random(0)
    path = MAKES[family](
        directory / "random",
        corpus=[response(generator) for _ in range(200)],
        hidden=64,
        words=3000,
        max_pixels=MAX_PIXELS,
        context=CONTEXT,
    )
    policy = look_as_published(path, family)
    optimizer = torch.optim.AdamW([each for each in policy.parameters() if each.requires_grad], lr=3e-3)

    def learn_from(logprobs: Tensor) -> None:
        logprobs.mean().neg().backward()
        optimizer.step()
        optimizer.zero_grad()

    requests = questions(policy.chat, 1)
    for _ in range(100):
        learn_from(answer_logprobs(policy, requests, [written(policy, generator) for _ in requests]))
    screens = {screenshot_key(png): png for png in (screen(0, step) for step in range(2))}
    pictures = [policy.images.packed(key, png) for key, png in screens.items()]
    features = dict(zip(screens, policy.visual_tokens(pictures), strict=True))
    for _ in range(90):  # among thousands of visual tokens its own last word is hard to find: on screens of the run
        conversation = record(policy, screens, [written(policy, generator) for _ in screens])
        learn_from(sampled_logprobs(policy, [conversation], features))
    with torch.no_grad():
        policy.model.model.language_model.norm.weight.mul_(SHARPER)
    policy.save(directory / "talker")
    return directory / "talker"


def look_as_published(path: Path, family: str) -> Policy:
    """Load a tiny policy with the pixels and the first vision weights of a published one in the place of its own."""
    processor = AutoProcessor.from_pretrained(path)
    processor.image_processor.image_mean, processor.image_processor.image_std = PIXELS[family]
    processor.save_pretrained(path)
    policy = Policy(path, train_vision=False)
    spread = policy.model.config.get_text_config().initializer_range
    with torch.no_grad():
        for weights in policy.model.model.visual.parameters():
            if weights.ndim > 1:  # biases begin as nought, and norms as one
                weights.mul_(spread / VISION_SPREAD)
    return policy


def written(policy: Policy, generator: random.Random) -> tuple[int, ...]:
    return policy.chat.encode_response(response(generator))


def record(policy: Policy, screens: Mapping[str, bytes], responses: Sequence[tuple[int, ...]]) -> Trajectory:
    """A conversation of a screenshot a turn."""
    asked = [{"type": "text", "text": "Scroll down."}, {"type": "image"}]
    prompts = [
        policy.chat.first_prompt([{"role": "user", "content": asked}]),
        *map(policy.chat.next_prompt, responses),
    ]
    turns = [(prompt, ids, (0.0,) * len(ids)) for prompt, ids in zip(prompts, responses, strict=False)]
    record = in_turn([Step(key, WIDTH, HEIGHT, "") for key, _ in zip(screens, turns, strict=False)], *turns)
    ended = {"outcome": Outcome.MAX_STEPS, "task_reward": 0.0, "format_reward": 0.0, "screenshots": dict(screens)}
    return Trajectory("written", "slides", "", "", 0, **record, **ended)


def answer_logprobs(policy: Policy, requests: Sequence[GenerateRequest], answers: Sequence[tuple[int, ...]]) -> Tensor:
    """The log-probabilities of all tokens of the answers to some questions."""
    pairs = zip(requests, answers, strict=True)
    return sampled_logprobs(
        policy, [trajectory_of(ask, Response(ids, (0.0,) * len(ids), "stop", 0)) for ask, ids in pairs]
    )


def sampled_logprobs(
    policy: Policy, trajectories: Sequence[Trajectory], features: Mapping[str, Tensor] | None = None
) -> Tensor:
    tokens = [tokens for trajectory in trajectories for tokens in tokenize(trajectory, policy.chat)]
    output = policy.action_logprobs(collate(tokens, trajectories[0].screenshots, policy.images, features))
    return output.logprobs[output.mask]


@cache
def screen(task: int, step: int) -> bytes:
    """A desktop with windows, as PNG; the same for every member of a group."""
    generator = random.Random(f"{task}/{step}")
    image = Image.new("RGB", (WIDTH, HEIGHT), (20, 60, 90))
    draw = ImageDraw.Draw(image)
    for _ in range(4):
        left, top = generator.randrange(0, 1200), generator.randrange(0, 700)
        draw.rectangle((left, top, left + 700, top + 360), fill=generator.choice(("white", "silver", "navy")))
        for line in range(top + 10, top + 350, 22):
            draw.text((left + 10, line), " ".join(generator.choices(WORDS, k=12)), fill="black")
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


class Slides:
    """A desktop that shows another screen after every action; the task is to scroll down or right, mostly."""

    def reset(self, task: Task) -> Observation:
        self._task, self._steps, self._right = int(task.config["number"]), 0, 0
        return self._observe()

    def step(self, action: Action) -> StepResult:
        self._steps += 1
        self._right += isinstance(action, Scroll) and action.direction in ("down", "right")
        return StepResult(self._observe())

    def evaluate(self) -> float:
        return float(2 * self._right > self._steps)

    def close(self) -> None:
        """Nothing to free."""

    def _observe(self) -> Observation:
        return Observation(screen(self._task, self._steps), WIDTH, HEIGHT)


def slides(count: int) -> list[Task]:
    return [Task(f"slides/{number}", "Scroll down.", config={"number": number}) for number in range(count)]


class LongEngine(VllmEngine):
    """vLLM in bfloat16 with room for a whole conversation."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, dtype="bfloat16", max_model_len=CONTEXT, max_images=15, max_num_seqs=4, **options)


class OldEyes(LongEngine):
    """Serves what the old vision tower made of a picture: as an encoder cache that was kept."""

    def _load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        super()._load((name, tensor) for name, tensor in tensors if "visual" not in name)


class OneBehind(LongEngine):
    """Serves the weights of the update before, with the number of the new ones."""

    _held: list[tuple[str, Tensor]] | None = None

    def _load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        new = [(name, tensor.clone()) for name, tensor in tensors]
        super()._load(self._held or new)
        self._held = new


def learn(
    model: Path,
    directory: Path,
    engine: type[LongEngine],
    *,
    screenshots: int,
    iterations: int,
    group_size: int = 4,
    rate: float = RATE,
    lora: LoraSettings | None = None,
    recorder: Recorder | None = None,
) -> Recorder:
    """Train in bfloat16 on episodes of so many screenshots: rollout, update, sync."""

    def make_engine(chat: ChatTokenizer) -> InferenceEngine:
        return engine(model, lora_rank=None if lora is None else lora.rank)

    return train(
        model,
        directory,
        make_engine,
        replay=False,
        iterations=iterations,
        tasks=slides(1),
        make_env=Slides,
        tolerance=TOLERANCE,
        learning_rate=rate,
        policy=partial(Policy, model, dtype="bfloat16", train_vision=lora is None, lora=lora),
        settings=RolloutSettings(group_size=group_size, max_steps=screenshots, max_tokens=TOKENS, max_context=CONTEXT),
        callbacks=[recorder] if recorder else [],
    )
