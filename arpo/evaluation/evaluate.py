"""Episodes for judging a policy: begun on the runtime of the rollouts, apart from training."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from arpo.errors import RolloutError
from arpo.evaluation.scores import EvaluationResult, evaluate
from arpo.evaluation.settings import EvaluationSettings
from arpo.rollout.episode import EpisodeSpec
from arpo.rollout.runtime import Job, RolloutRuntime
from arpo.rollout.seeds import derive_seed
from arpo.types import Task, Trajectory


def evaluate_tasks(
    runtime: RolloutRuntime,
    tasks: Sequence[Task],
    settings: EvaluationSettings,
    *,
    iteration: int = 0,
    name: str = "val",
) -> EvaluationResult:
    """Return how the engine's policy does on tasks; blocks. The episodes go to split `eval` of the store.

    Args:
        runtime: Started.
        tasks: What to try.
        settings: How to try it.
        iteration: When; part of the trajectories' ids.
        name: What; part of the trajectories' ids.
    """
    # Lists go by domain. In their order all environments would load one page at once, and then the next.
    mixed = random.Random(0).sample(tasks, len(tasks))
    job = _begin(runtime, mixed, settings, iteration=iteration, name=name, finished={})
    trajectories = [trajectory for row in runtime.wait(job) for trajectory in row if trajectory is not None]
    if not trajectories:
        raise RolloutError(
            f"evaluation {name} lost all {job.meter.total} episodes; last causes: {job.meter.last_causes}"
        )
    threshold = runtime.settings.success_threshold
    return evaluate(trajectories, tasks, name=name, success_threshold=threshold, lost=job.meter.dropped)


def roll_out(
    runtime: RolloutRuntime, tasks: Sequence[Task], settings: EvaluationSettings, *, name: str
) -> list[list[Trajectory | None]]:
    """Return the episodes of each task, None for one that was lost; blocks. Arguments as of `evaluate_tasks`.

    Episodes that an interrupted call with the same arguments has left in the store are taken from there.
    """
    finished = {trajectory.id: trajectory for trajectory in runtime.store.read("eval", 0)}
    return runtime.wait(_begin(runtime, tasks, settings, iteration=0, name=name, finished=finished))


def _begin(
    runtime: RolloutRuntime,
    tasks: Sequence[Task],
    settings: EvaluationSettings,
    *,
    iteration: int,
    name: str,
    finished: Mapping[str, Trajectory],
) -> Job:
    """Begin the episodes of an evaluation; their seeds depend on the settings' seed, task and member alone."""
    specs = tuple(
        tuple(
            replace(
                EpisodeSpec.of(
                    task,
                    runtime.settings,
                    id=f"eval-{iteration}/{name}/{group}/{member}",
                    seed=derive_seed(settings.seed, "evaluation", task.id, member),
                ),
                temperature=settings.temperature,
                protocol=settings.protocol,
            )
            for member in range(settings.rollouts_per_task)
        )
        for group, task in enumerate(tasks)
    )
    return runtime.begin(name, specs, finished)
