"""What stands around a fit."""

import logging
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from arpo.callbacks.checkpoint import AtomicCheckpointIO
from arpo.callbacks.graceful_stop import GracefulStop
from arpo.errors import ConfigError
from arpo.run.train import build_trainer, exit_code, find_checkpoint, forget_later

ROOT = Path(__file__).parents[2]


def test_a_run_that_a_signal_ended_says_so_to_the_shell():
    stop = GracefulStop()
    trainer = SimpleNamespace(callbacks=[stop])
    assert exit_code(trainer) == 0
    stop.received = 15
    assert exit_code(trainer) == 143


def test_callbacks_that_are_switched_off_are_left_out_and_the_others_keep_their_order(tmp_path):
    cfg = OmegaConf.create(
        {
            "callbacks": {
                "stop": {"_target_": "arpo.callbacks.graceful_stop.GracefulStop"},
                "replay": {"_target_": None, "buffer": {}},
                "nothing": None,
                "timer": {"_target_": "lightning.pytorch.callbacks.Timer"},
            },
            "logger": None,
            "paths": {"run_dir": str(tmp_path)},
            "trainer": {"_target_": "lightning.Trainer", "enable_checkpointing": False, "enable_progress_bar": False},
        }
    )
    trainer = build_trainer(cfg, None)
    names = [type(callback).__name__ for callback in trainer.callbacks]
    assert names[:2] == ["GracefulStop", "Timer"]
    assert "ReplayInjection" not in names
    assert isinstance(trainer.strategy.checkpoint_io, AtomicCheckpointIO)


# --- where a run continues ---


def save(path: Path) -> Path:
    AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(3)}, path)
    return path


def test_a_new_run_has_no_checkpoint(tmp_path):
    save(tmp_path / "iteration_000001.ckpt")
    assert find_checkpoint(None, tmp_path) is None


def test_resume_auto_finds_the_newest_of_this_run_or_begins(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        assert find_checkpoint("auto", tmp_path / "missing") is None
    assert "starting from the beginning" in caplog.text
    save(tmp_path / "iteration_000009.ckpt")
    newest = save(tmp_path / "iteration_000010.ckpt")
    assert find_checkpoint("auto", tmp_path) == newest


def test_a_file_is_taken_as_it_is_named(tmp_path):
    path = save(tmp_path / "iteration_000001.ckpt")
    assert find_checkpoint(str(path), tmp_path) == path


def test_a_damaged_checkpoint_is_refused_before_later_ones_are_removed(tmp_path):
    path = save(tmp_path / "iteration_000001.ckpt")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError, match=r"iteration_000001\.ckpt is damaged: .*resume=auto"):
        find_checkpoint(str(path), tmp_path)


def test_a_run_of_which_every_checkpoint_is_damaged_does_not_begin_anew(tmp_path):
    (tmp_path / "iteration_000001.ckpt").write_bytes(b"half")
    with pytest.raises(ConfigError, match=r"every checkpoint in .* is damaged"):
        find_checkpoint("auto", tmp_path)


def test_what_lies_beyond_the_checkpoint_that_is_resumed_is_removed(tmp_path):
    kept, *later = [save(tmp_path / "checkpoints" / f"iteration_{number:06d}.ckpt") for number in (35, 40, 50)]
    evaluations = [tmp_path / "eval" / f"iteration_{number:06d}.json" for number in (0, 35, 50)]
    evaluations[0].parent.mkdir()
    for path in evaluations:
        path.write_text("{}")
    forget_later(tmp_path, kept)
    assert [path.exists() for path in (kept, *later)] == [True, False, False]
    assert [path.exists() for path in evaluations] == [True, True, False]


@pytest.mark.slow
def test_a_rank_that_leaves_late_does_not_end_a_run_that_has_finished():
    """The session would end it, and Lightning would kill rank 0 for that: exit status 137, and `&&` breaks."""
    root = Path("/tmp") / secrets.token_hex(3)  # short, because sockets may lie in it
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.run.late_rank", root],
            cwd=ROOT,
            capture_output=True,
            encoding="utf-8",
            timeout=200,
            check=False,
        )
    finally:
        shutil.rmtree(root, ignore_errors=True)
    assert done.returncode == 0, done.stderr
