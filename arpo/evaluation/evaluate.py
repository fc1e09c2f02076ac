"""Episodes for judging a policy: begun on the runtime of the rollouts, apart from training."""

from collections.abc import Sequence
from dataclasses import replace

from arpo.errors import RolloutError
from arpo.evaluation.scores import EvaluationResult, evaluate
from arpo.evaluation.settings import EvaluationSettings
from arpo.rollout.episode import EpisodeSpec
from arpo.rollout.runner import SpecRows
from arpo.rollout.runtime import RolloutRuntime
from arpo.rollout.seeds import derive_seed
from arpo.rollout.settings import RolloutSettings
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

    Raises:
        RolloutError: If every episode was lost.
    """
    specs = evaluation_specs(tasks, runtime.settings, settings, prefix=f"eval-{iteration}/{name}")
    job = runtime.begin(name, specs, finished={})
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
    specs = evaluation_specs(tasks, runtime.settings, settings, prefix=f"eval-0/{name}")
    return runtime.wait(runtime.begin(name, specs, finished))


def evaluation_specs(
    tasks: Sequence[Task], limits: RolloutSettings, settings: EvaluationSettings, *, prefix: str
) -> SpecRows:
    """Return the episodes of an evaluation; their seeds depend on the settings' seed, task and member alone."""
    return tuple(
        tuple(
            replace(
                EpisodeSpec.of(
                    task,
                    limits,
                    id=f"{prefix}/{group}/{member}",
                    seed=derive_seed(settings.seed, "evaluation", task.id, member),
                ),
                temperature=settings.temperature,
                protocol=settings.protocol,
            )
            for member in range(settings.rollouts_per_task)
        )
        for group, task in enumerate(tasks)
    )
