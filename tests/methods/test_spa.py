"""The shortest-path rewards of MobileRL, against the numbers of its formula."""

from dataclasses import replace

import pytest

from arpo.errors import ConfigError
from arpo.methods.grpo import GRPO
from arpo.methods.spa import ShortestPath
from tests.methods.conftest import trajectory


@pytest.mark.parametrize(
    ("shortening", "rewards"), [(1.0, [1.0, 0.5, 0.25]), (0.5, [1.0, 0.75, 0.625]), (0.0, [1.0] * 3)]
)
def test_golden_rewards_of_successes_of_5_10_and_20_steps(make_group, shortening, rewards):
    group = make_group(*(trajectory("a" * steps, 1.0) for steps in (5, 10, 20)))
    assert ShortestPath(shortening=shortening).rewards(group).tolist() == rewards


def test_a_failure_is_neither_the_shortest_nor_shortened(make_group):
    group = make_group(trajectory("a", 0.0), trajectory("aa", 1.0), trajectory("aaaa", 1.0), trajectory("a", 0.5))
    assert ShortestPath(shortening=1.0).rewards(group).tolist() == [0.0, 1.0, 0.5, 0.5]


def test_a_long_success_of_partial_credit_is_shortened_too_and_partial_failures_are_not(make_group):
    group = make_group(trajectory("aa", 1.0), trajectory("aaaa", 0.75))
    assert ShortestPath(shortening=1.0).rewards(group).tolist() == [1.0, 0.375]
    failed = make_group(trajectory("aa", 0.25), trajectory("aaaa", 0.25))
    assert ShortestPath(shortening=1.0).rewards(failed).tolist() == [0.25, 0.25]
    assert ShortestPath(shortening=1.0, success_threshold=0.2).rewards(failed).tolist() == [0.25, 0.125]


def test_what_the_parser_says_is_added_unshortened(make_group):
    lost = replace(trajectory("aaaa", 1.0), format_reward=-1.0)
    group = make_group(trajectory("aa", 1.0), lost)
    assert ShortestPath(shortening=1.0, format_weight=0.5).rewards(group).tolist() == [1.0, 0.0]


def test_a_group_that_succeeds_as_a_whole_learns_to_be_short_and_one_that_fails_learns_nothing(make_group):
    whole = make_group(trajectory("a", 1.0), trajectory("aa", 1.0))
    assert ShortestPath().advantages(whole).tolist() == pytest.approx([1.0, -1.0], abs=1e-4)
    assert GRPO().advantages(whole).tolist() == [0.0, 0.0]
    failed = make_group(trajectory("a", 0.0), trajectory("aa", 0.0))
    assert ShortestPath().advantages(failed).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("shortening", [-0.1, 1.1, float("nan")])
def test_an_impossible_number_is_refused(shortening):
    with pytest.raises(ConfigError, match="shortening must lie"):
        ShortestPath(shortening=shortening)
