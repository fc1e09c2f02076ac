"""The order of tasks, the statistics that adaptive choices read, and seeds."""

import hashlib
import json

import pytest

from arpo.errors import ConfigError
from arpo.rollout.sampler import ShuffledTasks, TaskStatistics, derive_seed
from arpo.types import Task
from tests.rollout.trajectories import make_trajectory

TASKS = [Task(f"task-{index}", "") for index in range(5)]


def ids(sampler):
    return [sampler.next(TaskStatistics()).task.id for _ in range(sampler.tasks_per_iteration)]


def test_every_task_comes_once_an_epoch_in_a_new_order():
    sampler = ShuffledTasks(TASKS, tasks_per_iteration=5, seed=1)
    first, second = ids(sampler), ids(sampler)
    assert sorted(first) == sorted(second) == [task.id for task in TASKS]
    assert first != second


def test_an_iteration_may_reach_into_the_next_epoch_and_have_a_task_twice():
    whole = ShuffledTasks(TASKS, tasks_per_iteration=10, seed=1)
    pieces = ShuffledTasks(TASKS, tasks_per_iteration=2, seed=1)
    assert ids(whole) == [task_id for _ in range(5) for task_id in ids(pieces)]
    assert ids(ShuffledTasks(TASKS[:1], tasks_per_iteration=3, seed=0)) == ["task-0"] * 3


def test_the_order_is_the_seeds():
    orders = {tuple(ids(ShuffledTasks(TASKS, 5, seed=seed))) for seed in [*range(8), *range(8)]}
    assert 1 < len(orders) <= 8


def test_a_restored_sampler_continues_exactly():
    sampler = ShuffledTasks(TASKS, tasks_per_iteration=3, seed=1)
    ids(sampler)
    state = json.loads(json.dumps(sampler.state_dict()))
    expected = [ids(sampler) for _ in range(4)]
    restored = ShuffledTasks(TASKS, tasks_per_iteration=3, seed=1)
    restored.load_state_dict(state)
    assert [ids(restored) for _ in range(4)] == expected


@pytest.mark.parametrize("other", [ShuffledTasks(TASKS[:4], 3, seed=1), ShuffledTasks(TASKS, 3, seed=2)])
def test_a_sampler_of_other_tasks_or_seed_refuses_the_state(other):
    with pytest.raises(ConfigError, match="same task list and seed"):
        other.load_state_dict(ShuffledTasks(TASKS, 3, seed=1).state_dict())


def test_statistics_count_episodes_and_slide():
    statistics = TaskStatistics(window=2)
    assert statistics["task"].success_rate is None
    statistics.record("task", [make_trajectory(task_reward=0.0, steps=1), None, make_trajectory(task_reward=1.0)])
    assert statistics["task"].success_rate == 0.5  # one of two; the lost one is no failure of the policy
    statistics.record("task", [make_trajectory(task_reward=1.0, steps=3)])
    record = statistics["task"]
    assert (list(record.successes), list(record.lengths)) == ([True, True], [2, 3])  # the oldest has left the window
    assert (record.visits, record.failures) == (3, 1)


def test_the_longest_success_outlives_the_window():
    statistics = TaskStatistics(window=1)
    assert statistics["task"].longest_success is None
    statistics.record("task", [make_trajectory(task_reward=0.0, steps=9)])
    assert statistics["task"].longest_success is None  # a failure says nothing about how long a solution is
    statistics.record("task", [make_trajectory(steps=4), make_trajectory(steps=2)])
    statistics.record("task", [make_trajectory(task_reward=0.0, steps=9)])
    restored = TaskStatistics(window=1)
    restored.load_state_dict(json.loads(json.dumps(statistics.state_dict())))
    assert statistics["task"].longest_success == restored["task"].longest_success == 4


def test_statistics_come_back_from_their_state():
    statistics = TaskStatistics(window=3, success_threshold=0.99)
    facts = ((0.99, 2), (1.0, 3), (1.0, 4))  # a success lies above the threshold
    statistics.record("a", [make_trajectory(task_reward=reward, steps=steps) for reward, steps in facts])
    assert statistics["a"].successes == [False, True, True]
    statistics.record("b", [None])
    restored = TaskStatistics(window=2)
    restored.record("c", [None])
    restored.load_state_dict(json.loads(json.dumps(statistics.state_dict())))
    assert restored.state_dict().keys() == {"a", "b"}
    assert list(restored["a"].successes) == [True, True]  # the newest, as many as fit
    assert list(restored["a"].lengths) == [3, 4]
    assert (restored["a"].visits, restored["b"].failures) == (3, 1)


def test_a_seed_is_the_same_today_tomorrow_and_in_another_process():
    # printf '[0, 1, "task", 2, 3]' | sha256sum: the first 16 digits, as a number, halved
    assert derive_seed(0, 1, "task", 2, 3) == 3760556890114695063
    assert derive_seed(5, "täsk", 1) == int.from_bytes(hashlib.sha256(b'[5, "t\\u00e4sk", 1]').digest()[:8]) >> 1


def test_every_part_of_a_seed_counts_with_its_type_and_its_borders():
    parts = [(1, 2), (2, 1), (12,), ("1", 2), (1, "2"), ("12",), ("1", "2"), (1, 2, 0), ()]
    assert len({derive_seed(*part) for part in parts}) == len(parts)


def test_a_seed_fits_63_bits():
    seeds = [derive_seed(number) for number in range(1000)]
    assert min(seeds) >= 0
    assert 2**62 < max(seeds) < 2**63  # and uses them
