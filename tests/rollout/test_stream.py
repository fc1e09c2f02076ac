"""The choice of an iteration's groups, and what falls out of them."""

import random
from dataclasses import dataclass
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arpo.rollout.episode import Meter
from arpo.rollout.sampler import TaskRequest, TaskStatistics
from arpo.rollout.stream import (
    GroupStream,
    RequestedGroup,
    ResumeState,
    Window,
    choose,
    rollout_metrics,
    select_groups,
)
from arpo.types import Task
from tests.rollout.trajectories import make_trajectory


@dataclass(eq=False)
class Some:
    number: int
    ended_as: int | None = None
    oldest: int | None = None

    @property
    def asked(self):
        return self


@pytest.mark.parametrize(
    ("order", "groups", "version", "lag", "numbers"),
    [
        # In the order of submission the first are waited for and taken, though later ones ended before.
        ("submitted", [Some(2, 0), Some(1, 2), Some(0, 1)], 0, 1, [0, 1]),
        ("submitted", [Some(0), Some(1, 0), Some(2, 1)], 0, 1, None),
        ("submitted", [Some(0, 0)], 0, 1, None),
        # Those that ended first are taken in the order of their numbers.
        ("finished", [Some(0, None, 5), Some(1, 2, 5), Some(2, 0, 5), Some(3, 1, 5)], 5, 2, [2, 3]),
        # One that would be stale at the next update is waited for: 4 + 1 is its last.
        ("finished", [Some(0, None, 4), Some(1, 0, 5), Some(2, 1, 5)], 5, 1, None),
        ("finished", [Some(0, 2, 4), Some(1, 0, 5), Some(2, 1, 5)], 5, 1, [0, 1]),
        # One without a step cannot become stale.
        ("finished", [Some(0), Some(1, 0, 5), Some(2, 1, 5)], 5, 1, [1, 2]),
        # Three of version 4 with lag 2 have updates 5 and 6 left, of two groups each: one of them must go now.
        ("finished", [Some(0, None, 4), Some(1, None, 4), Some(2, None, 4), Some(3, 0, 5), Some(4, 1, 5)], 5, 2, None),
        ("finished", [Some(0, None, 4), Some(1, 2, 4), Some(2, None, 4), Some(3, 0, 5), Some(4, 1, 5)], 5, 2, [1, 3]),
    ],
)
def test_two_groups_are_chosen_or_waited_for(order, groups, version, lag, numbers):
    chosen = choose(groups, 2, order, version=version, lag=lag)
    assert (None if chosen is None else [group.number for group in chosen]) == numbers


def test_a_group_that_is_stale_already_is_handed_out_to_be_counted():
    (chosen,) = choose([Some(0, 1, 1), Some(1, 0, 5)], 1, "finished", version=5, lag=1)
    assert chosen.number == 0


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
    resumed = ResumeState(iteration=1, policy_version=1, per_iteration=2, asked=asked)
    stream = GroupStream(Mock(), resumed, Mock(), TaskStatistics())
    assert [each.number for each in stream.asked()] == [3, 4]


REQUESTS = [TaskRequest(Task(name, "")) for name in "abc"]


def row(*versions):
    return [None if version is None else make_trajectory(policy_version=version) for version in versions]


def test_a_group_with_too_few_trajectories_is_dropped_where_not_so_few_were_asked_for():
    rows = [row(0, None, 0), row(None, 0, None), row(None, None, None)]
    selection = select_groups(REQUESTS, rows, min_group_size=2, oldest=0)
    assert [(group.task.id, len(group.trajectories)) for group in selection.groups] == [("a", 2)]
    assert (selection.too_small, selection.stale) == (2, 0)
    assert [group.task.id for group in selection.leftovers] == ["b"]
    assert len(select_groups(REQUESTS[:1], [row(0)], min_group_size=2, oldest=0).groups) == 1
    assert select_groups(REQUESTS[:1], [row(None)], min_group_size=2, oldest=0).too_small == 1


def test_a_stale_member_is_left_out_and_its_group_stays():
    members = row(5, 4, None, 6)
    selection = select_groups(REQUESTS[:1], [members], min_group_size=2, oldest=5)
    assert [group.trajectories for group in selection.groups] == [(members[0], members[3])]
    assert (selection.too_small, selection.stale, selection.stale_episodes) == (0, 0, 1)
    assert [group.trajectories for group in selection.leftovers] == [(members[1],)]


def test_what_is_left_out_is_counted_and_carried_along_with_its_task():
    rows = [row(6, 5), row(None, 5), row(4, 5)]  # whole, too small, stale
    selection = select_groups(REQUESTS, rows, min_group_size=2, oldest=5)
    assert [group.task.id for group in selection.groups] == ["a"]
    assert (selection.too_small, selection.stale, selection.stale_episodes) == (1, 1, 1)
    left = [(group.task.id, group.trajectories) for group in selection.leftovers]
    assert left == [("b", (rows[1][1],)), ("c", tuple(rows[2]))]


def test_metrics_by_hand():
    meter = Meter(
        steps=10, tokens=40, env_s=6.0, generate_s=3.0, retried=2, dropped=1, resumed=4, started=5.0, ended=7.0
    )
    selection = select_groups(REQUESTS, [row(5, 5), row(4, 5), row(None, None)], min_group_size=2, oldest=5)
    metrics = rollout_metrics(selection, meter, policy_version=6, elapsed_s=2.0)
    assert metrics == pytest.approx(
        {
            "rollout/episodes": 2,
            "rollout/env_steps": 4,  # two trajectories of two steps
            "rollout/action_tokens": 8,  # of two tokens each
            "rollout/lag_mean": 1,  # every step in the batch is of version 5
            "rollout/lag_max": 1,
            "rollout/resumed_episodes": 4,
            "rollout/retried_episodes": 2,
            "rollout/dropped_episodes": 1,
            "rollout/dropped_groups": 1,
            "rollout/stale_groups": 1,
            "rollout/stale_episodes": 1,
            "time/rollout": 2,
            "time/generate": 3,
            "time/env": 6,
            "env/steps_per_s": 5,  # 10 / 2
            "engine/tokens_per_s": 20,  # 40 / 2
        }
    )


def test_the_lag_is_of_steps_and_not_of_trajectories():
    short, long = make_trajectory(policy_version=5, steps=1), make_trajectory(policy_version=7, steps=3)
    selection = select_groups(REQUESTS[:1], [[short, long]], min_group_size=2, oldest=5)
    metrics = rollout_metrics(selection, Meter(), policy_version=7, elapsed_s=1.0)
    assert (metrics["rollout/lag_mean"], metrics["rollout/lag_max"]) == (0.5, 2)  # one step of lag 2, three of lag 0


def test_what_environments_did_in_a_window_of_time_by_hand():
    before = Window({"env/busy_s": 10.0, "env/reset_s": 1.0, "env/step_s": 2.0}, at=100.0)
    counters = {"env/busy_s": 34.0, "env/reset_s": 3.0, "env/step_s": 6.0, "env/evaluate_s": 4.0, "env/lost": 1.0}
    grown = Window(counters, at=110.0).since(before, environments=4)
    assert grown == pytest.approx(
        {
            "env/busy_s": 24,
            "env/reset_s": 2,
            "env/step_s": 4,
            "env/evaluate_s": 4,  # a counter that was not there started at zero
            "env/lost": 1,
            "env/leased": 0.6,  # 24 / (4 · 10)
            "env/acting": 0.25,  # (2 + 4 + 4) / 40
        }
    )
