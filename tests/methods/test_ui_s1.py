"""UI-S1's credit of steps, and Mobile-R1's, which is configuration alone, by numbers computed by hand."""

from dataclasses import replace

import pytest
import torch

from arpo.agent.matching import Match
from arpo.methods.ui_s1 import UIS1
from arpo.run.build import build, compose
from tests.methods.conftest import trajectory

WRONG = "Action: wait()"


def played(rewards, matches=(), *, lengths=(), parsed=True, task_reward=0.0):
    """An episode whose steps have these rewards; where a step does not match, an expert has patched it."""
    made = trajectory("a" * len(rewards), task_reward, lengths=lengths)
    rows = zip(made.steps, rewards, matches or [True] * len(rewards), strict=True)
    steps = [replace(step, reward=reward, patch="" if match else WRONG) for step, reward, match in rows]
    if not parsed:
        steps[-1] = replace(steps[-1], parse_error="no_action")
    return replace(made, steps=tuple(steps), format_reward=0.0 if parsed else -1.0)


@pytest.mark.parametrize(
    ("rewards", "matches", "returns"),
    [
        ([1, 1, 1], [True, True, True], [1.75, 1.5, 1.0]),
        ([1, 0.55, 1], [True, False, True], [1.0, 0.55, 1.0]),
        ([1, 0.55], [True, False], [1.0, 0.55]),
        ([0.19, 1, 1], [False, True, True], [0.19, 1.5, 1.0]),
        ([0.55], [False], [0.55]),
        ([1, 0], None, [1.0, 0.0]),  # the last one did not parse: it matches nothing
        ([1, 1], None, [1.0, 1.0]),  # whatever its reward is
    ],
)
def test_golden_returns(rewards, matches, returns):
    made = played(rewards, matches or (), parsed=matches is not None)
    assert UIS1().returns(made).tolist() == pytest.approx(returns)


def test_golden_credit_of_steps_and_episodes(make_group):
    # r over all three steps: 1, 1, .55: mean .85, sample deviation .259808: +.57735, +.57735, -1.154701.
    # R at step 0: 1.5 and .55: +-.707107; at step 1 there was no other: 0.
    group = make_group(played([1, 1], lengths=(2, 1)), played([0.55], [False]))
    ((good, bad),) = UIS1().credits([group])
    assert good.advantages.tolist() == pytest.approx([1.284457, 1.284457, 0.57735], abs=1e-5)
    assert bad.advantages.tolist() == pytest.approx([-1.861808], abs=1e-5)
    ((good, bad),) = UIS1(episode_weight=0.0, step_weight=2.0).credits([group])
    assert good.advantages.tolist() == pytest.approx([1.414214, 1.414214, 0.0], abs=1e-5)
    assert bad.advantages.tolist() == pytest.approx([-1.414214], abs=1e-5)


def test_the_task_reward_and_the_format_reward_have_no_part_in_it(make_group):
    group = make_group(played([1, 1]), played([0.55], [False]))
    other = make_group(played([1, 1], task_reward=1.0), replace(played([0.55], [False]), format_reward=-1.0))
    for one, same in zip(UIS1().credits([group])[0], UIS1().credits([other])[0], strict=True):
        assert torch.equal(one.advantages, same.advantages)


def test_a_group_whose_first_returns_are_alike_teaches_nothing(make_group):
    # returns of the first steps 1 and .4: their population deviation is .3, of a sample .42
    group = make_group(played([1]), played([0.4], [False]), played([1]), played([0.4], [False]))
    assert not any(credit.advantages.any() for credit in UIS1(least_spread=0.31).credits([group])[0])
    assert all(credit.advantages.any() for credit in UIS1(least_spread=0.29).credits([group])[0])


def test_every_group_counts_where_nothing_is_asked_of_the_first_step(make_group):
    group = make_group(played([1, 1], [True, True]), played([1, 0.55], [True, False]))
    same_start = UIS1(discount=0.0, least_spread=0.0)
    assert not any(credit.advantages.any() for credit in same_start.credits([group])[0])
    ((good, bad),) = UIS1(discount=0.0, least_spread=None, episode_weight=0.0).credits([group])
    assert good.advantages.tolist() == pytest.approx([0.0, 0.707107], abs=1e-5)
    assert bad.advantages.tolist() == pytest.approx([0.0, -0.707107], abs=1e-5)


@pytest.mark.parametrize("least_spread", [None, 0.0, 0.3])
def test_an_episode_alone_teaches_nothing_of_one_step(make_group, least_spread):
    assert UIS1(least_spread=least_spread).allows_single_episode_groups is False
    ((alone,),) = UIS1(least_spread=least_spread).credits([make_group(played([1]))])
    assert alone.advantages.tolist() == [0.0]


@pytest.fixture(scope="module")
def chosen():
    return compose("train", ["env=recorded", "tasks=recorded", "method=mobile_r1"])


def test_a_step_is_compared_with_its_like_alone_whatever_follows_and_however_alike_the_first_ones_are(
    chosen, make_group
):
    method = build(chosen.module.objective)
    # step 0: 2, 2; step 1: 2, 1, half of it apart from the mean and sqrt(1/2) of deviation
    group = make_group(played([2, 2, 2]), played([2, 1], [True, False]))
    ((good, bad),) = method.credits([group])
    assert good.advantages.tolist() == pytest.approx([0.0, 0.707106, 0.0], abs=1e-5)
    assert bad.advantages.tolist() == pytest.approx([0.0, -0.707106], abs=1e-5)


def test_the_reward_is_that_of_the_format_and_that_of_the_whole_action(chosen):
    score = build(chosen.env.make_env.score)
    agreements = [(True, True, True), (True, False, True), (False, False, False)]
    assert [score.of(Match(*parts)) for parts in agreements] == [2, 1, 1]
