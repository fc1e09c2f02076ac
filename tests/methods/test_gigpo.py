"""GiGPO's credit and ComputerRL's, against numbers computed by hand."""

from dataclasses import replace

import pytest

from arpo.methods.computer_rl import ComputerRL
from arpo.methods.gigpo import GiGPO
from tests.methods.conftest import trajectory


def test_golden_credit(make_group):
    # Rewards 1 and 0 over four steps: mean .5, A_episode +.5 and -.5. Returns [.95, 1] and [0, 0].
    # Screen s0 was seen with .95, 0, 0: mean .316667; s1 once.
    group = make_group(trajectory(["s0", "s1"], 1.0, lengths=(2, 1)), trajectory(["s0", "s0"], 0.0))
    ((good, bad),) = GiGPO().credits([group])
    assert good.advantages.tolist() == pytest.approx([1.133333, 1.133333, 0.5], abs=1e-6)
    assert bad.advantages.tolist() == pytest.approx([-0.816667, -0.816667], abs=1e-6)


@pytest.mark.parametrize(("std", "deviation"), [("none", 1.0), ("population", 0.5), ("sample", 0.5**0.5)])
def test_the_advantage_of_a_trajectory_may_be_over_trajectories_as_in_the_paper(make_group, std, deviation):
    # rewards 1 and 0, whatever their lengths: mean 1/2, deviation 1/2, of a sample sqrt(1/2)
    group = make_group(trajectory("abc", 1.0), trajectory("a", 0.0))
    ((good, bad),) = GiGPO(step_weight=0.0, episode_mean="trajectories", std=std).credits([group])
    assert good.advantages.tolist() == pytest.approx([0.5 / deviation] * 3, abs=1e-5)
    assert bad.advantages.tolist() == pytest.approx([-0.5 / deviation], abs=1e-5)


def test_without_weight_a_step_has_the_advantage_of_its_trajectory_over_all_steps(make_group):
    # rewards 1, 1, 1, 0: mean 3/4, deviation sqrt(3)/4
    group = make_group(trajectory("abc", 1.0), trajectory("a", 0.0))
    ((good, bad),) = GiGPO(step_weight=0.0, std="population").credits([group])
    assert good.advantages.tolist() == pytest.approx([3**-0.5] * 3, abs=1e-5)
    assert bad.advantages.tolist() == pytest.approx([-(3**0.5)], abs=1e-5)


def test_the_rewards_of_steps_count_in_the_returns_of_steps_and_of_the_episode(make_group):
    earns = trajectory("ab", 0.0)
    earns = replace(earns, steps=(replace(earns.steps[0], reward=1), earns.steps[1]))
    ((one, other),) = GiGPO(discount=0.5).credits([make_group(earns, trajectory("ab", 0.0))])
    # Episodes earn 1 and 0: +.5 and -.5. Screen a was seen with returns 1 and 0, screen b with 0 and 0.
    assert one.advantages.tolist() == [1.0, 0.5]
    assert other.advantages.tolist() == [-1.0, -0.5]


def test_a_screen_of_another_group_is_another_screen(make_group):
    groups = [make_group(trajectory("a", reward), trajectory("b", reward)) for reward in (1.0, 0.0)]
    for credits in GiGPO().credits(groups):
        assert [credit.advantages.tolist() for credit in credits] == [[0.0], [0.0]]


def test_without_a_future_a_step_returns_what_it_earned_itself(make_group):
    group = make_group(trajectory("ab", 1.0), trajectory("ab", 0.0))
    ((one, other),) = GiGPO(discount=0.0).credits([group])
    # Episodes: +.5 and -.5. Screen a was seen with returns 0 and 0, screen b with 1 and 0.
    assert one.advantages.tolist() == [0.5, 1.0]
    assert other.advantages.tolist() == [-0.5, -1.0]


def test_golden_credit_of_a_success_of_two_steps_among_eight(make_group):
    group = make_group(trajectory("ab", 1.0, lengths=(2, 1)), trajectory("abc", 0.0), trajectory("abc", 0.0))
    ((good, *bad),) = ComputerRL().credits([group])
    assert good.advantages.tolist() == pytest.approx([1.6201816] * 3, abs=1e-6)
    for credit in bad:
        assert credit.advantages.tolist() == pytest.approx([-0.5400605] * 3, abs=1e-6)


def test_a_step_that_does_not_parse_earns_nothing_in_a_success(make_group):
    good = trajectory("abc", 1.0)
    garbled = replace(good.steps[1], parse_error="bad_box")
    good = replace(good, steps=(good.steps[0], garbled, good.steps[2]), format_reward=-1.0)
    ((credit, _),) = ComputerRL(std="none").credits([make_group(good, trajectory("a", 0.0))])
    assert credit.advantages.tolist() == [0.5, -0.5, 0.5]


def test_a_partial_credit_counts_as_much_as_it_is_and_the_deviation_is_the_one_asked_for(make_group):
    group = make_group(trajectory("a", 0.4), trajectory("a", 0.2))
    ((one, other),) = ComputerRL(std="none").credits([group])
    assert (one.advantages.item(), other.advantages.item()) == pytest.approx((0.1, -0.1))
    # deviation 0.1 of two, and 0.1 * sqrt(2) of a sample
    assert ComputerRL(std="population").credits([group])[0][0].advantages.item() == pytest.approx(1.0, abs=1e-4)
    assert ComputerRL(std="sample").credits([group])[0][0].advantages.item() == pytest.approx(0.5**0.5, abs=1e-4)
    for credit in ComputerRL().credits([make_group(trajectory("ab", 1.0), trajectory("a", 1.0))])[0]:
        assert not credit.advantages.any()  # of one verdict alone there is nothing to learn
