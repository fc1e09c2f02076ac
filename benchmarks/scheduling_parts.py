"""The parts that `benchmarks/scheduling.py` puts in the place of desktops, engine and update: they take their time."""

import asyncio
import itertools
import math
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from arpo.agent.actions import Action, Click, Finished
from arpo.agent.ui_tars import render_response
from arpo.envs.protocol import StepResult
from arpo.inference.engine import GenerateRequest, Response
from arpo.models.policy import Policy
from arpo.models.tokenization import ChatTokenizer
from arpo.modules.base import PolicyModule
from arpo.rollout.hooks import RolloutCallback
from arpo.types import Observation, RolloutBatch, Task

MAX_STEPS = 30


@dataclass(frozen=True, slots=True)
class Law:
    """A log-normal law of seconds."""

    median: float
    sigma: float = 0.0

    def draw(self, rng: random.Random) -> float:
        return self.median * math.exp(self.sigma * rng.gauss(0.0, 1.0)) if self.median else 0.0


@dataclass(frozen=True, slots=True)
class Laws:
    """The seconds that everything takes, and the steps of an episode."""

    reset: Law = Law(25.0, 0.3)
    step: Law = Law(3.0, 0.6)
    evaluate: Law = Law(0.0)
    response: Law = Law(4.0, 0.5)
    steps: Law = Law(7.0, 0.7)
    """Rounded, at least 1 and at most 30."""
    sync: float = 0.0
    slots: int = 0
    """Requests that the engine answers at the same time, and more wait; 0: as many as there are environments."""

    def length(self, episode: str) -> int:
        """The steps of an episode: the same under every schedule."""
        return min(MAX_STEPS, max(1, round(self.steps.draw(random.Random(f"steps {episode}")))))


class Desktop:
    """A `DesktopEnv` that takes its time and shows one picture."""

    numbers = itertools.count()

    def __init__(self, laws: Laws, speed: float, screen: Observation) -> None:
        self._laws, self._speed, self._screen = laws, speed, screen
        self._rng = random.Random(f"desktop {next(self.numbers)}")

    def reset(self, task: Task) -> Observation:
        self._take(self._laws.reset)
        return self._screen

    def step(self, action: Action) -> StepResult:
        self._take(self._laws.step)
        return StepResult(self._screen)

    def evaluate(self) -> float:
        self._take(self._laws.evaluate)
        return float(self._rng.random() < 0.5)

    def close(self) -> None:
        """Hold nothing."""

    def _take(self, law: Law) -> None:
        time.sleep(law.draw(self._rng) / self._speed)


class Engine:
    """An `InferenceEngine` that takes its time: `laws.slots` requests at once, and it goes on through a sync."""

    def __init__(self, chat: ChatTokenizer, laws: Laws, speed: float) -> None:
        self._laws, self._speed = laws, speed
        self._click = chat.encode_response(render_response(Click(56, 42)))
        self._finished = chat.encode_response(render_response(Finished()))
        self._slots = asyncio.Semaphore(laws.slots)
        self._version = 0
        self._in_flight, self._busy_s, self._since = 0, 0.0, time.monotonic()

    async def generate(self, request: GenerateRequest) -> Response:
        episode, step = request.conversation, len(request.images)
        async with self._slots:
            version = self._version
            self._count(+1)
            await asyncio.sleep(self._laws.response.draw(random.Random(f"{episode} {step}")) / self._speed)
            self._count(-1)
        ids = self._click if step < self._laws.length(episode) else self._finished
        return Response(ids, (-0.5,) * len(ids), "stop", version)

    def _count(self, change: int) -> None:
        now = time.monotonic()
        self._busy_s += self._in_flight * (now - self._since)
        self._in_flight, self._since = self._in_flight + change, now

    async def update_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        await asyncio.sleep(self._laws.sync / self._speed)
        self._version = version

    async def weights(self):
        return {}

    async def sleep(self) -> None:
        """Do nothing: there is no device."""

    @property
    def replicas(self) -> Sequence["Engine"]:
        return (self,)

    @property
    def oldest_version(self) -> int:
        return self._version

    def counters(self) -> dict[str, float]:
        self._count(0)
        return {"engine/busy_s": self._busy_s}

    async def close(self) -> None:
        """Hold nothing."""


class Trainer(PolicyModule):
    """A module whose update takes its time."""

    def __init__(self, update_s: float) -> None:
        super().__init__(_no_policy, partial(torch.optim.SGD, lr=0.1), micro_batch_tokens=1, max_grad_norm=1.0)
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self._update_s = update_s

    def configure_model(self) -> None:
        """Load no policy: there is nothing to learn."""

    def training_step(self, batch: RolloutBatch, batch_idx: int) -> None:
        for callback in self.trainer.callbacks:
            if isinstance(callback, RolloutCallback):
                callback.on_rollout_end(self.trainer, self, batch)
        time.sleep(self._update_s)
        self.optimizers().step()
        self.policy_version += 1

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.make_optimizer(self.parameters())


def _no_policy() -> Policy:
    raise AssertionError("a fake trainer has no policy")
