"""The near side of one environment: its calls, their deadlines, and the error that broke it."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from arpo.agent.actions import Action
from arpo.envs.pool.worker import Method, Worker
from arpo.envs.protocol import Execution, StepResult
from arpo.errors import ArpoError, BlamedError, EnvError
from arpo.types import Observation, Task

TIMED_CALLS = ("reset", "step", "evaluate")

Counters = defaultdict[str, float]
"""Counts and seconds since a pool was made, by metric name; every value only grows."""


def new_counters() -> Counters:
    """Return the counters of a pool at 0, so that a metric is there before its first event."""
    names = [f"fault_{kind}" for kind in (*TIMED_CALLS, "timeout", "crash", "screenshot", "guest")]
    names += [f"blamed_{kind}" for kind in ("destroyed", "result", "excess")]
    names += [f"{call}_calls" for call in TIMED_CALLS]
    names += ["episodes", "restarts", "restart_failures", "recycled", "slow", "lost"]
    names += [f"{activity}_s" for activity in ("busy", "restart", *TIMED_CALLS)]
    return defaultdict(float, {f"env/{name}": 0.0 for name in names})


class LeasedEnv:
    """An environment of the pool for the time of one episode. Every call has a deadline and may raise `EnvError`.

    Attributes:
        name: The environment's number and the size of its pool.
        fault: The error that broke the environment; every later call raises it again.
        interrupted: Whether a call was cancelled, and may still be running.
        worker_died: Whether the worker broke, and every environment in it with this one.
        part: The part of a mixture that it is of, whose name its own tasks do not have; empty without a mixture.
    """

    def __init__(
        self, name: str, worker: Worker, index: int, deadlines: Mapping[Method, float], counters: Counters
    ) -> None:
        self.name = name
        self.fault: EnvError | None = None
        self.interrupted = False
        self.worker_died = False
        self.part = ""
        self.steps_s: list[float] = []
        self._worker = worker
        self._index = index
        self._deadlines = deadlines
        self._counters = counters

    @property
    def hangs(self) -> bool:
        """Whether a call has missed its deadline."""
        return self.fault is not None and self.fault.kind == "timeout"

    async def reset(self, task: Task) -> Observation:
        """Prepare a task and return the first observation."""
        if self.part:
            own = {name: getattr(task, name).removeprefix(f"{self.part}/") for name in ("id", "domain")}
            task = replace(task, **own)
        return cast(Observation, await self.call("reset", task))

    async def step(self, action: Action) -> StepResult:
        """Perform one action, in screen pixels."""
        return cast(StepResult, await self.call("step", action))

    async def evaluate(self) -> float:
        """Return the task reward in [0, 1]."""
        return cast(float, await self.call("evaluate"))

    async def devtools(self) -> str:
        """Start a browser of the episode's own and return the address of its DevTools."""
        return cast(str, await self.call("devtools"))

    async def execute(self, command: str | Sequence[str], *, shell: bool) -> Execution | None:
        """Run a program on the desktop; None where the environment runs none."""
        return cast(Execution | None, await self.call("execute", command, shell))

    async def look(self) -> Observation | None:
        """Return the screen as it is now; None where the environment shows that after actions alone."""
        return cast(Observation | None, await self.call("look"))

    async def next_solution(self) -> Action | None:
        """Return the next action of the scripted solution, None when there is no more."""
        return cast(Action | None, await self.call("next_solution"))

    async def distractors(self) -> Sequence[Action]:
        """Return plausible wrong actions, none where the environment knows none."""
        return cast(Sequence[Action], await self.call("distractors"))

    async def call(self, method: Method, *arguments: object) -> object:
        """Call a method; an `EnvError` says that the environment failed, its worker died, or the deadline passed."""
        if self.fault is not None:
            raise EnvError(self.fault.kind, f"the environment has failed before: {self.fault}")
        self.interrupted = True  # until there is an answer: the call goes on when its caller is cancelled
        answer = await self._answer(method, *arguments)
        self.interrupted = False
        if isinstance(answer, EnvError):
            self.fault = answer
        if isinstance(answer, BlamedError):
            self._counters[f"env/blamed_{answer.kind}"] += 1
        if isinstance(answer, ArpoError):
            raise answer
        return answer

    async def _answer(self, method: Method, *arguments: object) -> object:
        """Return the answer of the worker, or the error that stands for it."""
        deadline, began = self._deadlines[method], time.monotonic()
        try:
            async with asyncio.timeout(deadline):
                return await self._worker.call(self._index, method, *arguments)
        except TimeoutError:
            return EnvError("timeout", f"{method} took longer than {deadline:g} s")
        except self._worker.failures as error:
            self.worker_died = True
            first_line = str(error).strip().partition("\n")[0]
            return EnvError("crash", f"the worker process failed: {type(error).__name__}: {first_line}")
        finally:
            seconds = time.monotonic() - began
            if method in TIMED_CALLS:
                self._counters[f"env/{method}_calls"] += 1
                self._counters[f"env/{method}_s"] += seconds
            if method == "step":
                self.steps_s.append(seconds)
