import pytest
import torch

from arpo.algorithms.selection import entropy_threshold, step_entropies


def test_golden_threshold_keeps_eight_of_ten_steps() -> None:
    # H = .1 … 1.0: the .2 quantile lies .2 · 9 = 1.8 places up, at .2 + .8 · .1 = .28
    entropies = torch.arange(1, 11).float() / 10
    threshold = entropy_threshold(entropies, keep_fraction=0.8)
    assert threshold.item() == pytest.approx(0.28, abs=1e-6)
    assert (entropies >= threshold).tolist() == [False, False] + [True] * 8


def test_a_step_has_the_mean_entropy_of_its_tokens() -> None:
    # (.3 + .3 + .3) / 3 and .5: a long step does not win by its length
    entropies = torch.tensor([0.3, 0.3, 0.3, 0.5])
    torch.testing.assert_close(step_entropies(entropies, (3, 1)), torch.tensor([0.3, 0.5]))
    torch.testing.assert_close(step_entropies(entropies, (1, 0, 3)), torch.tensor([0.3, 0.0, 1.1 / 3]))


def test_keeping_everything_asks_for_no_more_than_the_least() -> None:
    entropies = torch.tensor([0.4, 0.1, 0.9])
    assert entropy_threshold(entropies, keep_fraction=1.0).item() == pytest.approx(0.1)


@pytest.mark.parametrize(("keep_fraction", "steps"), [(0.7, 51), (0.4, 46), (0.4, 86)])
def test_a_threshold_that_falls_on_a_step_keeps_that_step(keep_fraction: float, steps: int) -> None:
    # .3 · 50 = 15, .6 · 45 = 27, .6 · 85 = 51: the quantile is one of the steps, here the last one without entropy
    left_out = round((1 - keep_fraction) * (steps - 1))
    entropies = torch.tensor([0.0] * (left_out + 1) + [1.0] * (steps - left_out - 1))
    assert entropy_threshold(entropies, keep_fraction=keep_fraction).item() == 0.0


def test_steps_that_tie_are_all_kept() -> None:
    entropies = torch.full((5,), 0.5)
    assert bool((entropies >= entropy_threshold(entropies, keep_fraction=0.2)).all())
