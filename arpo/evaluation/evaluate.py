"""Episodes for judging a policy: begun on the runtime of the rollouts, apart from training."""

import random
from collections.abc import Mapping, Sequence

from arpo.errors import RolloutError
from arpo.evaluation.scores import OWN_LOOP, EvaluationResult, evaluate
from arpo.evaluation.settings import EvaluationSettings
from arpo.rollout.episode import EpisodeSpec, Meter
from arpo.rollout.runtime import RolloutRuntime
from arpo.rollout.sampler import derive_seed
from arpo.types import Task, Trajectory


def evaluate_tasks(
    runtime: RolloutRuntime,
    tasks: Sequence[Task],
    settings: EvaluationSettings,
    *,
    iteration: int = 0,
    name: str = "val",
) -> EvaluationResult:
    """Evaluate the engine's policy on a list of tasks; blocks. The episodes go to split `eval` of the store."""
    # Lists go by domain. In their order all environments would load one page at once, and then the next.
    mixed = random.Random(0).sample(tasks, len(tasks))
    rows, meter = _play(runtime, mixed, settings, iteration=iteration, name=name, finished={})
    trajectories = [trajectory for row in rows for trajectory in row if trajectory is not None]
    if not trajectories:
        raise RolloutError(f"evaluation {name} lost all {meter.total} episodes; last causes: {meter.last_causes}")
    threshold, agent = runtime.settings.success_threshold, runtime.harness.name if runtime.harness else OWN_LOOP
    return evaluate(trajectories, tasks, name=name, success_threshold=threshold, lost=meter.dropped, agent=agent)


def roll_out(
    runtime: RolloutRuntime, tasks: Sequence[Task], settings: EvaluationSettings, *, name: str
) -> list[list[Trajectory | None]]:
    """Return the episodes of each task, None for one that was lost; blocks. Those that are in the store are taken."""
    finished = {trajectory.id: trajectory for trajectory in runtime.store.read("eval", 0)}
    return _play(runtime, tasks, settings, iteration=0, name=name, finished=finished)[0]


def _play(
    runtime: RolloutRuntime,
    tasks: Sequence[Task],
    settings: EvaluationSettings,
    *,
    iteration: int,
    name: str,
    finished: Mapping[str, Trajectory],
) -> tuple[list[list[Trajectory | None]], Meter]:
    """Play the episodes of an evaluation; their seeds depend on the settings' seed, task and member alone."""
    specs = tuple(
        tuple(
            EpisodeSpec(
                f"eval-{iteration}/{name}/{group}/{member}",
                task,
                derive_seed(settings.seed, "evaluation", task.id, member),
                runtime.settings,
                temperature=settings.temperature,
                protocol=settings.protocol,
            )
            for member in range(settings.rollouts_per_task)
        )
        for group, task in enumerate(tasks)
    )
    return runtime.play(name, specs, finished)
