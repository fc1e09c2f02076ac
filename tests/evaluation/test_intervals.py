"""Means over seeds: the numbers were computed by hand."""

import pytest
from scipy import stats

from arpo.evaluation.intervals import (
    Difference,
    Interval,
    Spread,
    difference,
    holm,
    spread,
    t_interval,
    welch_interval,
)


def test_the_t_interval_of_five_values_is_the_one_computed_by_hand():
    # mean 0.10; deviations 0, 0.1, -0.1, 0, 0: s = sqrt(0.02 / 4) = 0.0707107; s / sqrt(5) = 0.0316228
    # t(0.975, 4) = 2.7764451: half = 0.0877990
    interval = t_interval([0.10, 0.20, 0.00, 0.10, 0.10])
    assert interval.mean == pytest.approx(0.10)
    assert interval.low == pytest.approx(0.0122010, abs=1e-6)
    assert interval.high == pytest.approx(0.1877990, abs=1e-6)


def test_the_spread_is_the_sample_standard_deviation_and_one_value_has_none_and_no_interval():
    found = spread([0.1, 0.2, 0.3])
    assert found.count == 3
    assert found.deviation == pytest.approx(0.1)  # sqrt((0.01 + 0 + 0.01) / 2)
    assert spread([0.3]) == Spread(1, None, Interval(0.3, None, None))
    assert welch_interval([0.25], [0.5, 0.75]) == Interval(0.375, None, None)


def test_a_difference_is_paired_by_seed_and_leaves_out_seeds_of_one_arm():
    found = difference({0: 0.1, 1: 0.7, 2: 0.3}, {1: 0.9, 0: 0.2, 5: 0.0})
    assert found.seeds == (0, 1)
    assert found.values == pytest.approx((0.1, 0.2))
    # mean 0.15, s = 0.0707107, s / sqrt(2) = 0.05, t(0.975, 1) = 12.7062: half = 0.6353102
    assert found.interval.low == pytest.approx(0.15 - 0.6353102, abs=1e-6)


def test_arms_that_share_no_seed_are_compared_by_welch():
    # means 0.2 and 0.5; variances 0.01 of 3 and 0.02 of 2 values: se^2 = 0.01/3 + 0.02/2 = 0.0133333, se = 0.1154701
    # Satterthwaite: 0.0133333^2 / (0.0033333^2 / 2 + 0.01^2 / 1) = 1.6842105 degrees of freedom
    half = stats.t.ppf(0.975, 1.6842105) * 0.1154701
    found = difference({0: 0.1, 1: 0.2, 2: 0.3}, {3: 0.4, 4: 0.6})
    assert (found.seeds, found.values) == ((), ())
    assert found.interval.mean == pytest.approx(0.3)
    assert found.interval.low == pytest.approx(0.3 - half, abs=1e-6)
    assert found.interval.high == pytest.approx(0.3 + half, abs=1e-6)


@pytest.mark.filterwarnings("error")
def test_equal_values_on_both_sides_have_an_interval_without_a_width():
    assert welch_interval([0.25, 0.25], [0.5, 0.5]) == Interval(0.25, 0.25, 0.25)
    assert difference({0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.5}) == Difference((0, 1), (0.0, 0.0), Interval(0, 0, 0), 1.0)
    assert difference({0: 0.5, 1: 0.5}, {0: 0.75, 1: 0.75}).p_value == 0.0
    assert difference({0: 0.5, 1: 0.5}, {2: 0.5, 3: 0.5}).p_value == 1.0


def test_the_p_value_of_a_difference_is_that_of_student_s_test():
    # gains 0.1, 0.2, 0.3: t = 0.2 / (0.1 / sqrt(3)), t^2 = 12; of 2 degrees of freedom p = 1 - t / sqrt(t^2 + 2)
    found = difference({0: 0.1, 1: 0.1, 2: 0.1}, {0: 0.2, 1: 0.3, 2: 0.4})
    assert found.p_value == pytest.approx(1 - (12 / 14) ** 0.5)
    # means 0.15 and 0.45, both variances 0.005 of 2 values: se^2 = 0.005, t^2 = 18, Satterthwaite's degrees are 2
    assert difference({0: 0.1, 1: 0.2}, {2: 0.4, 3: 0.5}).p_value == pytest.approx(1 - (18 / 20) ** 0.5)
    assert difference({0: 0.1}, {0: 0.2}).p_value == 1.0
    assert difference({0: 0.1}, {1: 0.2, 2: 0.3}).p_value == 1.0
    assert difference({}, {0: 0.5}) is difference({0: 0.5}, {}) is None


def test_holm_weighs_the_smallest_p_value_by_all_and_never_falls():
    # 4 * 0.005, 3 * 0.01, 2 * 0.03; 1 * 0.04 would lie below the one before it
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([]) == []
