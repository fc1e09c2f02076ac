"""When the line of a terminal, the lines of a log and the card at the end come."""

import io
import json
import logging
import re
import threading
import time
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from rich.console import Console
from torch.utils.data import DataLoader

from arpo.callbacks.evaluation import Evaluation
from arpo.callbacks.logs import IterationAxis, RolloutMetrics
from arpo.callbacks.progress import (
    Progress,
    StepProgress,
    card_rows,
    changes,
    evaluation_line,
    format_duration,
    places,
)
from arpo.envs.fake import fake_tasks
from arpo.evaluation.settings import EvaluationSettings
from arpo.host.terminal import Line
from arpo.rollout.episode import Meter
from arpo.run.loggers import JsonLinesLogger
from tests.callbacks.support import IdleModule, fail, fit, quiet_trainer
from tests.host.watchdogs import wait_until


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=160)


def test_in_a_terminal_the_line_moves_during_the_rollout_and_the_card_follows(tmp_path, make_collector) -> None:
    screen = console(terminal=True)
    module = IdleModule(at_step=lambda: time.sleep(0.6))
    fit(tmp_path, make_collector(start=False), [RolloutMetrics(), Progress(screen)], iterations=2, module=module)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.file.getvalue())
    assert all(part in text for part in ("iteration 1/2", "update", "ARPO", "tensorboard --logdir"))


def test_an_error_gives_the_terminal_back(tmp_path, make_collector) -> None:
    screen = console(terminal=True)
    with pytest.raises(RuntimeError, match="boom"):
        fit(tmp_path, make_collector(start=False), [Progress(screen)], module=IdleModule(at_step=fail))
    raw = screen.file.getvalue()
    assert raw.rfind("\x1b[?25h") > raw.rfind("\x1b[?25l")  # the cursor was hidden, and is shown again
    wait_until(lambda: not any(type(each).__name__ == "_RefreshThread" for each in threading.enumerate()))


@pytest.fixture(autouse=True)
def info(caplog) -> None:
    caplog.set_level(logging.INFO, logger="arpo")


def said(caplog) -> list[str]:
    ours = ("arpo.callbacks.progress", "arpo.host.log_lines")
    return [record.getMessage() for record in caplog.records if record.name in ours]


def test_a_log_has_a_line_an_iteration_and_the_card_counts_evaluations(tmp_path, make_collector, caplog) -> None:
    evaluation = Evaluation({"held_out": fake_tasks(1)}, tmp_path / "eval", EvaluationSettings(), every_n_iterations=2)
    callbacks = [IterationAxis(), RolloutMetrics(), evaluation, Progress(console(terminal=False))]
    logger = JsonLinesLogger(tmp_path / "metrics.jsonl")
    fit(tmp_path, make_collector(start=False), callbacks, loggers=[logger], iterations=5)
    assert len(evaluation.durations) == 4  # at the start, after the second, the fourth and the last iteration
    lines = said(caplog)
    assert [line.split(" · ")[0] for line in lines[:5]] == [f"iteration {number}/5" for number in range(1, 6)]
    assert any(re.search(r"evaluation [1-9]\d* %", line) for line in lines)
    assert any(line.startswith("success, rollouts: ") for line in lines)
    change = re.compile(r"success, held_out: [\d.]+ → [\d.]+ % of 1 tasks, (no task changed|[+-][\d.]+ points)")
    assert any(map(change.match, lines))
    assert any(str(tmp_path) in line for line in lines)


def test_a_wait_for_the_first_weights_or_for_a_checkpoint_is_shown(
    tmp_path, make_collector, monkeypatch, caplog
) -> None:
    monkeypatch.setattr("arpo.host.log_lines.Heartbeat.__init__.__defaults__", (0.1,))

    def wait(*_: object) -> None:
        time.sleep(0.3)

    slow = [LambdaCallback(on_train_start=wait, on_train_epoch_end=wait) for _ in range(2)]
    fit(tmp_path, make_collector(start=False), [slow[0], Progress(console(terminal=False)), slow[1]], iterations=1)
    lines = said(caplog)
    assert "iteration 1/1 · starting" in lines
    # the first line comes from before the training's start, when nobody has said yet which iteration runs
    assert {line.split(" · ")[0] for line in lines if line.startswith("iteration")} == {"iteration 1/1"}
    assert any(line.startswith("iteration 1/1 · saving") for line in lines)


