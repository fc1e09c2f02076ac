"""Checkpoints under a knife: torn, flipped, left over, and a disk that is full."""

import logging
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import Checkpoint

from arpo.callbacks.checkpoint import (
    AtomicCheckpointIO,
    IterationCheckpoint,
    checkpoints,
    is_valid,
    iteration_of,
    newest_checkpoint,
)
from arpo.datamodules.rollouts import RolloutDataModule
from arpo.envs.fake import fake_tasks
from arpo.errors import CheckpointError, ConfigError
from arpo.rollout.sampler import ShuffledTasks
from tests.callbacks.support import EngineFollows, IdleModule, quiet_trainer

ROOT = Path(__file__).parent.parent.parent


def save(path: Path, value: float = 0.0, size: int = 1000) -> Path:
    AtomicCheckpointIO().save_checkpoint({"weights": torch.full((size,), value)}, path)
    return path


def value_of(path: Path) -> float:
    return torch.load(path, weights_only=True)["weights"][0].item()


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    """Change one bit of the weights."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


# --- writing --------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read_and_nothing_else_lies_beside_it(tmp_path):
    for value in (1.0, 3.0):  # one of the same name is replaced
        path = save(tmp_path / "deep" / "iteration_000001.ckpt", value)
        assert value_of(path) == value
        assert [found.name for found in path.parent.iterdir()] == ["iteration_000001.ckpt"]


def test_one_process_does_not_go_on_from_shards(tmp_path):
    (tmp_path / "iteration_000001.ckpt").mkdir()
    with pytest.raises(CheckpointError, match=r"000001\.ckpt holds shards: continue it with trainer=fsdp"):
        AtomicCheckpointIO().load_checkpoint(tmp_path / "iteration_000001.ckpt")


def test_on_a_full_disk_the_error_names_the_file_and_the_older_checkpoint_lives(tmp_path):
    older = save(tmp_path / "iteration_000001.ckpt", 1.0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # a write beyond it fails, as on a full disk
    try:
        with pytest.raises(CheckpointError, match=r"cannot write .*000002\.ckpt.*free space, then .*resume=auto"):
            save(tmp_path / "iteration_000002.ckpt", size=1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["iteration_000001.ckpt"]
    assert newest_checkpoint(tmp_path) == older


WRITER = """
import itertools, sys
from pathlib import Path
import torch
from arpo.callbacks.checkpoint import AtomicCheckpointIO

for number in itertools.count():
    content = {"weights": torch.full((300_000,), float(number % 7))}
    AtomicCheckpointIO().save_checkpoint(content, Path(sys.argv[1]) / f"iteration_{number % 7:06d}.ckpt")
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_leaves_only_whole_checkpoints(tmp_path):
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE)
    for _ in range(10):
        writer.stdout.readline()
    writer.kill()
    writer.communicate()
    found = checkpoints(tmp_path)
    assert len(found) == 7
    assert all(is_valid(path) and value_of(path) == iteration_of(path) for path in found)
    newest_checkpoint(tmp_path)
    assert list(tmp_path.glob("*.partial")) == []


# --- reading --------------------------------------------------------------------------------------------------------


def test_the_newest_is_the_last_iteration_not_the_last_file_that_was_touched(tmp_path):
    newest = save(tmp_path / "iteration_000100.ckpt")
    save(tmp_path / "iteration_000099.ckpt")
    save(tmp_path / "my_best.ckpt")  # is none of the run's
    (tmp_path / "iteration_000101.ckpt.partial").write_bytes(b"half")  # what a killed writer left is removed
    assert newest_checkpoint(tmp_path) == newest
    assert [iteration_of(path) for path in checkpoints(tmp_path)] == [99, 100]
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("damage", [tear, flip, lambda path: path.write_bytes(b"")], ids=["torn", "flipped", "empty"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path, caplog, damage):
    whole = save(tmp_path / "iteration_000001.ckpt")
    damaged = save(tmp_path / "iteration_000002.ckpt")
    damage(damaged)
    assert not is_valid(damaged)
    with caplog.at_level(logging.WARNING):
        assert newest_checkpoint(tmp_path) == whole
    assert "iteration_000002.ckpt is damaged; falling back" in caplog.text


def test_where_there_is_no_checkpoint_there_is_none(tmp_path):
    assert newest_checkpoint(tmp_path / "missing") is None
    tear(save(tmp_path / "iteration_000001.ckpt"))
    assert newest_checkpoint(tmp_path) is None


def test_the_iteration_is_read_from_the_name_and_another_name_is_refused():
    assert iteration_of(Path("somewhere/iteration_000042.ckpt")) == 42
    with pytest.raises(CheckpointError, match=r"cannot tell the iteration of best_42\.ckpt"):
        iteration_of(Path("best_42.ckpt"))


# --- when -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def train(make_collector, tmp_path):
    def run(*, iterations, module=None, later=(), **options):
        callback = IterationCheckpoint(tmp_path / "checkpoints", **({"keep": 3} | options))
        collector = make_collector(start=False, group_size=2, max_steps=1)
        callbacks = [callback, EngineFollows(), *later]
        trainer = quiet_trainer(callbacks, iterations, enable_checkpointing=True, plugins=[AtomicCheckpointIO()])
        data = RolloutDataModule(collector, ShuffledTasks(fake_tasks(1), 1, seed=0))
        trainer.fit(module or IdleModule(), data)
        return [iteration_of(path) for path in checkpoints(tmp_path / "checkpoints")]

    return run


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({"every_n_iterations": 1}, [3, 4, 5]),  # the newest three
        ({"every_n_iterations": 2, "keep": 9}, [1, 2, 4, 5]),  # and always the first and the last
        ({"every_n_iterations": 100}, [1, 5]),
    ],
    ids=str,
)
def test_checkpoints_are_written_every_n_iterations_and_at_the_end_and_the_newest_stay(train, options, written):
    assert train(iterations=5, **options) == written


def test_a_run_that_is_asked_to_stop_writes_one_first(train):
    module = IdleModule()

    def stop_in_the_second_iteration():
        module.trainer.should_stop = module.policy_version == 1

    module.at_step = stop_in_the_second_iteration
    assert train(iterations=5, module=module, every_n_iterations=100) == [1, 2]


class StopsLate(Checkpoint):
    """Asks to stop in the second iteration, after the callback before it has seen the end of it."""

    def on_train_epoch_end(self, trainer, pl_module):
        trainer.should_stop = pl_module.policy_version == 2


def test_so_does_a_run_that_is_asked_to_stop_at_the_last_moment(train):
    assert train(iterations=5, later=[StopsLate()], every_n_iterations=100) == [1, 2]


@pytest.mark.parametrize("options", [{"every_n_iterations": 0}, {"keep": 0}], ids=str)
def test_impossible_numbers_are_refused(tmp_path, options):
    with pytest.raises(ConfigError, match="must be at least 1"):
        IterationCheckpoint(tmp_path, **({"every_n_iterations": 1, "keep": 1} | options))
