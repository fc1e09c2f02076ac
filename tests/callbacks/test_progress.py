"""When the line of a terminal, the lines of a log and the card at the end come."""

import io
import logging
import re
import threading
import time

import lightning as L
import pytest
import torch
from rich.console import Console
from torch.utils.data import DataLoader

from arpo.callbacks.evaluation import Evaluation
from arpo.callbacks.progress import Progress, StepProgress
from arpo.callbacks.rollout_metrics import RolloutMetrics
from arpo.envs.fake import fake_tasks
from arpo.evaluation.settings import EvaluationSettings
from tests.callbacks.support import IdleModule, fit, quiet_trainer


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=160)


def plain() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=160)


def shown(console: Console) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


@pytest.fixture(autouse=True)
def info(caplog) -> None:
    caplog.set_level(logging.INFO, logger="arpo")


def said(caplog) -> list[str]:
    ours = ("arpo.callbacks.progress", "arpo.host.heartbeat")
    return [record.getMessage() for record in caplog.records if record.name in ours]


def test_in_a_terminal_the_line_moves_during_the_rollout_and_the_card_follows(tmp_path, make_collector) -> None:
    console = terminal()
    module = IdleModule(at_step=lambda: time.sleep(0.6))
    fit(tmp_path, make_collector(start=False), [RolloutMetrics(), Progress(console)], iterations=2, module=module)
    text = shown(console)
    assert "iteration 1/2" in text
    assert "update" in text
    assert "ARPO" in text
    assert "tensorboard --logdir" in text


def test_an_error_gives_the_terminal_back(tmp_path, make_collector) -> None:
    def fail() -> None:
        raise RuntimeError("boom")

    console = terminal()
    with pytest.raises(RuntimeError, match="boom"):
        fit(tmp_path, make_collector(start=False), [Progress(console)], module=IdleModule(at_step=fail))
    raw = console.file.getvalue()
    assert raw.rfind("\x1b[?25h") > raw.rfind("\x1b[?25l")  # the cursor was hidden, and is shown again
    deadline = time.monotonic() + 10
    while any(type(thread).__name__ == "_RefreshThread" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "something still paints"
        time.sleep(0.05)


def test_the_time_to_go_and_the_card_count_evaluations(tmp_path, make_collector, caplog) -> None:
    evaluation = Evaluation({"held_out": fake_tasks(1)}, tmp_path / "eval", EvaluationSettings(), every_n_iterations=2)
    progress = Progress(plain())
    left = []

    class Watch(L.Callback):
        def on_train_batch_end(self, *_) -> None:
            state = progress._state
            assert state.evaluation_s == evaluation.durations[-1]
            left.append(state.evaluations_left)

    # of five iterations, one follows on the second, the fourth and the last; the first stands at the start
    fit(tmp_path, make_collector(start=False), [RolloutMetrics(), evaluation, progress, Watch()], iterations=5)
    assert left == [3, 3, 2, 2, 1]
    assert len(evaluation.durations) == 4
    lines = said(caplog)  # without a terminal an iteration is a line, and the card follows
    assert [line.split(" · ")[0] for line in lines[:5]] == [f"iteration {number}/5" for number in range(1, 6)]
    assert any(re.search(r"evaluation [1-9]\d* %", line) for line in lines)
    assert any(line.startswith("success, rollouts: ") for line in lines)
    assert any(
        re.match(r"success, held_out: [\d.]+ → [\d.]+ % of 1 tasks, (no task changed|[+-][\d.]+ points)", line)
        for line in lines
    )
    assert any(str(tmp_path) in line for line in lines)
    assert progress._state.evaluations_left == 1  # the one at the end follows the last iteration's line


def test_whoever_waits_for_the_first_weights_or_for_a_checkpoint_sees_that_it_goes_on(
    tmp_path, make_collector, monkeypatch, caplog
) -> None:
    monkeypatch.setattr("arpo.host.heartbeat.Heartbeat.__init__.__defaults__", (0.1,))

    class Slow(L.Callback):
        def on_train_start(self, *_) -> None:
            time.sleep(0.3)

        def on_train_epoch_end(self, *_) -> None:
            time.sleep(0.3)

    fit(tmp_path, make_collector(start=False), [Slow(), Progress(plain()), Slow()], iterations=1)
    lines = said(caplog)
    assert "iteration 1/1 · starting" in lines
    # the first line comes from before the training's start, when nobody has said yet which iteration runs
    assert {line.split(" · ")[0] for line in lines if line.startswith("iteration")} == {"iteration 1/1"}
    assert any(line.startswith("iteration 1/1 · saving") for line in lines)


class Sum(L.LightningModule):
    """Learns something, with a loss that is known."""

    def __init__(self, steps_s: float = 0.0) -> None:
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


def warm_start(directory, callback: L.Callback, **kwargs: float) -> None:
    trainer = quiet_trainer([callback], iterations=1, default_root_dir=directory)
    trainer.fit(Sum(**kwargs), DataLoader(list(torch.zeros(4, 1)), batch_size=None))


def test_a_warm_start_shows_its_steps_in_a_log_and_says_how_it_ended(tmp_path, caplog, monkeypatch) -> None:
    monkeypatch.setattr("arpo.host.heartbeat.Heartbeat.__init__.__defaults__", (0.1,))
    warm_start(tmp_path, StepProgress(plain()), steps_s=0.15)
    lines = said(caplog)
    assert any(re.fullmatch(r"step [1-4]/4 · loss 0\.\d\d0 · 0:0\d to go", line) for line in lines)
    place = lines.index(f"results: {tmp_path}")
    assert re.fullmatch(r"learned 4 steps in 0:0\d, loss 1\.000", lines[place - 1])
    assert lines[place + 1] == f"curves: tensorboard --logdir {tmp_path}"
