"""Replay injection: the order of injecting and remembering, screenshots, and the way through a checkpoint."""

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from arpo.callbacks.replay import ReplayInjection
from arpo.datamodules.rollouts import RolloutDataModule
from arpo.envs.fake import fake_tasks
from arpo.errors import ArpoError, ConfigError
from arpo.replay import ReplayBuffer
from arpo.rollout.sampler import ShuffledTasks
from arpo.types import Group, RolloutBatch
from tests.rollout.trajectories import make_trajectory

(TASK,) = fake_tasks(1)


class Module:
    """Takes what is logged, and how."""

    def __init__(self):
        self.logged = {}
        self.options = {}

    def log_dict(self, metrics, **options):
        self.logged = metrics
        self.options = options


def episode(id, reward, version=0):
    return replace(make_trajectory(id, policy_version=version), task_id=TASK.id, task_reward=reward)


def group(iteration, *rewards, number=0, version=None):
    version = iteration if version is None else version
    members = (episode(f"{iteration}/{number}/{member}", reward, version) for member, reward in enumerate(rewards))
    return Group(TASK, tuple(members))


def batch(iteration, *groups):
    return RolloutBatch(iteration, iteration, list(groups))


@pytest.fixture
def trainer(make_collector):
    data = RolloutDataModule(make_collector(start=False), ShuffledTasks([TASK], 1, seed=0))
    return SimpleNamespace(datamodule=data, is_global_zero=True)


@pytest.fixture
def start(trainer):
    """A callback as it is when training starts; every trajectory that it sees is in the store, as in a run."""

    def make(state=None, **options):
        callback = ReplayInjection(ReplayBuffer(**options))
        if state is not None:
            callback.load_state_dict(state)
        callback.setup(trainer, None, "fit")
        callback.on_train_start(trainer, None)
        return callback

    return make


@pytest.fixture
def see(trainer):
    def roll_out(callback, given):
        for each in given.groups:
            for trajectory in each.trajectories:
                trainer.datamodule.runtime.store.write(trajectory)
        module = Module()
        callback.on_rollout_end(trainer, module, given)
        # Once an iteration, and from rank 0 alone: the other ranks wait for nothing that they would have to reduce.
        assert module.options == {"on_step": False, "on_epoch": True, "batch_size": 1, "rank_zero_only": True}
        return module.logged

    return roll_out


def test_a_success_is_remembered_and_joins_a_later_group_that_failed(start, see):
    callback = start()
    see(callback, batch(0, group(0, 1.0, 0.0)))
    failed = batch(1, group(1, 0.0, 0.0))
    see(callback, failed)
    (rescued,) = failed.groups
    (position,) = rescued.injected
    assert rescued.trajectories[position].id == "0/0/0"
    assert [t.task_reward for t in rescued.trajectories].count(1.0) == 1


def test_a_success_of_the_same_batch_comes_too_late_to_be_replayed(start, see):
    callback = start()
    first = batch(0, group(0, 0.0, 0.0), group(0, 1.0, 0.0, number=1))
    see(callback, first)
    assert [each.injected for each in first.groups] == [(), ()]
    assert len(callback.buffer) == 1


def test_a_success_that_the_update_leaves_out_is_remembered(start, see):
    """Its group was dropped as too small or stale, and it solved the task all the same."""
    callback = start()
    given = batch(0, group(0, 0.0, 0.0))
    given.leftovers.append(group(0, 1.0, number=1))
    see(callback, given)
    assert [trajectory.id for trajectory in callback.buffer.entries(TASK.id)] == ["0/1/0"]


def test_what_was_replayed_is_not_remembered_a_second_time(start, see):
    callback = start()
    see(callback, batch(0, group(0, 1.0, 0.0)))
    see(callback, batch(1, group(1, 0.0, 0.0)))
    assert [trajectory.id for trajectory in callback.buffer.entries(TASK.id)] == ["0/0/0"]


def test_a_success_that_then_failed_to_parse_is_not_remembered(start, see):
    callback = start()
    worthless = replace(episode("0/0/0", 1.0), format_reward=-1.0)  # 1 - 1 = 0
    assert see(callback, batch(0, Group(TASK, (worthless,))))["replay/size"] == 0.0
    failed = group(1, 0.0, 0.0)
    given = batch(1, failed)
    see(callback, given)
    assert given.groups[0] is failed


def test_groups_with_a_success_are_left_as_they_are(start, see):
    callback = start()
    see(callback, batch(0, group(0, 1.0, 0.0)))
    mixed = group(1, 0.0, 1.0)
    given = batch(1, mixed)
    see(callback, given)
    assert given.groups[0] is mixed


def test_a_replayed_trajectory_brings_its_screenshots_and_the_buffer_keeps_none(start, see):
    callback = start()
    see(callback, batch(0, group(0, 1.0, 0.0)))
    failed = batch(1, group(1, 0.0, 0.0))
    see(callback, failed)
    (position,) = failed.groups[0].injected
    replayed = failed.groups[0].trajectories[position]
    assert replayed.screenshots == episode("0/0/0", 1.0).screenshots
    assert callback.buffer.entries(TASK.id)[0].screenshots == {}


def test_the_metrics_tell_what_was_injected_and_how_old_it_is(start, see):
    callback = start()
    logged = see(callback, batch(0, group(0, 1.0, 0.0)))
    assert (logged["replay/injected"], logged["replay/size"]) == (0.0, 1.0)
    assert "replay/injected_age" not in logged
    logged = see(callback, batch(5, group(5, 0.0, 0.0)))
    assert (logged["replay/injected"], logged["replay/injected_age"]) == (1.0, 5.0)  # version 5 - version 0


def test_the_buffer_comes_back_from_the_checkpoint_and_the_store(start, see):
    callback = start(seed=3)
    see(callback, batch(0, group(0, 1.0, 1.0, 0.0, 1.0)))
    file = io.BytesIO()
    torch.save(callback.state_dict(), file)
    file.seek(0)
    resumed = start(torch.load(file, weights_only=True), seed=99)
    assert resumed.buffer.entries(TASK.id) == callback.buffer.entries(TASK.id)
    for iteration in range(1, 6):  # its random numbers go on where they were
        ours, theirs = batch(iteration, group(iteration, 0.0, 0.0)), batch(iteration, group(iteration, 0.0, 0.0))
        see(callback, ours)
        see(resumed, theirs)
        assert ours.groups == theirs.groups


def test_a_checkpoint_whose_trajectories_are_gone_is_refused(start, see, trainer):
    callback = start()
    see(callback, batch(0, group(0, 1.0)))
    trainer.datamodule.runtime.store.truncate(0, -1)
    with pytest.raises(ArpoError, match="0/0/0 is not in"):
        start(callback.state_dict())


def test_other_ranks_have_no_store_and_restore_nothing(start, see, trainer):
    callback = start()
    see(callback, batch(0, group(0, 1.0)))
    trainer.is_global_zero = False
    assert len(start(callback.state_dict()).buffer) == 0


def test_it_needs_rollouts():
    trainer = SimpleNamespace(datamodule=SimpleNamespace(), is_global_zero=True)
    with pytest.raises(ConfigError, match=r"needs a data module that rolls out, got SimpleNamespace"):
        ReplayInjection(ReplayBuffer()).setup(trainer, None, "fit")
