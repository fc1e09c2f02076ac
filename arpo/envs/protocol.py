"""The environment protocol: what a desktop must be able to do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from arpo.agent.actions import Action
from arpo.types import Observation, Task


@dataclass(frozen=True, slots=True)
class Patch:
    """The answer of an expert, in the place of an action that was not performed."""

    action: Action
    """In screen pixels."""
    thought: str = ""
    """Its thought, if there is one."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The consequences of one action."""

    observation: Observation
    terminated: bool = False
    """Whether the task's own end was reached: the environment accepts no further action then."""
    truncated: bool = False
    """Whether a limit outside the task has cut the episode."""
    reward: float = 0.0
    """What the action itself is worth, beside the verdict of `evaluate`; for methods that judge single steps."""
    patch: Patch | None = None
    """An expert's answer, where the action was not performed: later responses read it in the place of the policy's.
    Then the environment alone ends the episode, and an action such as `Finished` does not. None: it was performed."""


class DesktopEnv(Protocol):
    """A desktop with a task in it. Synchronous; one episode at a time; lives in a worker process.

    Every method raises `EnvError` when the desktop, not the agent, failed. After an `EnvError` the environment
    may be in any state: the pool closes it and builds a new one. After a `DesktopDestroyedError` a reset repairs it.
    One from `reset` itself is the desktop's failure, for no agent has acted yet.
    """

    def reset(self, task: Task) -> Observation:
        """Prepare the task and return the first observation. Resetting a running episode is allowed."""

    def step(self, action: Action) -> StepResult:
        """Perform one action, in screen pixels, and return what follows.

        `Wait`, `Finished`, `CallUser` and `Fail` are valid actions; the episode, not the environment, ends on the
        last three; the environment gets them because a checker may ask for the last action. A `Call` of a function
        that is not there, or whose arguments do not fit, is the agent's mistake: it does nothing, and is no error.

        Raises:
            DesktopDestroyedError: If the agent has destroyed it.
        """

    def evaluate(self) -> float:
        """Return the task reward in [0, 1]; called once, after the last step.

        Raises:
            BlamedError: If it cannot be judged, and the agent can have caused that, such as by destroying the desktop.
            EnvError: If it cannot be judged, and no agent can cause that. It is not a failed task.
        """

    def close(self) -> None:
        """Free every resource; idempotent, and never raises."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The end of a program on a desktop."""

    output: str
    error: str = ""
    returncode: int = 0


class KnownDesktop:
    """The facts of a class of desktops that a run is checked against before it starts; another desktop is trusted."""

    example_tasks: ClassVar[str]
    """The choice of `tasks=` to recommend."""
    steps_are_rewarded: ClassVar[bool] = False
    """Whether a step has a reward of its own, which some methods learn from."""


@runtime_checkable
class SolvableEnv(Protocol):
    """An environment that can solve its current task: demonstrations and tests live on it."""

    def solve(self) -> Iterator[Action]:
        """Yield, closed loop, the next right action; the caller performs each before it asks for the next."""


@runtime_checkable
class ExecutingEnv(Protocol):
    """An environment that runs programs for its agent, as OSWorld's server does: foreign agents live on it."""

    def execute(self, command: str | Sequence[str], *, shell: bool = False) -> Execution:
        """Run a program as the user of the desktop; one that does not end in time has failed, which is no error."""

    def look(self) -> Observation:
        """Return the screen as it is now."""


@runtime_checkable
class BrowserEnv(Protocol):
    """An environment that gives an episode a browser of its own: foreign agents that speak DevTools live on it."""

    def devtools(self) -> str:
        """Return the address of DevTools, with its key; once, after the reset, and before any step.

        From then on an agent can break what it is judged by: `evaluate` blames it for what cannot be judged.
        """


@runtime_checkable
class InterruptibleEnv(Protocol):
    """An environment that can end what a call of it hangs in, such as a browser, which would otherwise run on."""

    def interrupt(self) -> None:
        """Let the call that runs fail, from another thread; only `close` follows."""


@runtime_checkable
class DistractingEnv(Protocol):
    """An environment that knows plausible wrong actions: imperfect demonstrations live on it."""

    def distractors(self) -> Sequence[Action]:
        """Return actions like the right ones that are wrong now."""
