"""Replay injection: the order of injecting and remembering, screenshots, and the way through a checkpoint."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from arpo.callbacks.replay import ReplayInjection
from arpo.datamodules.rollouts import RolloutDataModule
from arpo.envs.fake import fake_tasks
from arpo.errors import ArpoError, ConfigError
from arpo.replay import ReplayBuffer
from arpo.rollout.curation.experience import ExperiencePool
from arpo.rollout.hooks import RolloutCallback
from arpo.rollout.sampler import ShuffledTasks
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Group, RolloutBatch
from tests.callbacks.support import fit, reloaded
from tests.rollout.trajectories import make_trajectory

(TASK,) = fake_tasks(1)


class Module:
    """Takes what is logged, and how."""

    def log_dict(self, metrics, **options):
        self.logged, self.options = metrics, options


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

    def make(state=None, pool=None, remembers=True, **options):
        callback = ReplayInjection(ReplayBuffer(**options), pool=pool, remembers=remembers)
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
    logged = see(callback, batch(0, group(0, 1.0, 0.0)))
    assert (logged["replay/injected"], logged["replay/size"]) == (0.0, 1.0)
    assert "replay/injected_age" not in logged
    failed = batch(5, group(5, 0.0, 0.0))
    logged = see(callback, failed)
    assert (logged["replay/injected"], logged["replay/injected_age"]) == (1.0, 5.0)  # version 5 - version 0
    (rescued,) = failed.groups
    (position,) = rescued.injected
    assert [t.task_reward for t in rescued.trajectories].count(1.0) == 1
    # It brings its screenshots, of which the buffer keeps none, and is not remembered a second time.
    assert rescued.trajectories[position].id == "0/0/0"
    assert rescued.trajectories[position].screenshots == episode("0/0/0", 1.0).screenshots
    (kept,) = callback.buffer.entries(TASK.id)
    assert (kept.id, kept.screenshots) == ("0/0/0", {})


def test_a_success_of_the_same_batch_or_of_one_that_the_update_leaves_out_is_remembered_and_not_replayed(start, see):
    """The group of the second was dropped as too small or stale, and it solved the task all the same."""
    callback = start()
    first = batch(0, group(0, 0.0, 0.0), group(0, 1.0, 0.0, number=1))
    first.leftovers.append(group(0, 1.0, number=2))
    see(callback, first)
    assert [each.injected for each in first.groups] == [(), ()]
    assert [trajectory.id for trajectory in callback.buffer.entries(TASK.id)] == ["0/1/0", "0/2/0"]


def test_the_buffer_comes_back_from_the_checkpoint_and_the_store(start, see, trainer):
    callback = start(seed=3)
    see(callback, batch(0, group(0, 1.0, 1.0, 0.0, 1.0)))
    resumed = start(reloaded(callback.state_dict()), seed=99)
    assert resumed.buffer.entries(TASK.id) == callback.buffer.entries(TASK.id)
    for iteration in range(1, 6):  # its random numbers go on where they were
        ours, theirs = batch(iteration, group(iteration, 0.0, 0.0)), batch(iteration, group(iteration, 0.0, 0.0))
        see(callback, ours)
        see(resumed, theirs)
        assert ours.groups == theirs.groups
    trainer.datamodule.runtime.store.truncate(0, -1)
    with pytest.raises(ArpoError, match=r"0/0/\d is not in"):
        start(callback.state_dict())


# --- successes that were collected beforehand -----------------------------------------------------------------------


@pytest.fixture
def pool(tmp_path):
    """Two successes and a failure that another run left."""
    other = TrajectoryStore(tmp_path / "other")
    for id, reward in (("5/0/0", 1.0), ("5/0/1", 0.0), ("6/0/0", 1.0)):
        other.write(replace(episode(id, reward, version=5), instruction="Press OK."))
    return ExperiencePool([other.root], [TASK])


def test_a_success_collected_beforehand_joins_the_first_group_that_fails(start, see, pool):
    callback = start(pool=pool, remembers=False, replaced="none")
    failed = batch(0, group(0, 0.0, 0.0))
    logged = see(callback, failed)
    (rescued,) = failed.groups
    assert rescued.injected == (2,)
    assert rescued.trajectories[2].id in {"pool-0/0/0", "pool-0/0/1"}
    assert rescued.trajectories[2].screenshots == episode("5/0/0", 1.0).screenshots
    assert (logged["replay/injected"], logged["replay/size"]) == (1.0, 2.0)


def test_a_pool_stays_out_of_groups_with_a_success_and_grows_where_it_remembers(start, see, pool):
    callback = start(pool=pool, remembers=False)
    for rewards in ([1.0, 0.0], [1.0, 1.0]):
        given = batch(0, group(0, *rewards))
        collected = list(given.groups)
        assert see(callback, given)["replay/injected"] == 0.0
        assert given.groups == collected
    assert [t.id for t in callback.buffer.entries(TASK.id)] == ["pool-0/0/0", "pool-0/0/1"]
    callback = start(pool=pool, choice="newest", replaced="oldest")
    see(callback, batch(0, group(0, 1.0, 0.0)))
    assert [t.id for t in callback.buffer.entries(TASK.id)] == ["pool-0/0/0", "pool-0/0/1", "0/0/0"]
    failed = batch(1, group(1, 0.0, 0.0))
    see(callback, failed)
    assert failed.groups[0].trajectories[0].id == "0/0/0"


def test_a_run_that_goes_on_or_begins_again_has_the_same_copy_of_the_pool_and_other_ranks_none(
    start, pool, tmp_path, trainer
):
    first, second = (start(pool=pool, remembers=False, seed=3) for _ in range(2))
    assert first.buffer.entries(TASK.id) == second.buffer.entries(TASK.id)
    assert len(trainer.datamodule.runtime.store.read("pool", 0)) == 2
    shutil.rmtree(tmp_path / "other")  # and what it became since does not matter
    resumed = start(first.state_dict(), pool=pool, remembers=False, seed=99)
    assert resumed.buffer.entries(TASK.id) == first.buffer.entries(TASK.id) != ()
    trainer.is_global_zero = False
    assert len(start(first.state_dict()).buffer) == len(start(pool=pool, remembers=False).buffer) == 0
    offline = SimpleNamespace(datamodule=SimpleNamespace(), is_global_zero=True)
    with pytest.raises(ConfigError, match=r"needs a data module that rolls out, got SimpleNamespace"):
        first.setup(offline, None, "fit")


class FirstStepEarns(RolloutCallback):
    """A process reward: the first step of every episode earns a half."""

    def on_rollout_end(self, trainer, module, batch) -> None:
        for place, group in enumerate(batch.groups):
            earned = ((replace(t.steps[0], reward=0.5), *t.steps[1:]) for t in group.trajectories)
            pairs = zip(group.trajectories, earned, strict=True)
            batch.groups[place] = replace(group, trajectories=tuple(replace(t, steps=steps) for t, steps in pairs))


def test_a_reward_that_a_callback_before_replay_sets_is_remembered_and_stored(tmp_path, make_collector):
    collector = make_collector(start=False)
    replay = ReplayInjection(ReplayBuffer())
    fit(tmp_path, collector, [FirstStepEarns(), replay], iterations=1)
    stored = collector.runtime.store.read("train", 0)
    assert {trajectory.steps[0].reward for trajectory in stored} == {0.5}
    assert len(stored) == 8
    for trajectory in stored:
        remembered = [each.steps[0].reward for each in replay.buffer.entries(trajectory.task_id)]
        assert set(remembered) <= {0.5}
    assert len(replay.buffer) > 0
