"""ComputerRL's credit of steps, against numbers computed by hand."""

from dataclasses import replace

import pytest

from arpo.errors import ConfigError
from arpo.methods.computer_rl import ComputerRL
from tests.methods.conftest import trajectory


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


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_a_group_of_one_verdict_teaches_nothing(make_group, reward):
    for credit in ComputerRL().credits([make_group(trajectory("ab", reward), trajectory("a", reward))])[0]:
        assert not credit.advantages.any()


@pytest.mark.parametrize(
    ("options", "words"), [({"std": "both"}, "std"), ({"format_weight": 0.5}, "parse earns nothing")]
)
def test_an_impossible_choice_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        ComputerRL(**options)