class Sum(L.LightningModule):
    """Learns something, with a loss that is known."""

    def __init__(self, steps_s: float) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.steps_s = steps_s

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        time.sleep(self.steps_s)
        self.optimizers().step()
        self.log("train/loss", 0.25 * (batch_idx + 1))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_warm_start_shows_its_steps_in_a_log_and_says_how_it_ended(tmp_path, caplog, monkeypatch) -> None:
    monkeypatch.setattr("arpo.host.log_lines.Heartbeat.__init__.__defaults__", (0.1,))
    trainer = quiet_trainer([StepProgress(console(terminal=False))], iterations=1, default_root_dir=tmp_path)
    trainer.fit(Sum(steps_s=0.15), DataLoader(list(torch.zeros(4, 1)), batch_size=None))
    lines = said(caplog)
    assert any(re.fullmatch(r"step [1-4]/4 · loss 0\.\d\d0 · 0:0\d to go", line) for line in lines)
    place = lines.index(f"results: {tmp_path}")
    assert re.fullmatch(r"learned 4 steps in 0:0\d, loss 1\.000", lines[place - 1])
    assert lines[place + 1] == f"curves: tensorboard --logdir {tmp_path}"


# --- the line --------------------------------------------------------------------------------------------------------


def status(name="", episodes_done=0, episodes_total=0, elapsed_s=0.0, dropped=0, **counts) -> Meter:
    """`episodes_done` ended, of which `dropped` gave no trajectory."""
    done = episodes_done - dropped
    return Meter(name, episodes_total, done, dropped=dropped, started=0.0, ended=elapsed_s, **counts)


ROLLING = status(name="train", episodes_done=16, episodes_total=64, successes=4, steps=40, elapsed_s=8.0)


@pytest.fixture
def progress() -> Progress:
    progress = Progress(console(terminal=False))
    progress.iteration, progress.iterations = 12, 60
    progress.successes.extend([0.25, 0.75])
    progress.durations.extend([10.0, 10.0])
    progress.replayed, progress.replay_size = 3, 14.0
    progress.begun = time.monotonic()
    return progress


def test_the_line_counts_episodes_while_they_run_and_that_of_a_log_is_complete(progress) -> None:
    parts = progress.line(ROLLING).parts
    # success 4 of 16, mean of 0.25 and 0.75, 49 iterations of 10 s are left, less what has passed, 40 steps in 8 s
    assert parts[:4] == ["iteration 12/60", "rollout 16/64", "success 25 %", "last 2: 50 %"]
    assert re.fullmatch(r"8:(09|10) to go", parts[4])
    assert parts[5:] == ["replay 14, 3 injected", "5.0 steps/s"]
    progress.phase = "update and weight sync"
    assert "update and weight sync" in progress.line(ROLLING).parts  # though episodes of a later iteration run
    progress.phase = "closing"
    line = "iteration 12/60 · success 75 %, last 2: 50 % · replay 14, 3 injected · 9.5 s · 8:00 to go"
    assert progress.iteration_line(9.5) == line
    progress.iteration, progress.begun = 60, time.monotonic() - 20
    assert progress.iteration_line(9.5).endswith("9.5 s")  # what should be over has no time to go


def test_the_bar_counts_iterations_and_the_episodes_of_the_running_rollout(progress) -> None:
    progress.iterations, shares = 4, []
    for progress.iteration, done, progress.phase in ((1, 0, "starting"), (2, 32, "starting"), (2, 64, "closing")):
        shares.append(progress.line(status(name="train", episodes_done=done, episodes_total=64)).share)
    assert shares == [0.0, 0.375, 0.5]  # iteration 2 of 4 with half of its episodes: 1.5 of 4


def test_outside_of_a_training_the_episodes_alone_are_counted_and_durations_are_written_as_people_read_them() -> None:
    assert evaluation_line(status()) == Line(["starting"])
    counts = {"successes": 1, "steps": 10, "elapsed_s": 4.0, "dropped": 1}
    evaluating = status(name="test", episodes_done=2, episodes_total=8, **counts)
    # 2 episodes in 4 s: the 6 that are left take 12
    parts = ["evaluation test 2/8", "success 50 %", "0:12 to go", "2.5 steps/s", "1 episode lost"]
    assert evaluation_line(evaluating) == Line(parts, 0.25)
    fresh = status(name="train", episodes_total=8)  # a list of tasks may have any name
    assert evaluation_line(fresh) == Line(["evaluation train 0/8"], 0.0)
    assert [format_duration(seconds) for seconds in (0, 7.4, 754, 11_100)] == ["0:00", "0:07", "12:34", "3:05:00"]


# --- the card ----------------------------------------------------------------------------------------------------


def card(run: Path, *metrics: dict, evaluations: Path | None = None, torn: str = "", **seconds: float) -> dict:
    """The card of a run with a line of metrics an iteration, that took 20 s."""
    lines = (json.dumps({"step": step} | line) + "\n" for step, line in enumerate(metrics, start=1))
    (run / "metrics.jsonl").write_text("".join(lines) + torn, encoding="utf-8")
    times = {"earlier": 0, "wall_s": 20.0, "start_s": 0.0, "evaluation_s": 0.0} | seconds
    return dict(card_rows(run, evaluations, **times))


