import pytest
import torch

from arpo.algorithms.selection import high_entropy_steps, high_entropy_tokens
from tests.algorithms.fixture import ENTROPIES, MASK


def test_golden_token_mask() -> None:
    # The .2 quantile of .1 .2 .5 .8 .9 is .1 + .8 · .1 = .18
    kept = high_entropy_tokens(ENTROPIES, MASK, keep_fraction=0.8)
    assert kept.tolist() == [[False, True, True], [True, True, False]]


def test_golden_step_selection_keeps_eight_of_ten() -> None:
    # One token a step, H = .1 … 1.0: the .2 quantile is .28
    entropies = torch.arange(1, 11).float()[None] / 10
    mask = torch.ones(1, 10, dtype=torch.bool)
    kept = high_entropy_steps(entropies, mask, torch.arange(10)[None], keep_fraction=0.8)
    assert kept.tolist() == [[False, False] + [True] * 8]


def test_steps_of_all_trajectories_of_the_group_compete_and_stay_whole() -> None:
    # Step means: row 1: (0 + 1) / 2 = .5, .2; row 2: .1, (.9 + .7) / 2 = .8. Median (.2 + .5) / 2 = .35
    entropies = torch.tensor([[0.0, 1.0, 0.2], [0.1, 0.9, 0.7]])
    steps = torch.tensor([[0, 0, 1], [0, 1, 1]])
    mask = torch.ones(2, 3, dtype=torch.bool)
    kept = high_entropy_steps(entropies, mask, steps, keep_fraction=0.5)
    assert kept.tolist() == [[True, True, False], [False, True, True]]


def test_a_long_step_does_not_win_by_its_length() -> None:
    # Means .3 and .5, although the first sums to .9
    entropies = torch.tensor([[0.3, 0.3, 0.3, 0.5]])
    mask = torch.ones(1, 4, dtype=torch.bool)
    kept = high_entropy_steps(entropies, mask, torch.tensor([[0, 0, 0, 1]]), keep_fraction=0.5)
    assert kept.tolist() == [[False, False, False, True]]


def test_padding_takes_no_part() -> None:
    entropies = torch.tensor([[0.5, 0.4, torch.nan]])
    mask = torch.tensor([[True, True, False]])
    assert high_entropy_tokens(entropies, mask, keep_fraction=0.5).tolist() == [[True, False, False]]
    steps = torch.tensor([[0, 1, 99]])
    assert high_entropy_steps(entropies, mask, steps, keep_fraction=0.5).tolist() == [[True, False, False]]


def test_keeping_everything_gives_the_mask() -> None:
    assert torch.equal(high_entropy_tokens(ENTROPIES, MASK, keep_fraction=1.0), MASK)
    steps = torch.tensor([[0, 1, 1], [0, 1, 0]])
    assert torch.equal(high_entropy_steps(ENTROPIES, MASK, steps, keep_fraction=1.0), MASK)


def test_nothing_gives_nothing() -> None:
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    assert torch.equal(high_entropy_tokens(ENTROPIES, nothing, keep_fraction=0.8), nothing)


@pytest.mark.parametrize("keep_fraction", [0.0, -0.1, 1.1])
def test_a_fraction_outside_of_its_range_is_refused(keep_fraction: float) -> None:
    with pytest.raises(ValueError, match="keep_fraction must lie in"):
        high_entropy_tokens(ENTROPIES, MASK, keep_fraction=keep_fraction)
