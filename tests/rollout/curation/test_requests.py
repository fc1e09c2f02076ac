"""The numbers of a request: DART's table, and what they are of a task that was never tried, or never solved."""

from fractions import Fraction

import pytest

from arpo.rollout.curation.requests import DynamicRolloutNumber, DynamicTrajectoryLength, rollout_number
from arpo.rollout.sampler import ShuffledTasks, TaskRecord, TaskStatistics
from arpo.types import Task
from tests.rollout.trajectories import make_trajectory

TASK = Task("task", "")


def record(successes, episodes, longest=None):
    ended = [True] * successes + [False] * (episodes - successes)
    return TaskRecord(successes=ended, visits=episodes, longest_success=longest)


# floor(9 / SR - 7): 9/.6 = 15, 9/.65 = 13.8, 9/.7 = 12.9, 9/.75 = 12, 9/.8 = 11.3, 9/.85 = 10.6, 9/.9 = 10,
# 9/.95 = 9.5, 9/1 = 9
DART = {0.6: 8, 0.65: 6, 0.7: 5, 0.75: 5, 0.8: 4, 0.85: 3, 0.9: 3, 0.95: 2, 1: 2}


def test_the_rollout_number_is_that_of_the_table_of_dart():
    assert {rate: rollout_number(Fraction(str(rate)), 8) for rate in DART} == DART


def test_a_rate_whose_quotient_is_whole_loses_nothing_to_rounding():
    assert 9 / (9 / 14) < 14
    assert rollout_number(Fraction(9, 14), 8) == 7  # 14 - 7


def test_the_rollout_number_never_rises_with_the_success_rate_and_never_above_the_group_size():
    numbers = [rollout_number(Fraction(successes, 16), 8) for successes in range(1, 17)]
    assert numbers == sorted(numbers, reverse=True)
    assert (numbers[0], numbers[-1]) == (8, 2)


@pytest.mark.parametrize(
    ("group_size", "threshold", "successes", "episodes", "number"),
    [
        (8, 0.6, 0, 0, 8),
        (8, 0.6, 0, 16, 8),
        (8, 0.6, 9, 16, 8),  # 0.5625
        (8, 0.6, 12, 16, 5),  # 0.75
        (8, 0.8, 8, 10, 4),  # the double next to 0.8 lies above it, and so does that next to 0.9
        (8, 0.9, 9, 10, 3),
        (8, 1.0, 15, 16, 8),  # the threshold of DART's code
        (8, 1.0, 16, 16, 2),
        (4, 0.6, 7, 10, 4),  # 5/.7 - 3 = 4.1
        (4, 0.6, 8, 10, 3),  # 5/.8 - 3 = 3.25
        (4, 0.6, 9, 10, 2),  # 5/.9 - 3 = 2.6
    ],
)
def test_a_task_above_the_threshold_has_smaller_groups(group_size, threshold, successes, episodes, number):
    rule = DynamicRolloutNumber(group_size=group_size, threshold=threshold)
    assert rule(TASK, record(successes, episodes)) == number


@pytest.mark.parametrize(
    ("longest", "floor", "slack", "limit"),
    [
        (12, 3, 0, 12),
        (12, 3, 4, 16),
        (2, 5, 0, 5),
        (28, 3, 4, 30),  # 32 lies above the run's limit
        (2, 40, 0, 30),
    ],
)
def test_the_step_limit_is_the_longest_success_with_floor_and_slack(longest, floor, slack, limit):
    rule = DynamicTrajectoryLength(limit=30, floor=floor, slack=slack)
    assert rule(TASK, record(1, 1, longest)) == limit
    assert rule(TASK, record(0, 16)) is None


def test_the_step_limit_of_a_task_bounds_its_own():
    rule = DynamicTrajectoryLength(limit=30, slack=10)
    assert rule(Task("task", "", max_steps=50), record(1, 1, longest=35)) == 45
    assert rule(Task("task", "", max_steps=10), record(1, 1, longest=8)) == 10


def test_a_sampler_asks_by_what_came_of_the_task():
    rules = {"group_size": DynamicRolloutNumber(8), "max_steps": DynamicTrajectoryLength(limit=30)}
    sampler, statistics = ShuffledTasks([TASK], 1, seed=0, **rules), TaskStatistics()
    first = sampler.next(statistics)
    assert (first.group_size, first.max_steps) == (8, None)
    statistics.record("task", [make_trajectory(steps=4), make_trajectory(steps=6), make_trajectory(steps=5)])
    second = sampler.next(statistics)
    assert (second.group_size, second.max_steps) == (2, 6)
    statistics.record("task", [make_trajectory(task_reward=0.0, steps=6)] * 2)
    third = sampler.next(statistics)
    assert (third.group_size, third.max_steps) == (8, 6)  # 3 of 5 = 0.6: 9/.6 - 7 = 8
