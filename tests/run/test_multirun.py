"""Multiruns as a person starts them: what fails lets the others run, and is named at the end."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import lightning as L
import pytest

from tests.forks import ROOT

SMALL = ["experiment=warmstart_fake", "datamodule.steps=3", "datamodule.per_task=1", "tasks.train.count=1"]
SMALL += ["env.size=1", "+callbacks.crash._target_=tests.run.test_multirun.Crash"]
SMALL += ["+callbacks.crash.seed=${seed}", "+callbacks.crash.fatal=1"]


class Crash(L.Callback):
    """Has two bugs, each for one seed: it crashes in mid-run, or waits for a signal that nobody sends."""

    def __init__(self, seed: int, fatal: int, endless: int = -1) -> None:
        self.crashes, self.waits = seed == fatal, seed == endless

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.crashes:
            raise RuntimeError("the bug\nof a callback")
        if self.waits:
            logging.getLogger(__name__).warning("waiting for a signal")
            signal.pause()


def start(program: str, *words: str, output: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, program, "-m", *words, f"paths.output={output}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ARPO_")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **pipes)


def failures(said: str) -> list[str]:
    return [line.partition("failed: ")[2] for line in said.splitlines() if "failed: job" in line]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_jobs_that_are_refused_or_crash_let_the_others_run_and_are_named_at_the_end(tmp_path):
    with start("train.py", *SMALL, "seed=-1,1,2", output=tmp_path) as jobs:
        said, _ = jobs.communicate()
    assert jobs.returncode == 1, said
    refused, crashed = failures(said)
    assert said.strip().splitlines()[-1].endswith(crashed)
    assert refused.startswith("job 0 (")
    assert "seed=-1" in refused
    assert refused.endswith("seed must be a whole number from 0 to 4294967295, got -1")
    assert "seed=1" in crashed
    assert crashed.endswith("RuntimeError: the bug of a callback")
    assert f"in {tmp_path / 'warmstart_fake'}/+callbacks.crash." in crashed
    assert len(list((tmp_path / "warmstart_fake").glob("*/policy/config.json"))) == 1  # seed 2

    with start("train.py", *SMALL, "seed=2", output=tmp_path) as again:
        said, _ = again.communicate()
    assert again.returncode == 1, said
    assert ["already holds a run. Continue it with resume=auto" in line for line in failures(said)] == [True]


@pytest.mark.slow
def test_evaluations_that_are_refused_are_all_named(tmp_path):
    with start("evaluate.py", "experiment=smoke", "checkpoint=gone.ckpt,lost.ckpt", output=tmp_path) as jobs:
        said, _ = jobs.communicate()
    assert jobs.returncode == 1, said
    gone, lost = failures(said)
    assert "checkpoint=gone" in gone
    assert "checkpoint=lost" in lost


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ctrl_c_stops_all_jobs_and_names_what_had_failed(tmp_path):
    with start("train.py", *SMALL, "+callbacks.crash.endless=0", "seed=-1,0,2", output=tmp_path) as jobs:
        assert jobs.stdout is not None
        said = []
        for line in jobs.stdout:
            said.append(line)
            if "waiting for a signal" in line:
                os.kill(jobs.pid, signal.SIGINT)
    text = "".join(said)
    assert jobs.returncode == 130, text
    assert len(failures(text)) == 1
    assert "#2 :" not in text
