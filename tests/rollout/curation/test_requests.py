"""The numbers of a request: DART's table, and what they are of a task that was never tried, or never solved."""

from fractions import Fraction

import pytest

from arpo.rollout.curation.requests import DynamicRolloutNumber, DynamicTrajectoryLength, rollout_number
from arpo.rollout.sampler import ShuffledTasks, TaskRecord, TaskStatistics
from arpo.types import Task
from tests.rollout.trajectories import make_trajectory

TASK = Task("task", "")


def record(successes: int, episodes: int, longest: int | None = None) -> TaskRecord:
    return TaskRecord(
        successes=[True] * successes + [False] * (episodes - successes), visits=episodes, longest_success=longest
    )


@pytest.mark.parametrize(
    ("rate", "number"),
    # floor(9 / SR - 7): 9/.6 = 15, 9/.65 = 13.8, 9/.7 = 12.9, 9/.75 = 12, 9/.8 = 11.3, 9/.85 = 10.6, 9/.9 = 10,
    # 9/.95 = 9.5, 9/1 = 9
    [
        ("0.60", 8),
        ("0.65", 6),
        ("0.70", 5),
        ("0.75", 5),
        ("0.80", 4),
        ("0.85", 3),
        ("0.90", 3),
        ("0.95", 2),
        ("1.00", 2),
    ],
)
def test_the_rollout_number_is_that_of_the_table_of_dart(rate, number):
    assert rollout_number(Fraction(rate), 8) == number


def test_a_rate_whose_quotient_is_whole_loses_nothing_to_rounding():
    assert 9 / (9 / 14) < 14
    assert rollout_number(Fraction(9, 14), 8) == 7  # 14 - 7


def test_the_rollout_number_never_rises_with_the_success_rate_and_never_above_the_group_size():
    numbers = [rollout_number(Fraction(successes, 16), 8) for successes in range(1, 17)]
    assert numbers == sorted(numbers, reverse=True)
    assert (numbers[0], numbers[-1]) == (8, 2)


def test_a_task_that_is_hard_or_was_never_tried_has_whole_groups():
    rule = DynamicRolloutNumber(group_size=8, threshold=0.6)
    assert rule(TASK, record(0, 0)) == 8
    assert rule(TASK, record(0, 16)) == 8
    assert rule(TASK, record(9, 16)) == 8  # 0.5625
    assert rule(TASK, record(12, 16)) == 5  # 0.75


@pytest.mark.parametrize(("threshold", "successes", "number"), [(0.8, 8, 4), (0.9, 9, 3)])
def test_a_task_at_the_threshold_has_a_smaller_group_however_the_threshold_is_rounded(threshold, successes, number):
    assert Fraction(successes, 10) < threshold  # the double next to 0.8 lies above it, and so does that next to 0.9
    assert DynamicRolloutNumber(group_size=8, threshold=threshold)(TASK, record(successes, 10)) == number


def test_with_the_threshold_of_dart_s_code_only_a_solved_task_has_smaller_groups():
    rule = DynamicRolloutNumber(group_size=8, threshold=1.0)
    assert (rule(TASK, record(15, 16)), rule(TASK, record(16, 16))) == (8, 2)


def test_a_small_group_shrinks_by_the_same_law():
    rule = DynamicRolloutNumber(group_size=4)
    assert [rule(TASK, record(successes, 10)) for successes in (6, 7, 8, 9, 10)] == [4, 4, 3, 2, 2]
    # 5/.6 - 3 = 5.3, 5/.7 - 3 = 4.1, 5/.8 - 3 = 3.25, 5/.9 - 3 = 2.6, 5/1 - 3 = 2


def test_a_task_without_a_success_keeps_its_step_limit():
    assert DynamicTrajectoryLength(limit=30)(TASK, record(0, 16)) is None


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


def test_the_step_limit_of_a_task_bounds_its_own():
    rule = DynamicTrajectoryLength(limit=30, slack=10)
    assert rule(Task("task", "", max_steps=50), record(1, 1, longest=35)) == 45
    assert rule(Task("task", "", max_steps=10), record(1, 1, longest=8)) == 10


def test_a_sampler_asks_by_what_came_of_the_task():
    sampler = ShuffledTasks(
        [TASK], 1, seed=0, group_size=DynamicRolloutNumber(8), max_steps=DynamicTrajectoryLength(limit=30)
    )
    statistics = TaskStatistics()
    first = sampler.next(statistics)
    assert (first.group_size, first.max_steps) == (8, None)
    statistics.record("task", [make_trajectory(steps=4), make_trajectory(steps=6), make_trajectory(steps=5)])
    second = sampler.next(statistics)
    assert (second.group_size, second.max_steps) == (2, 6)
    statistics.record("task", [make_trajectory(task_reward=0.0, steps=6)] * 2)
    third = sampler.next(statistics)
    assert (third.group_size, third.max_steps) == (8, 6)  # 3 of 5 = 0.6: 9/.6 - 7 = 8
