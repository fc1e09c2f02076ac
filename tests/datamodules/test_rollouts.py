"""Rollouts as data: what is collected when, with which policy, and what a checkpoint keeps of it."""

from types import SimpleNamespace

import pytest
from lightning.pytorch.strategies import SingleDeviceStrategy

from arpo.datamodules.rollouts import RolloutDataModule
from arpo.envs.fake import fake_tasks
from arpo.errors import ArpoError
from arpo.rollout.hooks import RolloutCallback
from arpo.rollout.sampler import ShuffledTasks
from tests.callbacks.support import IdleModule, reloaded
from tests.inference.scripted import ScriptedEngine
from tests.modules.conftest import quiet_trainer
from tests.rollout.support import moody_clicker, until

TASKS = fake_tasks(5, kinds=("click",))


def number_of(group):
    """The place of a group among all of a run of two groups an iteration."""
    iteration, place, _ = group.trajectories[0].id.split("/")
    return 2 * int(iteration) + int(place)


class Diary(RolloutCallback):
    """Writes down what happens when, and tells the engine of every update."""

    def __init__(self, collector):
        self.runtime = collector.runtime
        self.events = []
        self.ahead = []
        self.taken = []

    def on_rollout_end(self, trainer, module, batch):
        versions = sorted({each.policy_version for g in batch.groups for t in g.trajectories for each in t.exchanges})
        self.events.append(("batch", batch.iteration, batch.policy_version, versions))
        self.taken.append([number_of(group) for group in batch.groups])
        self.ahead.append([number for number, *_ in trainer.datamodule.state_dict()["pending"]])

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.events.append(("update", module.policy_version))
        self.runtime.update_weights([], module.policy_version)


@pytest.fixture
def make_data(make_collector, chat):
    def make(*, tasks=TASKS, per_iteration=2, seed=0, **settings):
        engine = ScriptedEngine(chat, moody_clicker(chat))
        collector = make_collector(engine=engine, start=False, group_size=2, **settings)
        return RolloutDataModule(collector, ShuffledTasks(tasks, per_iteration, seed=seed))

    return make


def fit(data, iterations=3):
    diary = Diary(data.collector)
    quiet_trainer(max_epochs=iterations, callbacks=[diary]).fit(IdleModule(), data)
    return diary


def on_its_own(data, *, iteration=0, rank=0, iterations=10):
    """A trainer that only says where it stands."""
    module = IdleModule()
    module.policy_version = iteration
    data.trainer = SimpleNamespace(
        current_epoch=iteration,
        max_epochs=iterations,
        global_rank=rank,
        is_global_zero=rank == 0,
        strategy=SingleDeviceStrategy("cpu"),
        lightning_module=module,
    )
    data.setup("fit")
    return data


def make_lost(store, number):
    """Cut the episodes of one of a run's groups, two of which make an iteration, out of the store."""
    prefix = f"{number // 2}/{number % 2}/"
    path = store.root / "train" / f"iteration_{number // 2:06d}.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith(f'{{"id": "{prefix}')))
    return {f"{prefix}{member}" for member in range(2)}


def requested(data):
    groups = range(data.sampler.tasks_per_iteration)
    return [data.sampler.next(data.collector.statistics).task.id for _ in groups]


def test_every_iteration_is_rolled_out_after_the_update_before_it_and_nothing_runs_after_the_last(make_data):
    data = make_data()
    rounds = [(("batch", number, number, [number]), ("update", number + 1)) for number in range(3)]
    assert fit(data).events == [event for pair in rounds for event in pair]
    with pytest.raises(ArpoError, match="no engine"):
        _ = data.runtime.engine


@pytest.mark.parametrize("order", ["submitted", "finished"])
@pytest.mark.parametrize("lag", [1, 2, 3])
def test_no_step_is_older_than_the_lag_and_no_group_is_lost(make_data, order, lag):
    diary = fit(make_data(max_policy_lag=lag, order=order), iterations=6)
    batches = [event for event in diary.events if event[0] == "batch"]
    assert [event[1:3] for event in batches] == [(number, number) for number in range(6)]
    assert [iteration - min(versions) <= lag for _, iteration, _, versions in batches] == [True] * 6
    # Of two groups an iteration, one of the next was asked for before the update, and may have finished first.
    assert 2 in [*diary.ahead[0], *diary.taken[0]]
    assert diary.ahead[5] == []  # nothing beyond the last iteration
    assert max(map(len, diary.ahead)) <= 2 * (lag + 1)  # the bound of what is asked for and not yet learned from
    assert sorted(number for taken in diary.taken for number in taken) == list(range(12))


def test_an_epoch_is_one_batch_of_a_group_a_task_of_the_sampler_and_none_is_fetched_ahead(make_data):
    data = make_data(per_iteration=3)
    expected = requested(make_data(per_iteration=3))
    assert len(data.train_dataloader()) == 1
    batch = on_its_own(data).next_batch()
    assert [group.task.id for group in batch.groups] == expected
    assert [len(group.trajectories) for group in batch.groups] == [2, 2, 2]


