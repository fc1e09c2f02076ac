import pytest
import torch

from arpo.algorithms.corrections import (
    CorrectionLevel,
    icepop_weights,
    off_policy_sequence_mask,
    truncated_importance_weights,
)
from tests.algorithms.fixture import ADVANTAGES, MASK, NEW, OLD, SAMPLER, assert_golden


@pytest.mark.parametrize(
    ("level", "cap", "expected"),
    [
        # old - sampler: .2, 0, -.5 | 0, 1
        ("token", 1.0, [[1.0, 1.0, 0.6065307], [1.0, 1.0, 0.0]]),
        ("token", 2.0, [[1.2214028, 1.0, 0.6065307], [1.0, 2.0, 0.0]]),
        # sums -.3 and 1: exp(-.3) and min(e, 2)
        ("sequence", 2.0, [[0.7408182] * 3, [2.0, 2.0, 0.0]]),
    ],
)
def test_golden_truncated_weights(level: CorrectionLevel, cap: float, expected: list[list[float]]) -> None:
    assert_golden(truncated_importance_weights(OLD, SAMPLER, MASK, level=level, cap=cap), expected)


def test_golden_icepop_weights() -> None:
    # e^1 = 2.72 lies above the band and is dropped, not bounded
    expected = [[1.2214028, 1.0, 0.6065307], [1.0, 0.0, 0.0]]
    assert_golden(icepop_weights(OLD, SAMPLER, MASK, low=0.5, high=1.5), expected)


def test_icepop_drops_on_both_sides() -> None:
    # .6065 lies below .7, e^.2 = 1.22 and e^1 above 1.1
    expected = [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    assert_golden(icepop_weights(OLD, SAMPLER, MASK, low=0.7, high=1.1), expected)


def test_golden_off_policy_mask() -> None:
    # Row 1 has A >= 0; row 2 has mean(sampler - new) = (.1 - 1.6) / 2 = -.75 < .1
    kept = off_policy_sequence_mask(ADVANTAGES, NEW, SAMPLER, MASK, threshold=0.1)
    assert torch.equal(kept, MASK)


def test_a_failure_that_the_policy_hardly_does_any_more_is_dropped_and_a_success_is_not() -> None:
    sampler = torch.tensor([[-0.5, -0.5], [-0.5, -0.5]])
    now = torch.tensor([[-2.5, -0.7], [-2.5, -0.7]])  # mean(sampler - now) = (2 + .2) / 2 = 1.1
    mask = torch.ones(2, 2, dtype=torch.bool)
    kept = off_policy_sequence_mask(torch.tensor([1.0, -1.0]), now, sampler, mask, threshold=1.0)
    assert kept.tolist() == [[True, True], [False, False]]


def test_programs_that_agree_get_weight_one_and_padding_gets_none() -> None:
    for weights in (
        truncated_importance_weights(OLD, OLD, MASK),
        truncated_importance_weights(OLD, OLD, MASK, level="sequence", cap=2.0),
        icepop_weights(OLD, OLD, MASK),
    ):
        assert torch.equal(weights, MASK.float())


def test_weights_carry_no_gradient() -> None:
    old = OLD.clone().requires_grad_()
    assert not truncated_importance_weights(old, SAMPLER, MASK).requires_grad
    assert not icepop_weights(old, SAMPLER, MASK).requires_grad


def test_weights_are_finite_when_the_engine_was_certain_of_something_else() -> None:
    weights = truncated_importance_weights(
        torch.tensor([[0.0]]), torch.tensor([[-1e4]]), torch.tensor([[True]]), cap=1e30
    )
    assert weights.item() == pytest.approx(4.8517e8, rel=1e-4)  # e^20, the bound of the log-ratio


def test_what_stands_in_the_padding_does_not_matter() -> None:
    sampler = SAMPLER.masked_fill(~MASK, torch.nan)
    assert torch.equal(
        truncated_importance_weights(OLD, sampler, MASK, level="sequence"),
        truncated_importance_weights(OLD, SAMPLER, MASK, level="sequence"),
    )


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="cap must be positive, got 0"):
        truncated_importance_weights(OLD, SAMPLER, MASK, cap=0.0)
    with pytest.raises(ValueError, match="the band must contain 1"):
        icepop_weights(OLD, SAMPLER, MASK, low=1.5, high=2.0)


def test_an_unknown_level_is_refused(unchecked: None) -> None:
    with pytest.raises(ValueError, match="level must be one of token, sequence, got 'step'"):
        truncated_importance_weights(OLD, SAMPLER, MASK, level="step")  # type: ignore[arg-type]
