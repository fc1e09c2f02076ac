"""What is rolled out together: the episodes of one iteration, or those of one evaluation."""

import concurrent.futures
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from arpo.rollout.episode import EpisodeProtocol, EpisodeSpec
from arpo.rollout.meter import Meter, Progress
from arpo.rollout.sampler import TaskRequest
from arpo.rollout.seeds import derive_seed
from arpo.rollout.settings import RolloutSettings
from arpo.types import Task, Trajectory

SpecRows = tuple[tuple[EpisodeSpec, ...], ...]
"""One row a group, one spec a member."""


@dataclass(slots=True)
class Job:
    """Episodes that were begun together, in rows."""

    name: str
    iteration: int
    specs: SpecRows
    meter: Meter
    future: concurrent.futures.Future[list[Trajectory | None]]
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None

    def __post_init__(self) -> None:
        self.future.add_done_callback(self._end)

    def _end(self, _: object) -> None:
        self.ended = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds from the beginning to the end of the last episode, or to now."""
        return (self.ended if self.ended is not None else time.monotonic()) - self.started

    @property
    def causes(self) -> str:
        """The last infrastructure failures, for a message."""
        return "; ".join(self.meter.causes) or "none"

    def rows(self) -> list[list[Trajectory | None]]:
        """Return what came of each spec, None where the episode was lost; blocks until all have ended."""
        found = iter(self.future.result())
        return [[next(found) for _ in row] for row in self.specs]

    def progress(self, env_states: Mapping[str, int]) -> Progress:
        """Return where the job stands."""
        meter = self.meter
        return Progress(
            env_states,
            name=self.name,
            iteration=self.iteration,
            episodes_done=meter.done + meter.dropped,
            episodes_total=meter.total,
            successes=meter.successes,
            steps=meter.steps,
            tokens=meter.tokens,
            parse_errors=meter.parse_errors,
            retried=meter.retried,
            dropped=meter.dropped,
            elapsed_s=self.elapsed_s,
        )


def training_specs(requests: Sequence[TaskRequest], settings: RolloutSettings, iteration: int) -> SpecRows:
    """Return the episodes of an iteration; their seeds depend on run, iteration, task, group and member alone."""
    return tuple(
        tuple(
            _spec(
                request,
                settings,
                id=f"{iteration}/{group}/{member}",
                seed=derive_seed(settings.seed, iteration, request.task.id, group, member),
            )
            for member in range(request.group_size or settings.group_size)
        )
        for group, request in enumerate(requests)
    )


def evaluation_specs(
    tasks: Sequence[Task],
    settings: RolloutSettings,
    prefix: str,
    *,
    rollouts_per_task: int,
    temperature: float,
    protocol: EpisodeProtocol,
    seed: int,
) -> SpecRows:
    """Return the episodes of an evaluation; their seeds depend on `seed`, task and member alone.

    Two evaluations with one seed differ by the policy and not by their random numbers.
    """
    return tuple(
        tuple(
            replace(
                _spec(
                    TaskRequest(task),
                    settings,
                    id=f"{prefix}/{group}/{member}",
                    seed=derive_seed(seed, "evaluation", task.id, member),
                ),
                temperature=temperature,
                protocol=protocol,
            )
            for member in range(rollouts_per_task)
        )
        for group, task in enumerate(tasks)
    )


def _spec(request: TaskRequest, settings: RolloutSettings, *, id: str, seed: int) -> EpisodeSpec:
    return EpisodeSpec(
        id=id,
        task=request.task,
        seed=seed,
        max_steps=request.max_steps or request.task.max_steps or settings.max_steps,
        max_context=settings.max_context,
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
    )
