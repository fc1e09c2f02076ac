"""Examples to learn from: what each kind takes, and who is paired with whom."""

import logging

import pytest

from arpo.datamodules.examples import every_episode, pairs, successes
from tests.rollout.trajectories import make_trajectory


def episodes(rewards, task_id="open", iteration=0):
    return [
        make_trajectory(f"{iteration}/0/{member}", task_id=task_id, task_reward=reward)
        for member, reward in enumerate(rewards)
    ]


def succeeds(trajectory):
    return trajectory.task_reward > 0.5


def ids(examples):
    return [tuple(trajectory.id for trajectory in example) for example in examples]


def test_successes_or_all_episodes_are_taken_alone_and_in_order():
    assert ids(successes(episodes([0.0, 1.0, 0.0, 1.0]), succeeds, 0)) == [("0/0/1",), ("0/0/3",)]
    assert ids(every_episode(episodes([0.0, 1.0]), succeeds, 0)) == [("0/0/0",), ("0/0/1",)]


def test_a_pair_is_a_success_and_a_failure_of_one_task_and_nobody_is_in_two():
    here, there = episodes([1.0, 0.0, 1.0, 0.0, 0.0]), episodes([0.0, 1.0], "close", iteration=1)
    made = pairs([*here, *there], succeeds, 0)
    assert len(made) == 3  # two successes of one task, one of the other
    for good, bad in made:
        assert good.task_id == bad.task_id
        assert succeeds(good)
        assert not succeeds(bad)
    flat = [trajectory.id for pair in made for trajectory in pair]
    assert len(set(flat)) == len(flat)


def test_who_has_no_partner_is_counted(caplog):
    all_failed, all_solved = episodes([0.0, 0.0], "never", 2), episodes([1.0], "always", 3)
    with caplog.at_level(logging.INFO):
        made = pairs([*episodes([1.0, 0.0, 0.0]), *all_failed, *all_solved], succeeds, 0)
    assert len(made) == 1
    # successes: 2, one of them in the pair; failures: 4, one of them in the pair
    assert "1 pairs of 3 tasks; 1 successes and 3 failures have no partner" in caplog.text


def test_pairs_follow_from_the_seed():
    made = [ids(pairs(episodes([1.0] * 8 + [0.0] * 8), succeeds, seed)) for seed in (0, 0, 1)]
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize("rewards", [[1.0] * 8 + [0.0] * 2, [1.0] * 2 + [0.0] * 8])
def test_who_is_left_over_follows_from_the_seed_and_not_from_the_order_of_the_episodes(rewards):
    taken = [{name for pair in ids(pairs(episodes(rewards), succeeds, seed)) for name in pair} for seed in (0, 1)]
    assert len(taken[0]) == len(taken[1]) == 4
    assert taken[0] != taken[1]


def test_the_pairs_of_a_task_do_not_depend_on_other_tasks():
    here = episodes([1.0] * 4 + [0.0] * 4)
    alone = ids(pairs(here, succeeds, 0))
    assert ids(pairs([*episodes([1.0, 0.0], "close", 1), *here], succeeds, 0))[1:] == alone
