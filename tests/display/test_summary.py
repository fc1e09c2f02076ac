"""The card at the end of a run."""

import time
from pathlib import Path

from arpo.display.summary import RunSummary


def test_the_card_tells_last_and_best_success_and_divides_the_rollout(tmp_path: Path) -> None:
    summary = RunSummary(tmp_path)
    for iteration, success in enumerate((0.2, 0.9, 0.6), start=1):
        summary.add(
            iteration, {"rollout/success_rate": success, "time/rollout": 4.0, "time/env": 30, "time/generate": 10}
        )
    summary._started = time.monotonic() - 20  # the run took 20 s
    rows = dict(summary.rows())
    assert rows["rollout/success_rate"] == "60.0 % at the end, best 90.0 % (iteration 2)"
    # 12 of 20 s in rollouts: 3/4 of them waiting for the environment, 1/4 for the engine
    assert "environment 45 %, generation 15 %, update 0 %" in rows["wall time"]
    assert rows["results"] == str(tmp_path)


def test_the_card_counts_the_start_and_the_evaluations(tmp_path: Path) -> None:
    summary = RunSummary(tmp_path, started=time.monotonic() - 30)  # engine and environments took 30 s
    summary.started_working()
    summary.add(1, {"time/update": 40.0, "time/sync": 10.0})
    summary.add_evaluations(15.0)
    summary._started -= 70  # 100 s in all, of which 5 s are in none of these
    assert dict(summary.rows())["wall time"] == (
        "1:40, of which start 30 %, environment 0 %, generation 0 %, update 40 %, sync 10 %, evaluation 15 %, rest 5 %"
    )


def test_the_card_of_a_run_without_iterations_says_where_to_look(tmp_path: Path) -> None:
    rows = RunSummary(tmp_path).rows()
    assert rows[-1] == ("curves", f"tensorboard --logdir {tmp_path}")
    assert len(rows) == 3
