"""Groups of trajectories on demand: what is asked for, and what is left of it to learn from."""

from collections.abc import Sequence

from arpo.errors import ArpoError, RolloutError
from arpo.inference.engine import figures
from arpo.rollout.episode import EpisodeSpec
from arpo.rollout.groups import difference, rollout_metrics, select_groups
from arpo.rollout.runtime import Job, RolloutRuntime
from arpo.rollout.sampler import TaskRequest, TaskStatistics
from arpo.rollout.seeds import derive_seed
from arpo.types import RolloutBatch, Task


class RolloutCollector:
    """A bridge from a trainer that blocks to episodes that overlap: submits iterations, collects their groups.

    Attributes:
        runtime: Plays the episodes.
        statistics: What came of each task; whoever checkpoints the task sampler checkpoints this too.
    """

    def __init__(self, runtime: RolloutRuntime) -> None:
        self.runtime = runtime
        self.settings = runtime.settings
        self.statistics = TaskStatistics(success_threshold=runtime.settings.success_threshold)
        self._submitted: dict[int, tuple[tuple[TaskRequest, ...], Job]] = {}
        self._env_counters: dict[str, float] = {}

    def submit(self, iteration: int, tasks: Sequence[Task | TaskRequest]) -> None:
        """Begin the episodes of an iteration; a bare task is asked for with the run's own settings.

        Episodes of this iteration that the store holds from before a crash, made by the weights that the engine has
        now, are taken from there. The seed of an episode depends on run, iteration, task, group and member alone.
        """
        if iteration in self._submitted:
            raise ArpoError(f"iteration {iteration} was submitted already and is not collected yet")
        requests = tuple(task if isinstance(task, TaskRequest) else TaskRequest(task) for task in tasks)
        specs = tuple(
            tuple(
                EpisodeSpec.of(
                    request.task,
                    self.settings,
                    id=f"{iteration}/{group}/{member}",
                    seed=derive_seed(self.settings.seed, iteration, request.task.id, group, member),
                    max_steps=request.max_steps,
                )
                for member in range(request.group_size or self.settings.group_size)
            )
            for group, request in enumerate(requests)
        )
        finished = self.runtime.store.finished(iteration, self.runtime.policy_version)
        self._submitted[iteration] = requests, self.runtime.begin("train", specs, finished)

    def wait(self, iteration: int, policy_version: int) -> RolloutBatch:
        """Return the groups of a submitted iteration; blocks until its last episode has ended.

        Groups stand in the order of the tasks and members in the order of their index, whatever the order in which
        episodes ended.

        Args:
            iteration: What was submitted.
            policy_version: Of the policy that learns from the batch; a trajectory that is too old for it is left out.

        Raises:
            RolloutError: If no group is left to learn from.
            ArpoError: If an episode ended in an error that is no infrastructure failure, such as a full disk.
        """
        requests, job = self._submitted[iteration]
        rows = self.runtime.wait(job)
        del self._submitted[iteration]
        for request, row in zip(requests, rows, strict=True):
            self.statistics.record(request.task.id, row)
        collected = select_groups(
            requests,
            rows,
            min_group_size=self.settings.min_group_size,
            oldest=policy_version - self.settings.max_policy_lag,
        )
        if not collected.groups:
            raise RolloutError(
                f"iteration {iteration} has no group left to learn from: {collected.too_small} too small because "
                f"{job.meter.dropped} of {job.meter.total} episodes were lost, {collected.stale} too old for policy "
                f"version {policy_version}; last causes: {job.meter.last_causes}"
            )
        counters = self.runtime.counters()
        metrics = rollout_metrics(collected, job.meter, environments=self.runtime.pool.size)
        metrics |= figures(difference(counters, self._env_counters), metrics["time/rollout"])
        self._env_counters = counters
        return RolloutBatch(iteration, policy_version, collected.groups, metrics, collected.leftovers)

    def collect(self, tasks: Sequence[Task | TaskRequest], policy_version: int, iteration: int) -> RolloutBatch:
        """Return the groups of one iteration: `submit` and `wait` in one."""
        self.submit(iteration, tasks)
        return self.wait(iteration, policy_version)

    def close(self) -> None:
        """Forget what was submitted and close the runtime. Idempotent."""
        self._submitted.clear()
        self.runtime.close()
