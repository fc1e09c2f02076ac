"""Tasks of the successes that a run has stored: for `envs/recorded.py`, which replays them."""

import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from arpo.agent.ui_tars import parse_action
from arpo.algorithms.rewards import is_worth_replaying
from arpo.bounds import AtLeastOne, Threshold, checked
from arpo.envs.screenshot import BEGINNING, HEADER, measured
from arpo.errors import ActionParseError, ConfigError, EnvError
from arpo.rollout.storage import TrajectoryStore, store_of
from arpo.types import Outcome, Task, Trajectory

log = logging.getLogger(__name__)

Part = Literal["train", "held_out"]
HELD_OUT_EVERY = 4
"""Of so many tasks that were recorded, in the order of their first success, the last one is held out."""


@checked
def recorded_tasks(
    source: str | Path, *, part: Part = "train", count: AtLeastOne | None = None, success_threshold: Threshold = 0.5
) -> list[Task]:
    """Return a task for each success of a run that can be replayed.

    First comes one success of each task of that run, then a second one of each, and so on, so that the first few are
    as different as can be.

    Args:
        source: The folder of a run, or a trajectory store, such as the demonstrations of a warm start. Every machine
            that has environments must see it under the same path.
        part: The successes to train on, or those of every fourth task, which are held out with all of them.
        count: At most so many; None: all.
        success_threshold: A trajectory is a success when its task reward, and its whole reward, lies above it.
    """
    store = TrajectoryStore(store_of(source))
    by_task: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in _fit(store, _successes(store, str(source), success_threshold), str(source)):
        by_task[trajectory.task_id].append(trajectory)
    ranked = [
        (rank, trajectory)
        for number, successes in enumerate(by_task.values(), start=1)
        if (number % HELD_OUT_EVERY == 0) == (part == "held_out")
        for rank, trajectory in enumerate(successes)
    ]
    ranked.sort(key=lambda pair: pair[0])  # stable: tasks stay in their order
    return [_task(trajectory, store) for _, trajectory in ranked[:count]]


def _successes(store: TrajectoryStore, source: str, threshold: float) -> list[Trajectory]:
    stored = list(store.read_all())
    if not source or not stored:
        raise ConfigError(
            f"source={source} holds no recorded trajectories: name the folder of a run, such as "
            "source=outputs/smoke/default, or the demonstrations/ of a warm start"
        )
    found = [each for each in stored if each.steps and is_worth_replaying(each, threshold=threshold)]
    if not found:
        raise ConfigError(
            f"source={source}: none of its {len(stored)} trajectories is a success, and an expert's are needed: name "
            "another run, or lower success_threshold"
        )
    return found


def _fit(store: TrajectoryStore, successes: Sequence[Trajectory], source: str) -> list[Trajectory]:
    reasons = [_unfit(trajectory, store) for trajectory in successes]
    fit = [trajectory for trajectory, reason in zip(successes, reasons, strict=True) if not reason]
    said = ", ".join(f"{count} {reason}" for reason, count in Counter(filter(None, reasons)).items())
    if not fit:
        raise ConfigError(f"source={source}: none of its {len(successes)} successes can be replayed: {said}")
    if said:
        log.warning("%s: of %d successes %s: left out", source, len(successes), said)
    return fit


def _unfit(trajectory: Trajectory, store: TrajectoryStore) -> str:
    """Return the reason why a success cannot be replayed, as the end of a sentence; empty where it can."""
    if trajectory.outcome in (Outcome.MAX_STEPS, Outcome.CONTEXT_FULL):
        return "were cut by a limit before they said that they are done"
    if any(step.patch for step in trajectory.steps):
        return "were corrected by an expert themselves"
    try:
        for step in trajectory.steps:
            parse_action(step.action)
    except ActionParseError:
        return "have a step that is not one action"
    if store.lost_screenshots(trajectory):
        return "have lost screenshots"
    sizes = [(step.screenshot, (step.width, step.height)) for step in trajectory.steps]
    if trajectory.last_screenshot:  # it follows the last action
        sizes.append((trajectory.last_screenshot, sizes[-1][1]))
    for key, size in sizes:
        with store.screenshot_path(key).open("rb") as file:
            head = file.read(len(BEGINNING) + HEADER.size)
        try:
            fits = measured(head) == size
        except EnvError:  # it is no picture
            fits = False
        if not fits:
            return "have screenshots of another size than they say"
    return ""


def _task(trajectory: Trajectory, store: TrajectoryStore) -> Task:
    def screen(key: str) -> str:
        return str(store.screenshot_path(key).resolve())

    facts = ("width", "height", "action", "response")
    steps = [
        {"screen": screen(step.screenshot)} | {name: getattr(step, name) for name in facts}
        for step in trajectory.steps
    ]
    return Task(
        id=f"{trajectory.task_id}@{trajectory.id}",
        instruction=trajectory.instruction,
        domain=trajectory.domain,
        # a demonstration ends with its last action, and no screenshot follows it
        config={"steps": steps, "last_screen": screen(trajectory.last_screenshot or trajectory.steps[-1].screenshot)},
        max_steps=len(steps),
    )
