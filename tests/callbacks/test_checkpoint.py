"""Checkpoints: torn, flipped, left over, on a full disk; stops by real signals; and exported policies."""

import logging
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import Checkpoint
from torch.testing import assert_close
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

from arpo.callbacks.checkpoint import (
    AtomicCheckpointIO,
    ExportPolicy,
    GracefulStop,
    IterationCheckpoint,
    checkpoints,
    export_policy,
    is_valid,
    iteration_of,
    newest_checkpoint,
)
from arpo.datamodules.rollouts import RolloutDataModule
from arpo.envs.fake import fake_tasks
from arpo.errors import CheckpointError
from arpo.host.terminal import end_on_signals
from arpo.models.collate import collate
from arpo.models.policy import Policy
from arpo.models.tokenization import tokenize
from arpo.rollout.sampler import ShuffledTasks
from tests.callbacks.support import EngineFollows, IdleModule, fail, fit, quiet_trainer
from tests.models import samples


def save(path: Path, value: float = 0.0, size: int = 1000) -> Path:
    AtomicCheckpointIO().save_checkpoint({"weights": torch.full((size,), value)}, path)
    return path


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    """Change one bit of the weights."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


# --- writing --------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read_and_nothing_else_lies_beside_it_and_shards_are_not_read(tmp_path):
    for value in (1.0, 3.0):  # one of the same name is replaced
        path = save(tmp_path / "deep" / "iteration_000001.ckpt", value)
        assert torch.load(path, weights_only=True)["weights"][0].item() == value
        assert [found.name for found in path.parent.iterdir()] == ["iteration_000001.ckpt"]
    with pytest.raises(CheckpointError, match=r"deep holds shards: continue it with trainer=fsdp"):
        AtomicCheckpointIO().load_checkpoint(path.parent)


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


def test_where_there_is_no_checkpoint_there_is_none_and_another_name_is_refused(tmp_path):
    assert newest_checkpoint(tmp_path / "missing") is None
    tear(save(tmp_path / "iteration_000001.ckpt"))
    assert newest_checkpoint(tmp_path) is None
    with pytest.raises(CheckpointError, match=r"best_42\.ckpt names no iteration"):
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


class StopsLate(Checkpoint):
    """Asks to stop in the second iteration, after the callback before it has seen the end of it."""

    def on_train_epoch_end(self, trainer, pl_module):
        trainer.should_stop = pl_module.policy_version == 2


@pytest.mark.parametrize("later", [[], [StopsLate()]], ids=["in the iteration", "at the last moment"])
def test_a_run_that_is_asked_to_stop_writes_one_first(train, later):
    module = IdleModule()

    def stop_in_the_second_iteration():
        module.trainer.should_stop = not later and module.policy_version == 1

    module.at_step = stop_in_the_second_iteration
    assert train(iterations=5, module=module, later=later, every_n_iterations=100) == [1, 2]


# --- a stop ----------------------------------------------------------------------------------------------------


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def installed() -> dict[int, object]:
    return {number: signal.getsignal(number) for number in SIGNALS}


@pytest.fixture
def handlers() -> Iterator[dict[int, object]]:
    """The handlers as a test finds them, and they are back after it whatever it does."""
    before = installed()
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def stopping(make_collector, tmp_path):
    def train(module, iterations=4):
        stop = GracefulStop()
        collector = make_collector(start=False, group_size=2, max_steps=1)
        return stop, fit(tmp_path, collector, [stop], iterations=iterations, module=module)

    return train


def send_in_iteration(module: IdleModule, iteration: int, *numbers: int) -> None:
    def send() -> None:
        if module.policy_version == iteration:
            for number in numbers:
                os.kill(os.getpid(), number)

    module.at_step = send


def test_without_a_signal_or_under_nohup_nothing_happens_and_after_an_error_the_handlers_are_as_before(
    stopping, handlers
):
    with pytest.raises(RuntimeError, match="boom"):
        stopping(IdleModule(at_step=fail))
    assert installed() == handlers
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup starts a program
    end_on_signals()
    before, module = installed(), IdleModule()
    send_in_iteration(module, 1, signal.SIGHUP)
    stop, _ = stopping(module, iterations=3)
    assert (stop.received, module.policy_version) == (None, 3)
    assert installed() == before
    assert before[signal.SIGHUP] is signal.SIG_IGN


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_the_first_signal_lets_the_iteration_end_and_no_other_begin(stopping, handlers, number, caplog):
    module = IdleModule()
    send_in_iteration(module, 1, number)
    stop, trainer = stopping(module)
    assert stop.received == number
    assert module.policy_version == 2  # the iteration in which it came was finished
    assert trainer.current_epoch == 2
    assert f"{number.name}: finishing this iteration" in caplog.text
    assert "resume=auto" in caplog.text
    assert installed() == handlers


def test_the_second_signal_ends_at_once_but_for_that_of_a_lost_terminal(stopping, handlers):
    """The kernel sends a SIGHUP to the group in the foreground, and a shell to its jobs."""
    module = IdleModule()
    send_in_iteration(module, 1, signal.SIGHUP, signal.SIGHUP)
    stop, _ = stopping(module)
    assert (stop.received, module.policy_version) == (signal.SIGHUP, 2)
    assert installed() == handlers
    module = IdleModule()
    send_in_iteration(module, 1, signal.SIGTERM, signal.SIGTERM)
    with pytest.raises(SystemExit) as left:
        stopping(module)
    assert left.value.code == 128 + signal.SIGTERM
    assert module.policy_version == 1  # in the middle of the second iteration
    assert installed() == handlers


# --- the policy as a directory --------------------------------------------------------------------------------


@pytest.fixture
def trained(tiny_model):
    """A policy that is no longer what is on disk."""
    policy = Policy(tiny_model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return policy


def logprobs(policy):
    trajectory = samples.trajectory(policy.chat, (1, 2))
    batch = collate(tokenize(trajectory, policy.chat), trajectory.screenshots, policy.images)
    with torch.no_grad():
        return policy.action_logprobs(batch).logprobs


def export(policy, directory, rank=0, iteration=3):
    module = IdleModule()
    module.policy = policy
    trainer = SimpleNamespace(is_global_zero=rank == 0, current_epoch=iteration - 1, max_epochs=3)
    ExportPolicy(directory).on_train_epoch_end(trainer, module)


def test_what_was_trained_is_what_is_loaded_also_by_transformers_alone(trained, tmp_path, tiny_model):
    export(trained, tmp_path / "policy")
    assert_close(logprobs(Policy(tmp_path / "policy")), logprobs(trained))
    assert not torch.allclose(logprobs(Policy(tiny_model)), logprobs(trained))
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(tmp_path / "policy")
    processor = AutoProcessor.from_pretrained(tmp_path / "policy")
    assert torch.equal(model.model.language_model.norm.weight, trained.model.model.language_model.norm.weight)
    assert processor.tokenizer.eos_token == "<|im_end|>"


def test_an_older_export_is_replaced_and_a_failed_one_leaves_it(trained, tmp_path):
    policy = tmp_path / "policy"
    for name, file in (("policy", "old"), ("policy.partial", "torn")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(file)
    export_policy(trained, policy)
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    names = {path.name for path in policy.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert names.isdisjoint({"old", "torn"})
    before = (policy / "config.json").stat().st_ino
    trained.path = tmp_path / "gone"  # where the tokenizer is copied from
    with pytest.raises(Exception, match="gone"):
        export_policy(trained, policy)
    assert (policy / "config.json").stat().st_ino == before
    assert_close(logprobs(Policy(policy)), logprobs(trained))


@pytest.mark.parametrize(("rank", "iteration"), [(1, 3), (0, 2)], ids=["another rank", "stopped early"])
def test_only_rank_0_writes_and_only_after_the_last_iteration(trained, tmp_path, rank, iteration):
    export(trained, tmp_path / "policy", rank=rank, iteration=iteration)
    assert list(tmp_path.iterdir()) == []