def test_the_card_tells_first_and_last_success_and_divides_the_rollout(tmp_path: Path) -> None:
    times = {"time/wait": 4.0, "time/env": 30, "time/generate": 10}
    rows = card(tmp_path, *({"rollout/success_rate": success} | times for success in (0.2, 0.9, 0.6)))
    assert rows["success, rollouts"] == "20.0 → 60.0 %"
    # 12 of 20 s in waits for rollouts: 3/4 of them waiting for the environment, 1/4 for the engine
    assert "environment 45 %, generation 15 %, update 0 %" in rows["wall time"]
    assert rows["results"] == str(tmp_path)
    assert "replay" not in rows


def evaluation(**lists: list[float]) -> str:
    """The file of an evaluation in which tasks 0, 1, … succeeded as often as this."""

    def result(rates: list[float]) -> dict:
        tasks = [{"name": str(number), "success_rate": rate} for number, rate in enumerate(rates)]
        return {"overall": {"success_rate": sum(rates) / len(rates)}, "tasks": tasks}

    return json.dumps({name: result(rates) for name, rates in lists.items()})


def test_the_card_tells_what_changed_from_the_first_evaluation_to_the_last_with_an_interval(tmp_path: Path) -> None:
    evaluations = tmp_path / "judged"
    evaluations.mkdir()
    for number, lists in (
        (0, {"in_domain": [0.0, 0.5, 1.0, 0.0], "held_out": [0.5, 0.0]}),
        (7, {"in_domain": [0.0, 0.0, 0.0, 0.0]}),
        (10, {"in_domain": [1.0, 0.5, 1.0, 0.0], "held_out": [0.5, 0.0], "pages": [0.25]}),
    ):
        (evaluations / f"iteration_{number:06d}.json").write_text(evaluation(**lists), encoding="utf-8")
    pairs = ((3, 0.1), (1, 0.2), (0, 0.5), (0, 0.6))
    metrics = ({"replay/injected": injected, "rollout/success_rate": success} for injected, success in pairs)
    # gains of 1, 0, 0, 0: mean 1/4, standard error 1/4, and t of 3 degrees of freedom is 3.182
    assert list(card(tmp_path, *metrics, evaluations=evaluations).items())[:5] == [
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
        ({4: [0.0, 0.5], 9: [1.0, 1.0, 1.0]}, "25.0 → 100.0 % of the 2 tasks of both, +75.0 points [-242.7, +392.7],"),
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
        judged = evaluation(tasks=[1.0]).replace('"0"', f'"{name}"')
        (tmp_path / f"iteration_{number:06d}.json").write_text(judged, encoding="utf-8")
    assert list(changes(tmp_path)) == [("tasks", "no task was judged both at first and at last")]


def test_a_run_that_goes_on_counts_the_success_of_its_checkpoint_and_its_own_time(tmp_path: Path) -> None:
    earlier = [{"rollout/success_rate": 0.1, "replay/injected": 2.0, "time/update": 90.0}] * 4
    last = {"rollout/success_rate": 0.5, "replay/injected": 0.0, "time/update": 5.0}
    rows = card(tmp_path, *earlier, last, torn='{"step": 6, "repl', earlier=4)
    assert rows["success, rollouts"] == "10.0 → 30.0 %, means of 2 iterations each"
    assert rows["replay"] == "8 past successes injected, in 4 of 5 iterations"
    assert "update 25 %" in rows["wall time since iteration 4"]


def test_the_card_counts_the_start_and_the_evaluations_and_one_iteration_has_no_rise(tmp_path: Path) -> None:
    line = {"rollout/success_rate": 0.5, "time/update": 40.0, "time/sync": 10.0}
    rows = card(tmp_path, line, start_s=30.0, evaluation_s=15.0, wall_s=100.0)
    parts = "start 30 %, environment 0 %, generation 0 %, update 40 %, sync 10 %, evaluation 15 %, rest 5 %"
    assert rows["wall time"] == f"1:40, of which {parts}"
    assert "success, rollouts" not in rows


def test_a_run_says_where_to_look_how_to_follow_it_and_how_to_compare_it(tmp_path: Path) -> None:
    run, other = tmp_path / "my runs" / "seed=0", tmp_path / "study" / "seed=0"
    (run / "trajectories").mkdir(parents=True)
    (run / "metrics.jsonl").touch()
    results, curves = ("results", str(run)), ("curves", f"tensorboard --logdir '{run}'")
    assert places(run) == [results, curves, ("episodes", f"python -m arpo view '{run}'")]
    assert list(card(run).items())[-3:] == places(run)
    assert places(other, begins=True)[-1] == ("episodes", f"python -m arpo view {other} --serve")
    for beside in (other, other.with_name("seed=1")):
        beside.mkdir(parents=True)
        (beside / "metrics.jsonl").touch()
    assert places(other)[-1] == ("beside other runs", f"python -m arpo compare '{other.parent}/*'")
