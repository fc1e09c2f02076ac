"""Selection of tasks worth training on: those that a policy solves sometimes, as the paper chose 128 of 369."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from arpo.algorithms.rewards import is_success
from arpo.bounds import NotNegativeInt, Threshold, checked
from arpo.errors import ConfigError
from arpo.evaluation.evaluate import roll_out
from arpo.evaluation.settings import EvaluationSettings
from arpo.rollout.runtime import RolloutRuntime
from arpo.types import Task

log = logging.getLogger(__name__)

ENVIRONMENTS_FULL = 4
"""Episodes that are begun together, in units of the number of environments: many enough that few environments wait
for the last ones, and few enough that their screenshots fit into memory."""


class Verdict(StrEnum):
    """The reason why a task is in the list, or is not."""

    KEPT = "kept"
    TOO_HARD = "too hard"
    TOO_EASY = "too easy"
    INFEASIBLE = "infeasible"
    UNSTABLE = "unstable"
    """Its environment fails too often for its numbers to mean anything."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """The episodes of one task, counted by their ends."""

    task: Task
    successes: int
    episodes: int
    """Those that ended; the lost ones are not among them."""
    lost: int
    """Episodes that the infrastructure lost, after every attempt at them."""


@checked
@dataclass(frozen=True, slots=True)
class SelectionRule:
    """The rule by which tasks are kept."""

    min_successes: NotNegativeInt = 1
    max_successes: int | None = None
    infeasible: Literal["keep", "drop"] = "drop"
    """`keep` judges infeasible tasks like all others: then solving one is to give up on it."""
    max_lost_share: Threshold = 0.25
    """A task of whose episodes more than this share was lost is unstable."""

    def __post_init__(self) -> None:
        if self.max_successes is not None and self.max_successes < self.min_successes:
            raise ConfigError(
                f"max_successes={self.max_successes} is below min_successes={self.min_successes}, so no task fits"
            )

    def check_attempts(self, rollouts_per_task: int) -> None:
        """Check that a task can be kept after so many attempts."""
        if self.min_successes > rollouts_per_task:
            raise ConfigError(
                f"min_successes={self.min_successes} of rollouts_per_task={rollouts_per_task} episodes is impossible"
            )

    def judge(self, attempts: Attempts) -> Verdict:
        """Return whether a task is kept, and why not."""
        if attempts.task.infeasible and self.infeasible == "drop":
            return Verdict.INFEASIBLE
        if attempts.lost > self.max_lost_share * (attempts.lost + attempts.episodes):
            return Verdict.UNSTABLE
        if attempts.successes < self.min_successes:
            return Verdict.TOO_HARD
        if self.max_successes is not None and attempts.successes > self.max_successes:
            return Verdict.TOO_EASY
        return Verdict.KEPT


@dataclass(frozen=True, slots=True)
class Selection:
    """The tasks that were tried, in the order of their list, and the rule that judges them."""

    attempts: tuple[Attempts, ...]
    rule: SelectionRule

    @property
    def kept(self) -> tuple[Task, ...]:
        """The tasks to train on."""
        return tuple(each.task for each in self.attempts if self.rule.judge(each) is Verdict.KEPT)

    def table(self) -> list[tuple[str, ...]]:
        """Return rows of text: a header, and one row a task."""
        rows: list[tuple[str, ...]] = [("domain", "task", "successes", "lost", "verdict")]
        for row in self.to_json():
            successes = f"{row['successes']} of {row['episodes']}"
            rows.append((row["domain"] or "-", row["task"], successes, str(row["lost"]), row["verdict"]))
        return rows

    def to_json(self) -> list[dict[str, Any]]:
        """Return every task's numbers as built-ins."""
        return [
            {
                "domain": each.task.domain,
                "task": each.task.id,
                "infeasible": each.task.infeasible,
                "successes": each.successes,
                "episodes": each.episodes,
                "lost": each.lost,
                "verdict": self.rule.judge(each).value,
            }
            for each in self.attempts
        ]


def select_tasks(
    runtime: RolloutRuntime,
    tasks: Sequence[Task],
    rule: SelectionRule,
    settings: EvaluationSettings,
    *,
    name: str,
) -> Selection:
    """Try every task of a list so many times, in the paper 16, and judge it; blocks. Stored episodes are taken."""
    if not tasks:
        raise ConfigError("there is no task to choose from: the list is empty")
    rule.check_attempts(settings.rollouts_per_task)
    tried = [task for task in tasks if rule.infeasible == "keep" or not task.infeasible]
    found = {task.id: Attempts(task, 0, 0, 0) for task in tasks}
    at_once = max(1, ENVIRONMENTS_FULL * runtime.pool.size // settings.rollouts_per_task)
    for first in range(0, len(tried), at_once):
        batch = tried[first : first + at_once]
        rows = roll_out(runtime, batch, settings, name=f"{name}-{first}")
        for task, row in zip(batch, rows, strict=True):
            ended = [trajectory for trajectory in row if trajectory is not None]
            successes = sum(is_success(each, threshold=runtime.settings.success_threshold) for each in ended)
            found[task.id] = Attempts(task, successes, len(ended), len(row) - len(ended))
        log.info("%d of %d tasks are tried", first + len(batch), len(tried))
    return Selection(tuple(found.values()), rule)


def listed_only(tasks: Sequence[Task], ids: Sequence[str]) -> list[Task]:
    """Return the tasks of these ids, in the order of the ids."""
    known = {task.id: task for task in tasks}
    missing = [task_id for task_id in ids if task_id not in known]
    if missing:
        raise ConfigError(f"these tasks are not in the list that they are chosen from: {', '.join(missing)}")
    return [known[task_id] for task_id in ids]


def chosen_config(groups: Mapping[str, Any], name: str, kept: Sequence[Task]) -> dict[str, Any]:
    """Return a group of `conf/tasks`, as plain values, with one list cut down to the tasks that were kept.

    Names by domain, or a file with them, become names by domain; any other loader is wrapped in `listed_only`.
    """
    loader = groups[name]
    if "ids" in loader and isinstance(loader["ids"], Mapping | str):
        domains = dict.fromkeys(task.domain for task in kept)
        by_domain = {domain: [task.id for task in kept if task.domain == domain] for domain in domains}
        return {**groups, name: {**loader, "ids": by_domain}}
    ids = [task.id for task in kept]
    return {**groups, name: {"_target_": f"{listed_only.__module__}.listed_only", "tasks": loader, "ids": ids}}
