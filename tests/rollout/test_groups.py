"""Which groups an update learns from, for which it waits, and which a checkpoint names."""

import random
from dataclasses import dataclass
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arpo.host.threads import Signal
from arpo.rollout.groups import GroupStream, RequestedGroup, ResumeState, Served, choose
from arpo.rollout.sampler import TaskRequest
from arpo.rollout.settings import RolloutSettings
from arpo.types import Task


@dataclass(eq=False)
class Some:
    number: int
    ended_as: int | None = None
    oldest: int | None = None


def numbers(chosen):
    return None if chosen is None else [group.number for group in chosen]


def test_in_their_order_the_first_groups_are_taken_though_later_ones_ended_before():
    groups = [Some(2, 0), Some(1, 2), Some(0, 1)]
    assert numbers(choose(groups, 2, "submitted", version=0, lag=1)) == [0, 1]


def test_in_their_order_the_first_groups_are_waited_for():
    assert choose([Some(0), Some(1, 0), Some(2, 1)], 2, "submitted", version=0, lag=1) is None
    assert choose([Some(0, 0)], 2, "submitted", version=0, lag=1) is None


def test_the_groups_that_ended_first_are_taken_in_the_order_of_their_numbers():
    groups = [Some(0, None, 5), Some(1, 2, 5), Some(2, 0, 5), Some(3, 1, 5)]
    assert numbers(choose(groups, 2, "finished", version=5, lag=2)) == [2, 3]


def test_a_group_that_would_be_stale_at_the_next_update_is_waited_for():
    groups = [Some(0, None, 4), Some(1, 0, 5), Some(2, 1, 5)]
    assert choose(groups, 2, "finished", version=5, lag=1) is None  # 4 + 1: this is its last update
    groups[0].ended_as = 2
    assert numbers(choose(groups, 2, "finished", version=5, lag=1)) == [0, 1]


def test_a_group_without_a_step_cannot_become_stale():
    groups = [Some(0), Some(1, 0, 5), Some(2, 1, 5)]
    assert numbers(choose(groups, 2, "finished", version=5, lag=1)) == [1, 2]


def test_more_groups_of_one_version_than_later_updates_can_take_are_begun_with_in_time():
    """Three of version 4 with lag 2 have updates 5 and 6 left, of two groups each: one of them must go now."""
    groups = [Some(0, None, 4), Some(1, None, 4), Some(2, None, 4), Some(3, 0, 5), Some(4, 1, 5)]
    assert choose(groups, 2, "finished", version=5, lag=2) is None
    groups[1].ended_as = 2
    assert numbers(choose(groups, 2, "finished", version=5, lag=2)) == [1, 3]


def test_a_group_that_is_stale_already_is_handed_out_to_be_counted():
    assert numbers(choose([Some(0, 1, 1), Some(1, 0, 5)], 1, "finished", version=5, lag=1)) == [0]


@pytest.mark.parametrize("order", ["submitted", "finished"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_group_becomes_stale_whenever_groups_begin_and_end(order, data):
    """Groups begin at a random version that the two bounds of the stream allow, and end at a random moment."""
    lag, count = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 3))
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    waiting: list[Some] = []
    asked = ends = 0
    for version in range(8):
        chosen = None
        while chosen is None:
            if asked < (version + lag + 1) * count:
                waiting.append(Some(asked))
                asked += 1
            for group in waiting:
                if group.oldest is None and rng.random() < 0.5:
                    group.oldest = version
                elif group.oldest is not None and group.ended_as is None and rng.random() < 0.3:
                    group.ended_as, ends = ends, ends + 1
            chosen = choose(waiting, count, order, version=version, lag=lag)
        assert len(chosen) == count
        assert all(group.oldest >= version - lag for group in chosen)
        waiting = [group for group in waiting if group not in chosen]


def test_groups_of_an_earlier_process_stand_in_a_checkpoint_before_the_first_of_them_is_played_again():
    asked = [RequestedGroup(number, TaskRequest(Task(f"task-{number}", ""))) for number in (4, 3)]
    course = ResumeState(iteration=1, policy_version=1, per_iteration=2, asked=asked)
    settings = RolloutSettings(group_size=2, max_steps=2, max_tokens=8, max_context=64)
    stream = GroupStream(Mock(), settings, course, Mock(), Served, Signal())
    assert [each.number for each in stream.asked()] == [3, 4]
