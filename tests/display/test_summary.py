"""The card at the end of a run."""

import time
from pathlib import Path

from arpo.display.summary import RunSummary, places


def test_the_card_tells_last_and_best_success_and_divides_the_rollout(tmp_path: Path) -> None:
    summary = RunSummary(tmp_path)
    for iteration, success in enumerate((0.2, 0.9, 0.6), start=1):
        summary.add(
            iteration, {"rollout/success_rate": success, "time/wait": 4.0, "time/env": 30, "time/generate": 10}
        )
    summary._started = time.monotonic() - 20  # the run took 20 s
    rows = dict(summary.rows())
    assert rows["rollout/success_rate"] == "60.0 % at the end, best 90.0 % (iteration 2)"
    # 12 of 20 s in waits for rollouts: 3/4 of them waiting for the environment, 1/4 for the engine
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


def test_a_run_says_where_to_look(tmp_path: Path) -> None:
    run = tmp_path / "my runs" / "seed=0"
    (run / "trajectories").mkdir(parents=True)
    (run / "metrics.jsonl").touch()
    assert places(run) == [
        ("results", str(run)),
        ("curves", f"tensorboard --logdir '{run}'"),
        ("episodes", f"python -m arpo view '{run}'"),
    ]
    assert RunSummary(run).rows()[-3:] == places(run)


def test_a_run_that_begins_says_how_its_episodes_are_followed(tmp_path: Path) -> None:
    run = tmp_path / "study" / "seed=0"
    assert places(run, begins=True)[-1] == ("episodes", f"python -m arpo view {run} --serve")


def test_a_run_with_others_beside_it_says_how_to_compare_them(tmp_path: Path) -> None:
    for name in ("seed=0", "seed=1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").touch()
    assert places(tmp_path / "seed=0")[-1] == ("beside other runs", f"python -m arpo compare '{tmp_path}/*'")
