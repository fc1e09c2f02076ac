"""The nouns of a rollout: frozen records without tensors, cheap to send, store and compare."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
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
class Step:
    """One observation, response and action, with the exact token ids that the engine saw and sampled."""

    screenshot: str
    """`screenshot_key` of the picture that was answered; the bytes are in `Trajectory.screenshots` or on disk."""
    width: int
    height: int
    prompt_ids: tuple[int, ...]
    """Ids appended to the context before the response; one placeholder id stands for the whole image."""
    response_ids: tuple[int, ...]
    """Sampled ids, verbatim; the last one is the end-of-turn id unless the response was cut."""
    sampler_logprobs: tuple[float, ...]
    """The engine's log-probability of each response id."""
    policy_version: int
    """The number of updates the weights that sampled this response had seen."""
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
    patch_ids: tuple[int, ...] = ()
    """Its ids, with an end-of-turn id; they were not sampled, and are never trained."""

    @property
    def history_ids(self) -> tuple[int, ...]:
        """The ids that later responses read after the prompt of this step."""
        return self.patch_ids or self.response_ids


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The record of one episode."""

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
    screenshots: Mapping[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    """PNG bytes by `screenshot_key`; empty in a record that only refers to the trajectory store."""
    last_screenshot: str = ""
    """`screenshot_key` of the screen after the last action, for people; empty where it was not taken."""
    duration_s: float = field(default=0.0, compare=False)
    """Wall-clock seconds of the episode, without what it waited for the engine's next version."""
    image_window: int | None = None
    """Screenshots that each response saw, its own among them; None where it saw all. Texts it saw all in both."""
    sampling: str = ""
    """Fingerprint of the settings that it was sampled with; empty in a record from before there was one."""

    @property
    def policy_version(self) -> int:
        """The oldest policy version that produced a step of this trajectory."""
        return min(step.policy_version for step in self.steps)

    @property
    def action_tokens(self) -> int:
        """The number of sampled tokens."""
        return sum(len(step.response_ids) for step in self.steps)


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
