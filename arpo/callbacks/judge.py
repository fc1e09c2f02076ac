"""An outcome judge: a model that looks at the end of an episode, and how often it says what the grader says."""

import asyncio
import logging
import random
import re
import time
from collections.abc import Sequence

import lightning as L
from typing_extensions import override

from arpo.agent.prompt import Prompt
from arpo.algorithms.rewards import is_success
from arpo.bounds import AtLeastOne, checked
from arpo.errors import EngineError
from arpo.inference.engine import GenerateRequest, Sampling
from arpo.rollout.episode import Meter
from arpo.rollout.hooks import RolloutCallback, runtime_of
from arpo.rollout.runtime import RolloutRuntime
from arpo.rollout.sampler import derive_seed
from arpo.types import RolloutBatch, Trajectory

log = logging.getLogger(__name__)

VERDICT = re.compile(r"\bstatus\W*:\W*(success|failure)\b", re.IGNORECASE)


@checked
class OutcomeJudge(RolloutCallback):
    """Log of how far a judgement by screenshots can be trusted: `judge/agreement`, `judge/precision`, `judge/recall`.

    The run's own engine is shown the instruction and the last screenshots of some episodes of each batch, and is asked
    whether the task was done, as the VLM evaluators of DigiRL (arXiv 2406.11896) and UI-TARS-2 (arXiv 2509.02544) are.
    Every task has a grader, whose verdict is the reward; what the judge says is compared with it and changes nothing.
    It stands before replay injection in the list of callbacks, so that it sees what the policy did.

    Args:
        prompt: The question, whose screenshot stands for all that are shown.
        episodes: Of each batch, drawn at random; all where there are fewer.
        screenshots: The last ones of an episode that are shown, or as many as the engine and the context take.
        max_tokens: Of an answer.
    """

    def __init__(
        self, prompt: Prompt, *, episodes: AtLeastOne = 8, screenshots: AtLeastOne = 5, max_tokens: AtLeastOne = 512
    ) -> None:
        self.prompt = prompt
        self.episodes = episodes
        self.screenshots = screenshots
        self.max_tokens = max_tokens

    @override
    def on_rollout_end(self, trainer: L.Trainer, module: L.LightningModule, batch: RolloutBatch) -> None:
        started, runtime = time.monotonic(), runtime_of(trainer)
        collected = [trajectory for group in batch.groups for trajectory in group.trajectories]
        chance = random.Random(derive_seed(runtime.settings.seed, "judge", batch.iteration))
        chosen = chance.sample(collected, min(self.episodes, len(collected)))
        said = runtime.run(self._verdicts(runtime, chosen))
        threshold = runtime.settings.success_threshold
        metrics = agreement(said, [is_success(trajectory, threshold=threshold) for trajectory in chosen])
        metrics["time/judge"] = time.monotonic() - started
        module.log_dict(metrics, on_step=False, on_epoch=True, batch_size=1, rank_zero_only=True)

    async def _verdicts(self, runtime: RolloutRuntime, trajectories: Sequence[Trajectory]) -> list[bool | None]:
        """Return the engine's verdict on each trajectory, asked side by side."""
        meter = Meter("judge", activity=runtime.runner.activity)
        return await asyncio.gather(*(self._verdict(runtime, meter, trajectory) for trajectory in trajectories))

    async def _verdict(self, runtime: RolloutRuntime, meter: Meter, trajectory: Trajectory) -> bool | None:
        """Return whether the engine says that a trajectory succeeded; None where it gives no verdict."""
        try:
            response = await meter.of_engine(runtime.engine.generate(self.question(runtime, trajectory)))
        except EngineError as error:
            log.warning("the judge gives no verdict on episode %s: %s", trajectory.id, error)
            return None
        return verdict_of(runtime.chat.decode(response.token_ids))

    def question(self, runtime: RolloutRuntime, trajectory: Trajectory) -> GenerateRequest:
        """Return the request that asks for a verdict: greedy, with as many of the last screenshots as can be shown."""
        settings, chat = runtime.settings, runtime.chat
        shown = [(step.screenshot, (step.width, step.height)) for step in trajectory.steps]
        if trajectory.last_screenshot:  # of a screen as large as the one before
            shown.append((trajectory.last_screenshot, shown[-1][1]))
        # An engine takes as many images as a response of the run may see.
        shown = shown[-min(self.screenshots, settings.image_window or settings.max_steps) :]
        *before, last = self.prompt.messages(trajectory.instruction)  # the one screenshot of the last stands for all
        while True:
            content = [*last["content"][:-1], *[{"type": "image"}] * len(shown)]
            ids = chat.first_prompt([*before, last | {"content": content}])
            length = chat.context_length(ids, [size for _, size in shown]) + self.max_tokens
            if length <= settings.max_context or len(shown) == 1:
                break
            del shown[0]
        images = tuple(trajectory.screenshots[key] for key, _ in shown)
        return GenerateRequest(ids, images, Sampling(0.0, self.max_tokens), f"judge/{trajectory.id}")


def verdict_of(answer: str) -> bool | None:
    """Return the verdict of the last status of an answer; None where there is none."""
    found = VERDICT.findall(answer)
    return found[-1].lower() == "success" if found else None


def agreement(said: Sequence[bool | None], graded: Sequence[bool]) -> dict[str, float]:
    """Return the agreement of a judge's verdicts with those of graders, by metric; one without episodes is left out.

    `judge/answered` is the share of episodes with a verdict. Of those, `judge/agreement` is the share in which both
    say the same; precision and recall are of real successes.
    """
    pairs = [(mine, real) for mine, real in zip(said, graded, strict=True) if mine is not None]
    shares = {
        "answered": [mine is not None for mine in said],
        "agreement": [mine == real for mine, real in pairs],
        "precision": [real for mine, real in pairs if mine],
        "recall": [mine for mine, real in pairs if real],
    }
    return {f"judge/{name}": sum(kind) / len(kind) for name, kind in shares.items() if kind}
