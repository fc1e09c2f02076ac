"""Results of an evaluation: success rates with their uncertainty, pass@k, by task and by domain."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from scipy.stats import binomtest

from arpo.algorithms.rewards import is_success
from arpo.types import Task, Trajectory

OWN_LOOP = "own"
"""The agent of `harness=own`."""


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the unbiased estimate that any of `k` trials succeeds: 1 - C(n-c,k)/C(n,k) (arXiv 2107.03374, Eq. 1)."""
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


@dataclass(frozen=True, slots=True)
class Score:
    """The episodes of one task, one domain or all, counted."""

    name: str
    episodes: int
    successes: int
    task_reward: float
    """Mean over episodes; differs from the success rate where a checker gives partial credit."""
    steps: float
    """Mean over episodes."""
    outcomes: dict[str, int]

    @property
    def success_rate(self) -> float:
        """The share of episodes that succeeded."""
        return self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the success rate, episodes taken as independent; it stays inside [0, 1]."""
        found = binomtest(self.successes, self.episodes).proportion_ci(method="wilson")
        return float(found.low), float(found.high)

    def to_json(self) -> dict[str, Any]:
        """Return everything as built-ins."""
        low, high = self.interval
        return asdict(self) | {"success_rate": self.success_rate, "interval_low": low, "interval_high": high}


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The result of one evaluation."""

    name: str
    overall: Score
    domains: tuple[Score, ...]
    """In the order in which the task list names them."""
    tasks: tuple[Score, ...]
    """In the order of the task list; a task whose every episode was lost to the infrastructure is missing."""
    trajectories: tuple[Trajectory, ...]
    lost: int
    """Episodes lost to the infrastructure: they count nowhere else."""
    agent: str = OWN_LOOP
    """The foreign agent that played: one policy scores differently in another."""

    @property
    def success_rate(self) -> float:
        """The share of episodes that succeeded."""
        return self.overall.success_rate

    def pass_at(self, k: int) -> float:
        """Return pass@k, averaged over the tasks that have at least `k` episodes."""
        estimates = [pass_at_k(task.episodes, task.successes, k) for task in self.tasks if task.episodes >= k]
        if not estimates:
            most = max(task.episodes for task in self.tasks)
            raise ValueError(f"pass@{k} needs a task with {k} episodes, the most are {most}; raise rollouts_per_task")
        return fmean(estimates)

    @property
    def pass_at_ks(self) -> dict[int, float]:
        """Pass@k for k = 1, 2, 4, … up to the most episodes of a task, which is included."""
        most = max(task.episodes for task in self.tasks)
        return {k: self.pass_at(k) for k in sorted({2**power for power in range(most.bit_length())} | {most})}

    def to_json(self) -> dict[str, Any]:
        """Return everything but the trajectories as built-ins."""
        return {
            "name": self.name,
            "agent": self.agent,
            "overall": self.overall.to_json(),
            "pass_at": {str(k): value for k, value in self.pass_at_ks.items()},
            "lost": self.lost,
            "domains": [score.to_json() for score in self.domains],
            "tasks": [score.to_json() for score in self.tasks],
        }

    def table(self) -> list[tuple[str, ...]]:
        """Return rows of text: a header, one row a domain, and the row of all."""
        rows: list[tuple[str, ...]] = [("domain", "episodes", "success", "95 % interval", "task reward", "steps")]
        for score in (*self.domains, self.overall):
            success = f"{100 * score.success_rate:.1f} %"
            interval = "{:.1f} – {:.1f} %".format(*(100 * bound for bound in score.interval))
            means = f"{score.task_reward:.3f}", f"{score.steps:.1f}"
            rows.append((score.name or "-", str(score.episodes), success, interval, *means))
        return rows


def evaluate(
    trajectories: Sequence[Trajectory],
    tasks: Sequence[Task],
    *,
    name: str,
    success_threshold: float,
    lost: int,
    agent: str = OWN_LOOP,
) -> EvaluationResult:
    """Score trajectories by task and by domain, in the order of the tasks; a success lies above the threshold."""
    if not trajectories:
        raise ValueError(f"there is no episode to evaluate {name} by")
    by_task: dict[str, list[Trajectory]] = {task.id: [] for task in tasks}
    by_domain: dict[str, list[Trajectory]] = {task.domain: [] for task in tasks}
    for trajectory in trajectories:
        if trajectory.task_id not in by_task:
            raise ValueError(f"trajectory {trajectory.id} is of task {trajectory.task_id!r}, which is not evaluated")
        by_task[trajectory.task_id].append(trajectory)
        by_domain[trajectory.domain].append(trajectory)
    return EvaluationResult(
        name=name,
        overall=_score("all", trajectories, success_threshold),
        domains=tuple(_score(key, found, success_threshold) for key, found in by_domain.items() if found),
        tasks=tuple(_score(key, found, success_threshold) for key, found in by_task.items() if found),
        trajectories=tuple(trajectories),
        lost=lost,
        agent=agent,
    )


def _score(name: str, trajectories: Sequence[Trajectory], success_threshold: float) -> Score:
    return Score(
        name=name,
        episodes=len(trajectories),
        successes=sum(is_success(trajectory, threshold=success_threshold) for trajectory in trajectories),
        task_reward=fmean(trajectory.task_reward for trajectory in trajectories),
        steps=fmean(len(trajectory.steps) for trajectory in trajectories),
        outcomes=dict(sorted(Counter(trajectory.outcome.value for trajectory in trajectories).items())),
    )
