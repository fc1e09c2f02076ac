import logging
from itertools import pairwise

import pytest

from arpo.errors import ArpoError
from arpo.modules.optimizer import GradientGuard, rate_factor


@pytest.mark.parametrize(
    ("step", "warmup_steps", "factor"),
    [(0, 0, 1.0), (5, 0, 1.0), (0, 3, 0.25), (1, 3, 0.5), (2, 3, 0.75), (3, 3, 1.0), (100, 3, 1.0)],
)
def test_the_warm_up_rises_by_equal_steps_to_one(step, warmup_steps, factor):
    assert rate_factor(step, warmup_steps=warmup_steps) == factor


def test_the_first_step_never_has_rate_zero_as_it_has_in_the_official_code():
    factors = [rate_factor(step, warmup_steps=24) for step in range(30)]
    assert factors[0] == 1 / 25
    assert all(later >= earlier for earlier, later in pairwise(factors))


def test_the_decay_falls_by_equal_steps_and_leaves_the_last_step_a_rate():
    assert [rate_factor(step, warmup_steps=0, decay_steps=4) for step in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert rate_factor(1, warmup_steps=3, decay_steps=4) == 0.5 * 0.75


def test_bad_gradients_are_left_out_and_the_third_in_a_row_ends_the_run(caplog):
    guard = GradientGuard()
    with caplog.at_level(logging.WARNING):
        assert [guard.accepts(norm) for norm in (1.0, float("nan"), float("inf"))] == [True, False, False]
        assert guard.accepts(2.0)  # a good one between them starts the count again
        assert [guard.accepts(float("nan")) for _ in range(2)] == [False, False]
        with pytest.raises(ArpoError, match=r"3 times in a row.*smaller learning rate"):
            guard.accepts(float("-inf"))
    assert caplog.text.count("left out") == 5
