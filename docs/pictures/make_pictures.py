"""An episode for the README, from one run: `python docs/pictures/make_pictures.py outputs/arpo_miniwob/default`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.algorithms.rewards import is_success  # noqa: E402
from arpo.display.drawing import film_strip  # noqa: E402
from arpo.rollout.storage import TrajectoryStore  # noqa: E402
from arpo.types import Outcome, Trajectory  # noqa: E402

SUCCESS_THRESHOLD = 0.5
"""The default of `rollout.settings.success_threshold`."""
MOST_STEPS = 5
"""The number of steps that fit beside each other in a README."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the picture of the run that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("--out", type=Path, default=HERE, help="where the picture goes")
    options = parser.parse_args(arguments)
    store = TrajectoryStore(options.run / "trajectories")
    options.out.mkdir(parents=True, exist_ok=True)
    trajectory = solved_episode(store)
    strip = film_strip(
        store.load_screenshots(trajectory),
        success_threshold=SUCCESS_THRESHOLD,
        columns=MOST_STEPS + 1,
        rows=1,
        width=320,
    )
    strip.save(options.out / "episode.png", optimize=True)


def iterations_of(store: TrajectoryStore) -> list[int]:
    """Return the iterations that have trajectories."""
    files = sorted((store.root / "train").glob("iteration_*.jsonl"))
    return [int(path.stem.removeprefix("iteration_")) for path in files]


def solved_episode(store: TrajectoryStore) -> Trajectory:
    """Return the solved episode with most different actions among those that fit, of the newest iterations.

    Raises:
        ValueError: If no episode of the run was solved in two or more steps.
    """
    for iteration in reversed(iterations_of(store)):
        solved = [
            trajectory
            for trajectory in store.read("train", iteration)
            if is_success(trajectory, threshold=SUCCESS_THRESHOLD)
            and trajectory.outcome is not Outcome.PARSE_ERROR
            and 2 <= len(trajectory.steps) <= MOST_STEPS
        ]
        if solved:
            return max(solved, key=lambda trajectory: (_variety(trajectory), -len(trajectory.steps)))
    raise ValueError(
        f"no episode in {store.root} was solved in 2 to {MOST_STEPS} steps; train longer or choose another run"
    )


def _variety(trajectory: Trajectory) -> tuple[int, int]:
    """Count kinds of actions and different ones: an episode that types and clicks shows more than one that clicks."""
    actions = {step.action for step in trajectory.steps}
    return len({action.partition("(")[0] for action in actions}), len(actions)


if __name__ == "__main__":
    main()
