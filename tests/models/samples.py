"""Screenshots and trajectories for the tests of this folder."""

import hashlib
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from arpo.agent.prompt import Prompt
from arpo.models.policy import LoraSettings, Policy
from arpo.models.tokenization import ChatTokenizer, TokenizedTrajectory, tokenize
from arpo.types import Outcome, Step, Trajectory
from tests.exchanges import in_turn

RESPONSES = (
    "Action: click(start_box='(10,20)')",
    "Thought: I click the button.\nAction: click(start_box='(7,8)')",
    "Action: type(content='hello')",
    "Action: finished()",
)


def screenshot(seed: int, width: int = 112, height: int = 140) -> tuple[str, bytes]:
    """Return the SHA-256 and the PNG of random rectangles on white."""
    rng = np.random.default_rng(seed)
    pixels = np.full((height, width, 3), 255, np.uint8)
    for _ in range(5):
        top, left = rng.integers(0, height), rng.integers(0, width)
        pixels[top : top + height // 4, left : left + width // 3] = rng.integers(0, 256, 3)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return hashlib.sha256(buffer.getvalue()).hexdigest(), buffer.getvalue()


def trajectory(
    chat: ChatTokenizer, seeds: tuple[int, ...], *, size: tuple[int, int] = (112, 140), cut: bool = False
) -> Trajectory:
    """Return an episode that shows the screenshots of these seeds; its first response is cut short if wanted."""
    shots = [screenshot(seed, *size) for seed in seeds]
    prompt = chat.first_prompt(Prompt.compact().messages(f"Click on button {seeds[0]}."))
    steps, turns = [], []
    for number, (key, _) in enumerate(shots):
        response = chat.encode_response(RESPONSES[(seeds[number] + number) % len(RESPONSES)])
        if cut and number == 0:
            response = response[:-1]
        logprobs = tuple(-0.5 - 0.01 * index for index in range(len(response)))
        steps.append(Step(key, *size, chat.decode(response)))
        turns.append((prompt, response, logprobs))
        prompt = chat.next_prompt(response)
    name = f"0/0/{seeds[0]}"
    ended = {"outcome": Outcome.FINISHED, "task_reward": 1.0, "format_reward": 0.0, "screenshots": dict(shots)}
    return Trajectory(name, "t", "d", "", 0, **in_turn(steps, *turns), **ended)


def prepare(chat: ChatTokenizer, *episodes: Trajectory) -> tuple[list[TokenizedTrajectory], dict[str, bytes]]:
    """Return the sequences of some episodes, and all screenshots that they show."""
    tokens = [tokens for episode in episodes for tokens in tokenize(episode, chat)]
    return tokens, {key: png for episode in episodes for key, png in episode.screenshots.items()}


def with_random_lora(path: Path, seed: int = 0, dtype: str = "float32") -> Policy:
    """Return a policy of rank 4 whose update is large enough to see."""
    policy = Policy(path, dtype=dtype, train_vision=False, lora=LoraSettings(rank=4, alpha=8))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if ".lora_" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return policy


def assert_same(ours: torch.Tensor, expected: torch.Tensor) -> None:
    """Up to what the order of sums costs, beside the largest number."""
    scale = expected.abs().max()
    torch.testing.assert_close(ours / scale, expected / scale)
