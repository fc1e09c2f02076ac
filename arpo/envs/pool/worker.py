"""The far side of the pool: environments in a worker process, each with a thread of its own.

Every worker process imports this module, so it stays light: no torch, no transformers, no Ray.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Literal, Protocol

from typing_extensions import override

from arpo.agent.actions import Action
from arpo.envs.protocol import (
    BrowserEnv,
    DesktopEnv,
    DistractingEnv,
    ExecutingEnv,
    Execution,
    InterruptibleEnv,
    SolvableEnv,
    StepResult,
)
from arpo.envs.screenshot import check_screenshot
from arpo.errors import ArpoError, BlamedError, ConfigError, EnvError, env_boundary
from arpo.host.threads import DaemonThread
from arpo.types import Observation, Task

log = logging.getLogger(__name__)

Method = Literal[
    "build",
    "reset",
    "devtools",
    "step",
    "evaluate",
    "execute",
    "look",
    "next_solution",
    "distractors",
    "close",
]

WORKER_VARIABLE = "ARPO_WORKER"
"""Marks the processes that the environments of one worker start, such as browsers."""


class Worker(Protocol):
    """A worker as the pool sees it: an `EnvWorker`, or a stand-in for one in another process."""

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """The exceptions by which a call says that the worker itself is dead."""

    def call(self, index: int, method: Method, *arguments: object) -> Awaitable[object]:
        """Run a method of one environment; an `ArpoError` is returned, not raised."""

    async def kill(self) -> None:
        """End the worker and what its environments started; idempotent."""


class Backend(Protocol):
    """A starter of workers: Ray actors, threads of this process, or a user's own."""

    async def open(self) -> None:
        """Prepare; called once before the first worker."""

    async def launch(self, make_env: Callable[[], DesktopEnv], count: int) -> Worker:
        """Start a worker with room for some environments; it builds none yet. It raises `EnvError` if it cannot."""

    async def close(self) -> None:
        """Free what `open` took; every worker was killed before."""


class EnvWorker:
    """The environments of one worker, in this process or, as a Ray actor, in one of its own.

    A `label` marks the processes that they start.
    """

    failures = ()

    def __init__(self, make_env: Callable[[], DesktopEnv], count: int, label: str | None = None) -> None:
        self._make_env = make_env
        self._envs = [HostedEnv(make_env) for _ in range(count)]
        if label is not None:
            os.environ[WORKER_VARIABLE] = label

    async def call(self, index: int, method: Method, *arguments: object) -> object:
        """Run a method of one environment in its thread, and return an `ArpoError` as a value, as processes take it.

        A build where a call still runs gets a new thread: what hangs in the old one costs its own environment only.
        """
        if method == "build" and self._envs[index].busy:
            self._envs[index].retire()
            self._envs[index] = HostedEnv(self._make_env)
        try:
            return await asyncio.wrap_future(self._envs[index].begin(method, *arguments))
        except ArpoError as error:
            return error

    async def kill(self) -> None:
        """Close every environment and end its thread; what hangs keeps its thread until the process ends."""
        for env in self._envs:
            env.retire()


class ThreadBackend(Backend):
    """Workers in this process, for laptops and tests: an environment that crashes takes the process with it."""

    @override
    async def launch(self, make_env: Callable[[], DesktopEnv], count: int) -> Worker:
        return EnvWorker(make_env, count)


@contextmanager
def _before_the_agent(what: str) -> Iterator[None]:
    """Turn whatever goes wrong into an `EnvError`: nothing of it is an agent's doing yet."""
    with env_boundary("reset", what):
        try:
            yield
        except BlamedError as error:
            raise EnvError("guest", f"{what}: {error}") from error


class HostedEnv:
    """An environment in a thread of its own, held to its contract: whatever it does wrong becomes an `EnvError`."""

    def __init__(self, make_env: Callable[[], DesktopEnv]) -> None:
        self._make_env = make_env
        self._thread = DaemonThread("env")
        self._last: Future[object] | None = None
        self._env: DesktopEnv | None = None
        self._solution: Iterator[Action] | None = None

    @property
    def busy(self) -> bool:
        """Whether a call has not ended."""
        return self._last is not None and not self._last.done()

    def begin(self, method: Method, *arguments: object) -> "Future[object]":
        """Call one of the methods below in the thread."""
        self._last = self._thread.submit(partial(getattr(self, method), *arguments))
        return self._last

    def retire(self) -> None:
        """Close the environment and end the thread, once the call that runs has ended, or can be made to end."""
        if self.busy and isinstance(self._env, InterruptibleEnv):
            self._env.interrupt()
        self._thread.submit(self.close)
        self._thread.stop()

    def build(self) -> None:
        """Build the environment anew."""
        self.close()
        with _before_the_agent("building the environment"):
            self._env = self._make_env()

    def reset(self, task: Task) -> Observation:
        """Reset the environment and check the screenshot."""
        self._solution = None
        with _before_the_agent(f"reset of task {task.id}"):
            observation = self._built().reset(task)
        check_screenshot(observation)
        return observation

    def step(self, action: Action) -> StepResult:
        """Perform an action and check the screenshot."""
        with env_boundary("step", f"step {action}"):
            result = self._built().step(action)
        check_screenshot(result.observation)
        return result

    def evaluate(self) -> float:
        """Evaluate the task and check that the reward is one."""
        with env_boundary("evaluate", "evaluate"):
            reward = float(self._built().evaluate())
        if not 0.0 <= reward <= 1.0:
            raise EnvError("evaluate", f"the task reward must be in [0, 1], the checker gave {reward}")
        return reward

    def devtools(self) -> str:
        """Start a browser of the episode's own and return the address of its DevTools."""
        env = self._built()
        if not isinstance(env, BrowserEnv):
            raise ConfigError(f"{type(env).__name__} has no browser: take env=miniwob or harness.devtools=false")
        with _before_the_agent("DevTools"):
            return env.devtools()

    def execute(self, command: str | Sequence[str], shell: bool) -> Execution | None:
        """Run a program on the desktop; None where the environment runs none."""
        env = self._built()
        if not isinstance(env, ExecutingEnv):
            return None
        with env_boundary("step", "execute"):
            return env.execute(command, shell=shell)

    def look(self) -> Observation | None:
        """Return the screen as it is now; None where the environment shows that after actions alone."""
        env = self._built()
        if not isinstance(env, ExecutingEnv):
            return None
        with env_boundary("step", "look"):
            observation = env.look()
        check_screenshot(observation)
        return observation

    def next_solution(self) -> Action | None:
        """Return the next action of the scripted solution, None when there is no more."""
        env = self._built()
        if not isinstance(env, SolvableEnv):
            raise ConfigError(f"{type(env).__name__} cannot solve its tasks; choose one that has solve()")
        with env_boundary("step", "solve"):
            if self._solution is None:
                self._solution = env.solve()
            return next(self._solution, None)

    def distractors(self) -> Sequence[Action]:
        """Return plausible wrong actions, none where the environment knows none."""
        env = self._built()
        if not isinstance(env, DistractingEnv):
            return ()
        with env_boundary("step", "distractors"):
            return tuple(env.distractors())

    def close(self) -> None:
        """Close the environment, if there is one."""
        env, self._env, self._solution = self._env, None, None
        if env is None:
            return
        try:
            with env_boundary("crash", "close"):
                env.close()
        except EnvError as error:  # it is thrown away whatever happens
            log.warning("%s", error)

    def _built(self) -> DesktopEnv:
        if self._env is None:
            raise EnvError("crash", "the environment is not built")
        return self._env
