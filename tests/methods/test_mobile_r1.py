"""Mobile-R1's action-level GRPO, which is configuration alone: numbers by hand of what its YAML file composes."""

import pytest

from arpo.agent.matching import Match
from arpo.run.build import build, compose
from tests.methods.test_ui_s1 import played


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
