"""The pictures of the README from one run: `python docs/pictures/make_pictures.py outputs/arpo_miniwob/default`."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.algorithms.rewards import is_success  # noqa: E402
from arpo.display.drawing import film_strip  # noqa: E402
from arpo.rollout.storage import TrajectoryStore  # noqa: E402
from arpo.types import Outcome, Trajectory  # noqa: E402

WINDOW = 5
"""Iterations of the moving mean: an iteration has 64 episodes."""
SUCCESS_THRESHOLD = 0.5
"""The default of `rollout.settings.success_threshold`."""
MOST_STEPS = 5
"""The number of steps that fit beside each other in a README."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Make both pictures of the run that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("--out", type=Path, default=HERE, help="where the pictures go")
    options = parser.parse_args(arguments)
    store = TrajectoryStore(options.run / "trajectories")
    options.out.mkdir(parents=True, exist_ok=True)
    draw_curve(learning_curve(options.run, store), options.out / "learning_curve.png")
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


def learning_curve(run: Path, store: TrajectoryStore) -> dict[int, float]:
    """Return success by iteration: from metrics.jsonl, or, where a run has none, from its trajectories."""
    metrics = run / "metrics.jsonl"
    if metrics.exists():
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        return {line["step"]: line["rollout/success_rate"] for line in lines if "rollout/success_rate" in line}
    return {
        iteration + 1: fmean(
            is_success(trajectory, threshold=SUCCESS_THRESHOLD) for trajectory in store.read("train", iteration)
        )
        for iteration in iterations_of(store)
    }


def draw_curve(curve: dict[int, float], path: Path) -> None:
    """Draw the success of every iteration as points, its moving mean as a line."""
    iterations = sorted(curve)
    values = [100 * curve[iteration] for iteration in iterations]
    means = [fmean(values[max(0, index - WINDOW + 1) : index + 1]) for index in range(len(values))]
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    axes.plot(iterations, values, "o", color="#0072B2", alpha=0.4, markersize=4, label="one iteration")
    axes.plot(iterations, means, color="#D55E00", linewidth=2.2, label=f"mean of the last {WINDOW}")
    axes.set(xlabel="iteration", ylabel="training success (%)", ylim=(0, 100))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)


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