def test_other_ranks_start_nothing_and_get_an_empty_batch(make_data):
    data = on_its_own(make_data(), rank=1, iteration=4)
    batch = data.next_batch()
    assert (batch.iteration, batch.policy_version, batch.groups) == (4, 4, [])
    with pytest.raises(ArpoError, match="no engine"):
        _ = data.runtime.engine


def test_the_state_goes_on_with_the_same_tasks(make_data):
    data = on_its_own(make_data())
    data.next_batch()
    state = reloaded(data.state_dict())
    resumed = make_data()
    resumed.load_state_dict(state)
    assert [requested(resumed) for _ in range(4)] == [requested(data) for _ in range(4)]
    assert resumed.collector.statistics.state_dict() == data.collector.statistics.state_dict()
    assert sum(record["visits"] for record in state["statistics"].values()) == 4


def test_what_was_asked_for_and_not_yet_learned_is_in_the_state_and_asked_for_again(make_data):
    data = on_its_own(make_data(max_policy_lag=1, per_iteration=1))
    data.next_batch()
    state = reloaded(data.state_dict())
    number, task_id, group_size, max_steps = state["pending"][0]
    assert (number, group_size, max_steps) == (1, None, None)
    resumed = make_data(max_policy_lag=1, per_iteration=1)
    resumed.load_state_dict(state)
    assert resumed.state_dict()["pending"] == state["pending"]
    batch = on_its_own(resumed, iteration=1).next_batch()
    assert [group.task.id for group in batch.groups] == [task_id]


def test_groups_that_have_not_ended_are_in_the_state_too(make_data):
    data = on_its_own(make_data(max_policy_lag=1))
    data.next_batch()
    groups = data.collector._stream.waiting  # 2 and 3 are played by version 0; 4 and 5 wait for version 1
    until(lambda: [group.ended_as is None for group in groups()] == [False, False, True, True])
    assert [number for number, *_ in reloaded(data.state_dict())["pending"]] == [2, 3, 4, 5]


@pytest.mark.parametrize("order", ["submitted", "finished"])
def test_finished_groups_survive_a_resume_and_the_others_are_started_again(make_data, order):
    data = on_its_own(make_data(max_policy_lag=2, order=order))
    data.next_batch()
    data.runtime.update_weights([], 1)
    until(lambda: all(group.ended_as is not None for group in data.collector._stream.waiting()))
    state = reloaded(data.state_dict())
    pending = [number for number, *_ in state["pending"]]
    assert len(pending) == 6  # two groups an iteration, and as many as the bound of (2 + 1) iterations allows
    data.teardown("fit")
    resumed = make_data(max_policy_lag=2, order=order)
    resumed.load_state_dict(state)
    lost = make_lost(resumed.runtime.store, pending[-1])
    on_its_own(resumed, iteration=1)
    resumed.runtime.update_weights([], 1)
    batches = []
    for iteration in (1, 2, 3):
        resumed.trainer.current_epoch = resumed.trainer.lightning_module.policy_version = iteration
        batches.append(resumed.next_batch())
        resumed.runtime.update_weights([], iteration + 1)
    taken = {number_of(group): group for batch in batches for group in batch.groups}
    played = {request.conversation for request in resumed.runtime.engine.requests}
    assert {*taken} >= {*pending[:-1]}
    assert not played & {t.id for number in pending[:-1] for t in taken[number].trajectories}  # nothing is made twice
    assert played >= lost
    assert sum(batch.metrics["rollout/stale_episodes"] for batch in batches) == 0


def test_records_of_iterations_that_a_crash_undid_are_forgotten(make_data):
    data, states = make_data(), []
    for iteration in range(3):
        if iteration:
            data.runtime.update_weights([], iteration)
        on_its_own(data, iteration=iteration).next_batch()
        states.append(data.state_dict())
    data.teardown("fit")
    resumed = make_data()  # from the checkpoint after iteration 0
    resumed.load_state_dict(states[0])
    on_its_own(resumed, iteration=1)
    resumed.runtime.update_weights([], 1)
    batch = resumed.next_batch()
    store = resumed.runtime.store
    assert store.read("train", 2) == []
    assert len(store.read("train", 0)) == 4
    # the crash undid the update only: the episodes of iteration 1 were of these very weights and are taken as they are
    assert batch.metrics["rollout/resumed_episodes"] == 4


def test_another_task_list_and_another_number_an_iteration_than_that_of_the_checkpoint_are_refused(make_data):
    data = on_its_own(make_data(max_policy_lag=1, per_iteration=1))
    with pytest.raises(ArpoError, match="resume with the same task list"):
        make_data(tasks=TASKS[:3]).load_state_dict(make_data().state_dict())
    data.next_batch()
    with pytest.raises(ArpoError, match="tasks_per_iteration=1, this run has 2; resume with 1"):
        make_data(max_policy_lag=1, per_iteration=2).load_state_dict(data.state_dict())
