"""What stands around a fit."""

import logging
import os
import secrets
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch
from omegaconf import OmegaConf
from torch.distributed import DistStoreError, TCPStore

from arpo.callbacks.checkpoint import AtomicCheckpointIO
from arpo.callbacks.evaluation import Evaluation
from arpo.envs.fake import fake_tasks
from arpo.errors import ConfigError
from arpo.evaluation.settings import EvaluationSettings
from arpo.run.train import (
    ALLOCATOR,
    FOUND,
    agreed_checkpoint,
    build_trainer,
    exit_code,
    expand_segments,
    find_checkpoint,
    forget_later,
    is_over,
    mention_evaluations,
)
from tests.forks import ROOT


def test_callbacks_that_are_off_are_left_out_and_a_run_that_a_signal_ended_says_so_to_the_shell(tmp_path):
    callbacks = {
        "stop": {"_target_": "arpo.callbacks.checkpoint.GracefulStop"},
        "replay": {"_target_": None, "buffer": {}},
        "nothing": None,
        "timer": {"_target_": "lightning.pytorch.callbacks.Timer"},
    }
    quiet = {"_target_": "lightning.Trainer", "enable_checkpointing": False, "enable_progress_bar": False}
    run = {"callbacks": callbacks, "logger": None, "paths": {"run_dir": str(tmp_path)}, "trainer": quiet}
    trainer = build_trainer(OmegaConf.create(run), None)
    names = [type(callback).__name__ for callback in trainer.callbacks]
    assert names[:2] == ["GracefulStop", "Timer"]
    assert "ReplayInjection" not in names
    assert isinstance(trainer.strategy.checkpoint_io, AtomicCheckpointIO)
    assert exit_code(trainer) == 0
    trainer.callbacks[0].received = 15
    assert exit_code(trainer) == 143


@pytest.mark.parametrize("said", [None, *ALLOCATOR])
def test_segments_of_gpu_memory_grow_unless_the_user_says_how_the_allocator_works(monkeypatch, said):
    before = torch._C._accelerator_getAllocatorSettings()
    for name in ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    if said:
        monkeypatch.setenv(said, "max_split_size_mb:512")
    try:
        torch._C._accelerator_setAllocatorSettings("max_split_size_mb:512")
        expand_segments()
        settings = torch._C._accelerator_getAllocatorSettings()
    finally:
        torch._C._accelerator_setAllocatorSettings(before)
    assert settings == ("max_split_size_mb:512" if said else "expandable_segments:True")
    assert not any(os.environ.get(name) == "expandable_segments:True" for name in ALLOCATOR)  # engines inherit those


@pytest.mark.parametrize(
    ("options", "tries", "evaluations", "keys"),  # of three iterations
    [
        ({}, 2, 2, ["evaluation.rollouts_per_task=1", "callbacks.evaluation.at_start=false"]),
        ({"at_start": False}, 2, 1, ["evaluation.rollouts_per_task=1"]),
        ({"every_n_iterations": 2}, 1, 3, ["callbacks.evaluation.at_start=false"]),
    ],
    ids=str,
)
def test_a_run_that_evaluates_more_than_it_learns_says_so_with_both_numbers(
    tmp_path, caplog, options, tries, evaluations, keys
):
    caplog.set_level(logging.INFO)
    lists = {"in_domain": fake_tasks(3), "held_out": fake_tasks(5)}
    evaluation = Evaluation(lists, tmp_path, EvaluationSettings(rollouts_per_task=tries), **options)
    played = evaluations * tries * (3 + 5)
    mention_evaluations([], iterations=3, learned=0)
    mention_evaluations([evaluation], iterations=3, learned=played)
    assert not caplog.text  # as many are not more
    mention_evaluations([evaluation], iterations=3, learned=played - 1)
    fewer = " or ".join([*keys, "callbacks.evaluation=null"])
    numbers = f"the evaluations of this run play {played} episodes, and its training {played - 1}"
    assert f"{numbers}: {fewer} makes them fewer" in caplog.text


# --- where a run continues ---


def test_a_run_is_over_once_the_evaluation_after_its_last_iteration_has_ended(tmp_path):
    cfg = OmegaConf.create({"iterations": 3, "callbacks": {"evaluation": {"directory": str(tmp_path)}}})
    assert [is_over(cfg, done) for done in (2, 3, 4)] == [False, False, True]
    (tmp_path / "iteration_000003.json").write_text("{}")
    assert [is_over(cfg, done) for done in (2, 3)] == [False, True]
    cfg.callbacks.evaluation = None  # one that evaluates nothing waits for nothing
    assert [is_over(cfg, done) for done in (2, 3)] == [False, True]


def save(path: Path) -> Path:
    AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(3)}, path)
    return path


