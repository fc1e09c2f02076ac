"""The nouns of a rollout: frozen records without tensors, cheap to send, store and compare."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from itertools import chain
from typing import Any


def screenshot_key(png: bytes) -> str:
    """Return the name of a screenshot in every record: the SHA-256 of its PNG, in hexadecimal digits."""
    return hashlib.sha256(png).hexdigest()


@dataclass(frozen=True, slots=True)
class Task:
    """One goal in a desktop together with its checker."""

    id: str
    """Unique among the tasks of a run, for example `miniwob/click-test/3` or an OSWorld id."""
    instruction: str
    """The goal as text; empty when the environment says it on reset."""
    domain: str = ""
    """The application or the web page; tables group by it."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The environment's own description of the task; never read outside the environment."""
    max_steps: int | None = None
    """Step limit of this task, where it differs from the run's."""
    infeasible: bool = False
    """Whether the right answer is `Fail`, because nothing solves the task."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The agent's view before a step."""

    screenshot: bytes
    """PNG."""
    width: int
    """Screen pixels."""
    height: int
    """Screen pixels."""
    instruction: str = ""
    """The instruction, where the environment and not the task knows it; only read after reset."""


class Outcome(StrEnum):
    """The ending of an episode. Infrastructure failures are not here: such an episode has no trajectory."""

    FINISHED = auto()
    """The agent said that it is done."""
    GAVE_UP = auto()
    """The agent said that the task cannot be done, or called the user."""
    TERMINATED = auto()
    """The environment ended the episode."""
    PARSE_ERROR = auto()
    MAX_STEPS = auto()
    """Truncated: the step limit was reached."""
    CONTEXT_FULL = auto()
    """Truncated: the next prompt does not fit the context."""
    DESTROYED = auto()
    """The agent has destroyed its own desktop, for a task reward of 0."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture in a context, where one placeholder id stands for the whole of it."""

    key: str
    """Its `screenshot_key`; the bytes are in `Trajectory.screenshots` or on disk."""
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request to the engine and its answer, with the exact token ids that the engine saw and sampled."""

    parent: int | None
    """The number of the earlier exchange that it goes on from; None where `added_ids` are its whole context."""
    added_ids: tuple[int, ...]
    """Ids of the context behind those of the parent and what it said."""
    pictures: tuple[Picture, ...]
    """Those of the placeholders among `added_ids`, in their order."""
    response_ids: tuple[int, ...]
    """Sampled ids, verbatim; the last one is the end-of-turn id unless the response was cut."""
    sampler_logprobs: tuple[float, ...]
    """The engine's log-probability of each response id."""
    policy_version: int
    """The number of updates the weights that sampled this response had seen."""
    finish: str = "stop"
    """`stop` or `length`, as the engine says; empty in a record from before it was noted."""
    trained: bool = True
    """Whether an update may learn from it: not from what another model said, or an answer that never arrived."""
    delivered: int | None = None
    """The response ids that the agent was given; None: all. Those behind a stop are in no context, and not trained."""

    def __post_init__(self) -> None:
        ids, logprobs = len(self.response_ids), len(self.sampler_logprobs)
        if ids != logprobs:
            raise ValueError(f"{ids} response ids came with {logprobs} log-probabilities: each needs its own")
        if self.delivered is not None and not 0 <= self.delivered <= ids:
            raise ValueError(f"delivered must be between 0 and the {ids} response ids, got {self.delivered}")

    @property
    def said_ids(self) -> tuple[int, ...]:
        """The ids of the response that an exchange which goes on from here reads."""
        return self.response_ids[: self.delivered]

    @property
    def trained_ids(self) -> tuple[int, ...]:
        """The ids of the response that an update may learn from."""
        return self.said_ids if self.trained else ()


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was done on the desktop: the screen before it, the response, and the action."""

    screenshot: str
    """`screenshot_key` of the screen before the action; the bytes are in `Trajectory.screenshots` or on disk."""
    width: int
    height: int
    response: str
    action: str = ""
    """The parsed action in screen pixels, rendered; empty when the response did not parse."""
    parse_error: str = ""
    """Kind of the `ActionParseError`; empty when the response parsed."""
    reward: float = 0.0
    """The environment's reward of what it did, beside the checker's verdict; 0 unless the environment gives one."""
    patch: str = ""
    """The response that later ones read in the place of this one, as text: that of an expert, where the environment
    has put its action in the place of the policy's; empty where it has not."""
    exchange: int | None = None
    """The number of the exchange whose response it is; None where no engine was asked, as in a script."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The record of one episode: a list of what was done on the desktop, and beside it a tree of exchanges.

    A conversation is a path from a root to a leaf. What an agent says in one request and leaves out in the next, as an
    old screenshot, or has put in the place of a response, begins another branch or another root.
    """

    id: str
    """`<iteration>/<group>/<member>`, unique within a run; evaluation ids start with `eval-`."""
    task_id: str
    domain: str
    instruction: str
    seed: int
    steps: tuple[Step, ...]
    outcome: Outcome
    task_reward: float
    """The checker's verdict, in [0, 1]."""
    format_reward: float
    """0, or -1 when a response did not parse."""
    exchanges: tuple[Exchange, ...] = ()
    """In the order in which they were answered."""
    screenshots: Mapping[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    """PNG bytes by `screenshot_key`; empty in a record that only refers to the trajectory store."""
    last_screenshot: str = ""
    """`screenshot_key` of the screen after the last action, for people; empty where it was not taken."""
    duration_s: float = field(default=0.0, compare=False)
    """Wall-clock seconds of the episode, without what it waited for the engine's next version."""
    image_window: int | None = None
    """Screenshots that each response of our own loop saw, its own among them; None: all. It saw all texts in both."""
    sampling: str = ""
    """Fingerprint of the settings that it was sampled with; empty in a record from before there was one."""

    def __post_init__(self) -> None:
        for number, exchange in enumerate(self.exchanges):
            if exchange.parent is not None and not 0 <= exchange.parent < number:
                raise ValueError(
                    f"trajectory {self.id!r}: exchange {number} goes on from {exchange.parent}, which does not come "
                    "before it; record exchanges in the order in which they are answered"
                )
        for number, step in enumerate(self.steps):
            if step.exchange is not None and not 0 <= step.exchange < len(self.exchanges):
                raise ValueError(
                    f"trajectory {self.id!r}: step {number} is of exchange {step.exchange}, and there are "
                    f"{len(self.exchanges)}"
                )

    @property
    def policy_version(self) -> int:
        """The oldest policy version that answered in this trajectory; 0 where none did."""
        return min((exchange.policy_version for exchange in self.exchanges), default=0)

    @property
    def trained_lengths(self) -> list[int]:
        """The number of trained tokens of each exchange."""
        return [len(exchange.trained_ids) for exchange in self.exchanges]

    @property
    def action_tokens(self) -> int:
        """The number of sampled tokens that an update may learn from."""
        return sum(self.trained_lengths)

    @property
    def has_a_step_an_exchange(self) -> bool:
        """Whether each exchange is one step on the desktop, in the same order."""
        return [step.exchange for step in self.steps] == list(range(len(self.exchanges)))

    def path(self, number: int) -> list[int]:
        """Return the numbers of the exchanges from a root to this one."""
        found, at = [number], self.exchanges[number].parent
        while at is not None:
            found.append(at)
            at = self.exchanges[at].parent
        return found[::-1]

    def context(self, number: int) -> tuple[tuple[int, ...], tuple[Picture, ...]]:
        """Return the ids that an exchange answered, one placeholder for each picture, and the pictures."""
        *before, last = (self.exchanges[each] for each in self.path(number))
        ids = tuple(chain.from_iterable((*each.added_ids, *each.said_ids) for each in before)) + last.added_ids
        return ids, tuple(picture for each in (*before, last) for picture in each.pictures)

    def sequences(self) -> list[tuple[list[int], list[int]]]:
        """Return the training sequences: each as the exchanges along a path, and those of them that are trained in it.

        A path ends with the last response that is trained on its way; where paths share a beginning, the first of them
        trains it. So each trained response is trained once.
        """
        left = {number for number, length in enumerate(self.trained_lengths) if length}
        passed = {each for number in left for each in self.path(number)[:-1]}
        found = []
        for number in sorted(left - passed):
            path = self.path(number)
            found.append((path, [each for each in path if each in left]))
            left.difference_update(path)
        return found


@dataclass(frozen=True, slots=True)
class Group:
    """The trajectories of one task whose rewards are compared. The same task twice in a batch is two groups."""

    task: Task
    trajectories: tuple[Trajectory, ...]
    injected: tuple[int, ...] = ()
    """Positions in `trajectories` that came from the replay buffer."""


@dataclass(slots=True)
class RolloutBatch:
    """The input of one `training_step`; the one mutable record, as callbacks replace groups in `on_rollout_end`."""

    iteration: int
    policy_version: int
    groups: list[Group]
    metrics: dict[str, float] = field(default_factory=dict)
    """The collector's measurements while it made this batch: faults, drops, times, lags."""
    leftovers: list[Group] = field(default_factory=list)
    """Collected trajectories that the update leaves out, because they are stale or their group is too small."""

    def to(self, *args: Any, **kwargs: Any) -> "RolloutBatch":
        """Return the batch itself: Lightning calls `to` on every batch, and there is no tensor to move here."""
        return self
