"""The pace of a run and its prediction, with times that can be added up by hand."""

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from arpo.agent.actions import Wait
from arpo.callbacks import pace
from arpo.callbacks.iteration_axis import IterationAxis
from arpo.callbacks.pace import Pace
from arpo.run.loggers import JsonLinesLogger
from arpo.types import RolloutBatch
from tests.callbacks.support import fit, make_group, make_trajectory

TEN_SECONDS = replace(make_trajectory([Wait()]), duration_s=10.0)
PLAYED = make_group(TEN_SECONDS, TEN_SECONDS)
BY_HAND = {"env/reset_calls": 2.0, "env/reset_s": 0.0}


class Run:
    """The hooks of a run with two environments, under a clock that only `after` moves on."""

    def __init__(self, monkeypatch, *, lag=0):
        self.now = 0.0
        self.cores_s = 0.0
        self.logged = []
        monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: self.now, thread_time=lambda: 0.0))
        times = SimpleNamespace(
            _asdict=lambda: {"user": self.cores_s, "system": self.cores_s, "idle": 1000 * self.now}
        )
        two_cores = SimpleNamespace(cpu_times=lambda: times, cpu_count=lambda: 2)
        monkeypatch.setattr(pace, "psutil", two_cores)
        settings = SimpleNamespace(max_policy_lag=lag)
        runtime = SimpleNamespace(settings=settings, pool=SimpleNamespace(size=2), run=asyncio.run)
        self.trainer = SimpleNamespace(datamodule=SimpleNamespace(runtime=runtime))
        self.callback = Pace()

    def log_dict(self, metrics, **_):
        self.logged.append(metrics)

    def iterate(self, *, wait_s, update_s, rest_s=0.0, groups=(PLAYED,)):
        """Go through one iteration; return what it logged."""
        self.callback.on_train_epoch_start(self.trainer, self)
        self.now += wait_s
        batch = RolloutBatch(0, 0, list(groups), dict(BY_HAND))
        self.callback.on_train_batch_start(self.trainer, self, batch, 0)
        self.callback.on_rollout_end(self.trainer, self, batch)
        self.now += update_s
        self.callback.on_train_batch_end(self.trainer, self, None, batch, 0)
        self.now += rest_s
        return self.logged[-1] if self.logged else {}


def test_the_first_iteration_has_nothing_to_predict_from(monkeypatch):
    assert Run(monkeypatch).iterate(wait_s=10, update_s=10) == {}


def test_a_run_that_takes_turns_says_what_a_lag_of_one_would_bring(monkeypatch):
    run = Run(monkeypatch)
    run.iterate(wait_s=10, update_s=10, rest_s=5)
    assert run.iterate(wait_s=10, update_s=10, rest_s=5) == pytest.approx(
        {
            "time/iteration": 25,  # 10 + 10 + 5
            "time/iteration_predicted": 25,
            "rollout/predicted_speedup": 25 / 15,  # the trainer's 10 + 5 are left
            "bound/environments": 10,
            "bound/trainer": 15,
            "bound/driver": 0,
            "bound/cores": 0,
            "bound/lag": 25,
        }
    )


def test_a_decoupled_run_stands_beside_its_own_lag(monkeypatch):
    run = Run(monkeypatch, lag=1)
    run.iterate(wait_s=10, update_s=10)
    logged = run.iterate(wait_s=1, update_s=10)
    assert logged["time/iteration"] == 11  # 1 + 10
    assert logged["time/iteration_predicted"] == pytest.approx(10)
    assert logged["rollout/predicted_speedup"] == pytest.approx(2)
    assert logged["bound/lag"] == 10  # (10 + 10) / 2


def test_where_the_update_is_the_bound_the_prediction_is_one(monkeypatch):
    run = Run(monkeypatch, lag=4)
    run.iterate(wait_s=10, update_s=10_000)
    logged = run.iterate(wait_s=0, update_s=10_000)
    assert logged["rollout/predicted_speedup"] == pytest.approx(1.001)


def test_where_rollout_and_update_want_the_same_cores_the_prediction_is_one(monkeypatch):
    run = Run(monkeypatch)
    run.iterate(wait_s=10, update_s=10)
    run.cores_s = 19.0  # of each kind: 38 s on two cores
    logged = run.iterate(wait_s=10, update_s=10)
    assert logged["bound/cores"] == 19
    assert logged["rollout/predicted_speedup"] == pytest.approx(20 / 19)


def test_an_episode_of_the_replay_buffer_was_played_at_another_time(monkeypatch):
    run = Run(monkeypatch)
    old = replace(TEN_SECONDS, duration_s=500.0)
    run.iterate(wait_s=10, update_s=10)
    logged = run.iterate(wait_s=10, update_s=10, groups=[make_group(TEN_SECONDS, TEN_SECONDS, old, injected=(2,))])
    assert logged["time/iteration_predicted"] == 20


def test_the_end_of_a_run_says_what_bound_it(monkeypatch, caplog):
    run = Run(monkeypatch)
    with caplog.at_level(logging.INFO):
        run.callback.on_train_end(run.trainer, run)
        run.iterate(wait_s=10, update_s=30)
        run.iterate(wait_s=10, update_s=30)
        run.callback.on_train_end(run.trainer, run)
    (line,) = caplog.messages
    assert "took 40.0 s" in line
    assert "says 40.0 s" in line
    assert "1.33 times" in line  # 40 / 30
    assert line.endswith("that of lag")  # which is taking turns


def test_a_fit_logs_its_pace_from_the_second_iteration_on(tmp_path: Path, make_collector) -> None:
    logger = JsonLinesLogger(tmp_path / "metrics.jsonl")
    fit(tmp_path, make_collector(start=False), [IterationAxis(), Pace()], loggers=[logger], iterations=3)
    first, *others = [json.loads(line) for line in logger.path.read_text().splitlines()]
    assert "time/iteration" not in first
    for line in others:
        assert line["time/iteration"] > 0
        assert line["rollout/predicted_speedup"] >= 1
        assert line["bound/driver"] > 0