def test_a_run_goes_on_from_the_newest_of_its_checkpoints_or_one_that_is_named_or_begins_unless_one_is_damaged(
    tmp_path, caplog
):
    with caplog.at_level(logging.INFO):
        assert find_checkpoint("auto", tmp_path / "missing") is None
    assert "starting from the beginning" in caplog.text
    path, newest = (save(tmp_path / f"iteration_{number:06d}.ckpt") for number in (9, 10))
    assert find_checkpoint("auto", tmp_path) == newest
    assert find_checkpoint(str(path), tmp_path) == path
    assert find_checkpoint(None, tmp_path) is None
    for each in (path, newest):
        each.write_bytes(each.read_bytes()[:100])
    with pytest.raises(ConfigError, match=r"iteration_000009\.ckpt is damaged: .*resume=auto"):
        find_checkpoint(str(path), tmp_path)
    with pytest.raises(ConfigError, match=r"every checkpoint in .* is damaged"):
        find_checkpoint("auto", tmp_path)


def test_what_lies_beyond_the_checkpoint_that_is_resumed_is_removed(tmp_path):
    kept, *later = [save(tmp_path / "checkpoints" / f"iteration_{number:06d}.ckpt") for number in (35, 40, 50)]
    evaluations = [tmp_path / "eval" / f"iteration_{number:06d}.json" for number in (0, 35, 50)]
    evaluations[0].parent.mkdir()
    for path in evaluations:
        path.write_text("{}")
    forget_later(tmp_path, kept)
    assert [path.exists() for path in (kept, *later, *evaluations)] == [True, False, False, True, True, False]


@pytest.fixture
def as_rank(monkeypatch):
    """Makes this process one of a run's, with nothing said by any other run."""
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if k != FOUND})
    return lambda number: monkeypatch.setitem(os.environ, "LOCAL_RANK", str(number))


@pytest.fixture
def torchrun(as_rank, monkeypatch):
    """The store that `torchrun` keeps for the processes that it starts, and the variables that lead to it."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2"}
    for name, value in {**place, "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setitem(os.environ, name, value)

    def become(number):
        os.environ.pop(FOUND, None)  # processes of their own, and the second is no child of the first
        monkeypatch.setitem(os.environ, "RANK", str(number))

    yield become
    del store


@pytest.mark.parametrize("resume", ["auto", "iteration_000001.ckpt"])
@pytest.mark.parametrize("launcher", ["as_rank", "torchrun"])
def test_one_process_reads_the_checkpoint_and_the_others_take_its_word(tmp_path, request, launcher, resume):
    become = request.getfixturevalue(launcher)
    path = tmp_path / "iteration_000001.ckpt"
    AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(5_000_000)}, path)
    size = path.stat().st_size
    wanted = "auto" if resume == "auto" else str(path)
    read = []
    for number in (0, 1):
        become(number)
        before = psutil.Process().io_counters().read_chars
        assert agreed_checkpoint(wanted, tmp_path) == path
        read.append(psutil.Process().io_counters().read_chars - before)
    assert read[0] >= size
    assert read[1] < size / 100


@pytest.mark.parametrize("launcher", ["as_rank", "torchrun"])
def test_all_processes_begin_anew_where_the_first_found_nothing(tmp_path, request, launcher):
    become = request.getfixturevalue(launcher)
    become(0)
    assert agreed_checkpoint("auto", tmp_path) is None
    path = save(tmp_path / "iteration_000001.ckpt")
    become(1)
    assert agreed_checkpoint("auto", tmp_path) is None
    assert agreed_checkpoint(None, tmp_path) is None
    if launcher == "as_rank":
        del os.environ[FOUND]  # a process that hears nothing looks for itself
        assert agreed_checkpoint("auto", tmp_path) == path


def test_a_process_that_torchrun_starts_again_does_not_hear_the_word_of_an_earlier_start(
    tmp_path, torchrun, monkeypatch
):
    monkeypatch.setattr("arpo.run.train.CHECKING", timedelta(seconds=0.1))
    save(tmp_path / "iteration_000001.ckpt")
    for number in (0, 1):  # all of the first start hear it, and nodes come or go
        torchrun(number)
        agreed_checkpoint("auto", tmp_path)
    with pytest.raises(DistStoreError):
        agreed_checkpoint("auto", tmp_path)
    torchrun(0)  # the others of this start die before they hear it
    agreed_checkpoint("auto", tmp_path)
    torchrun(1)
    monkeypatch.setitem(os.environ, "TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(DistStoreError):
        agreed_checkpoint("auto", tmp_path)


@pytest.mark.long
@pytest.mark.slow
def test_a_rank_that_leaves_late_does_not_end_a_run_that_has_finished():
    """The session would end it, and Lightning would kill rank 0 for that: exit status 137, and `&&` breaks."""
    root = Path("/tmp") / secrets.token_hex(3)  # short, because sockets may lie in it
    command = [sys.executable, "-m", "tests.run.late_rank", root]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    assert done.returncode == 0, done.stderr
