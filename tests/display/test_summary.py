"""The card at the end of a run."""

import json
import time
from pathlib import Path

import pytest

from arpo.display.summary import RunSummary, changes, places


def test_the_card_tells_first_and_last_success_and_divides_the_rollout(tmp_path: Path) -> None:
    summary = RunSummary(tmp_path)
    for success in (0.2, 0.9, 0.6):
        summary.add({"rollout/success_rate": success, "time/wait": 4.0, "time/env": 30, "time/generate": 10})
    summary._started = time.monotonic() - 20  # the run took 20 s
    rows = dict(summary.rows())
    assert rows["success, rollouts"] == "20.0 → 60.0 %"
    # 12 of 20 s in waits for rollouts: 3/4 of them waiting for the environment, 1/4 for the engine
    assert "environment 45 %, generation 15 %, update 0 %" in rows["wall time"]
    assert rows["results"] == str(tmp_path)
    assert "replay" not in rows


def evaluation(**lists: list[float]) -> str:
    """The file of an evaluation in which tasks 0, 1, … succeeded as often as this."""
    return json.dumps(
        {
            name: {
                "overall": {"success_rate": sum(rates) / len(rates)},
                "tasks": [{"name": str(number), "success_rate": rate} for number, rate in enumerate(rates)],
            }
            for name, rates in lists.items()
        }
    )


def test_the_card_tells_what_changed_from_the_first_evaluation_to_the_last_with_an_interval(tmp_path: Path) -> None:
    evaluations = tmp_path / "judged"
    evaluations.mkdir()
    for number, lists in (
        (0, {"in_domain": [0.0, 0.5, 1.0, 0.0], "held_out": [0.5, 0.0]}),
        (7, {"in_domain": [0.0, 0.0, 0.0, 0.0]}),
        (10, {"in_domain": [1.0, 0.5, 1.0, 0.0], "held_out": [0.5, 0.0], "pages": [0.25]}),
    ):
        (evaluations / f"iteration_{number:06d}.json").write_text(evaluation(**lists), encoding="utf-8")
    summary = RunSummary(tmp_path, evaluations)
    for injected, success in ((3, 0.1), (1, 0.2), (0, 0.5), (0, 0.6)):
        summary.add({"replay/injected": injected, "rollout/success_rate": success})
    # gains of 1, 0, 0, 0: mean 1/4, standard error 1/4, and t of 3 degrees of freedom is 3.182
    assert summary.rows()[:5] == [
        ("success, in_domain", "37.5 → 62.5 % of 4 tasks, +25.0 points [-54.6, +104.6], 95 % over its tasks"),
        ("success, held_out", "25.0 → 25.0 % of 2 tasks, no task changed"),
        ("success, pages", "25.0 % of 1 tasks after iteration 10"),
        ("success, rollouts", "15.0 → 55.0 %, means of 2 iterations each"),
        ("replay", "4 past successes injected, in 2 of 4 iterations"),
    ]


@pytest.mark.parametrize(
    ("judged", "said"),
    [
        ({0: [1.0, 0.5]}, "75.0 % of 2 tasks before training"),
        (
            {4: [0.0, 0.5], 9: [1.0, 1.0, 1.0]},
            "25.0 → 100.0 % of the 2 tasks of both, +75.0 points [-242.7, +392.7], 95 %",
        ),
        ({4: [0.0, 0.5], 9: [1.0, 1.5]}, "25.0 → 125.0 % of 2 tasks, +100.0 points, from iteration 4 to 9"),
    ],
)
def test_the_card_says_what_of_which_tasks_and_which_iterations_it_compares(tmp_path: Path, judged, said) -> None:
    for number, rates in judged.items():
        (tmp_path / f"iteration_{number:06d}.json").write_text(evaluation(tasks=rates), encoding="utf-8")
    ((_, change),) = changes(tmp_path)
    assert change.startswith(said)


def test_tasks_that_no_evaluation_shares_are_not_compared(tmp_path: Path) -> None:
    for number, name in ((0, "lost at last"), (9, "lost at first")):
        judged = {"overall": {"success_rate": 1.0}, "tasks": [{"name": name, "success_rate": 1.0}]}
        (tmp_path / f"iteration_{number:06d}.json").write_text(json.dumps({"tasks": judged}), encoding="utf-8")
    assert list(changes(tmp_path)) == [("tasks", "no task was judged both at first and at last")]


def test_a_run_that_goes_on_counts_what_its_checkpoint_has_and_says_since_when_its_time_is(tmp_path: Path) -> None:
    earlier = [{"step": 0, "val/success_rate": 0.5}]
    earlier += [{"step": n, "rollout/success_rate": 0.1, "replay/injected": 2.0} for n in (1, 2, 3, 4)]
    beyond = {"step": 5, "rollout/success_rate": 0.9, "replay/injected": 9.0}  # the checkpoint is of iteration 4
    lines = [json.dumps(line) + "\n" for line in (*earlier, beyond)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines) + lines[-1][:20], encoding="utf-8")  # torn by a kill
    summary = RunSummary(tmp_path)
    summary.goes_on(4)
    summary.add({"rollout/success_rate": 0.5, "replay/injected": 0.0})
    rows = dict(summary.rows())
    assert rows["success, rollouts"] == "10.0 → 30.0 %, means of 2 iterations each"
    assert rows["replay"] == "8 past successes injected, in 4 of 5 iterations"
    assert "wall time since iteration 4" in rows


def test_a_run_that_begins_anew_counts_nothing_of_a_dead_one(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "replay/injected": 9.0}\n', encoding="utf-8")
    summary = RunSummary(tmp_path)
    summary.goes_on(0)
    assert not {"replay", "wall time since iteration 0"} & dict(summary.rows()).keys()


def test_one_iteration_has_no_rise(tmp_path: Path) -> None:
    summary = RunSummary(tmp_path)
    summary.add({"rollout/success_rate": 0.5})
    assert "success, rollouts" not in dict(summary.rows())


def test_the_card_counts_the_start_and_the_evaluations(tmp_path: Path) -> None:
    summary = RunSummary(tmp_path, started=time.monotonic() - 30)  # engine and environments took 30 s
    summary.started_working()
    summary.add({"time/update": 40.0, "time/sync": 10.0})
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
