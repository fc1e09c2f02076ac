import logging
from pathlib import Path

import pytest
import torch

from arpo.callbacks.checkpoint import AtomicCheckpointIO
from arpo.errors import ConfigError
from arpo.run.resume import find_checkpoint, forget_later


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
