import math

import pytest
import torch

from arpo.algorithms.corrections import PUBLISHED, Correction
from arpo.algorithms.losses import ClipRange, MinibatchAverage, policy_loss
from arpo.errors import ConfigError
from tests.algorithms.fixture import ADVANTAGES, MASK, NEW, OLD, SAMPLER, assert_golden


def correction(name: str, *band: float) -> Correction:
    found = Correction.named(name, band or None)
    assert found is not None
    return found


# old - sampler: .2, 0, -.5 | 0, 1. Ratios 1.2214, 1, .6065 | 1, 2.7183; of the sequences exp(-.3) and e.
# Rows without a remark are those of verl 0.9.1, TRL 1.16.0 and DART's fork on this fixture.
@pytest.mark.parametrize(
    ("name", "band", "expected"),
    [
        ("tis_token", (), [[1.0, 1.0, 0.6065307], [1.0, 1.0, 0.0]]),
        ("tis_token", (0.0, 2.0), [[1.2214028, 1.0, 0.6065307], [1.0, 2.0, 0.0]]),
        ("tis_token", (0.7, 2.0), [[1.2214028, 1.0, 0.7], [1.0, 2.0, 0.0]]),  # from below as well, as OpenRLHF does
        ("tis_sequence", (), [[0.7408182] * 3, [2.0, 2.0, 0.0]]),
        ("icepop", (0.5, 1.5), [[1.2214028, 1.0, 0.6065307], [1.0, 0.0, 0.0]]),
        ("icepop", (0.7, 1.1), [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]),  # on both sides
        ("icepop", (), [[1.2214028, 1.0, 0.6065307], [1.0, 2.7182818, 0.0]]),  # .5 to 5
        ("sequence_mask", (), [[0.7408182] * 3, [2.7182818, 2.7182818, 0.0]]),  # e is below 3
        ("sequence_mask", (0.0, 2.0), [[0.7408182] * 3, [0.0, 0.0, 0.0]]),  # and above 2: the sequence goes whole
        ("sequence_mask", (0.8, 3.0), [[0.0] * 3, [2.7182818, 2.7182818, 0.0]]),
        ("decoupled", (), [[1.2214028, 1.0, 0.6065307], [1.0, 2.7182818, 0.0]]),
        ("decoupled", (0.0, 2.0), [[1.2214028, 1.0, 0.6065307], [1.0, 0.0, 0.0]]),
    ],
)
def test_golden_weights(name: str, band: tuple[float, ...], expected: list[list[float]]) -> None:
    assert_golden(correction(name, *band).weights(OLD, SAMPLER, MASK).weights, expected)


@pytest.mark.parametrize(
    ("name", "band", "expected"),
    [
        ("tis_token", (), [[True, False, False], [False, True, False]]),
        ("tis_sequence", (), [[False] * 3, [True, True, False]]),
        ("icepop", (0.7, 1.1), [[True, False, True], [False, True, False]]),
        ("sequence_mask", (), [[False] * 3, [False] * 3]),
    ],
)
def test_what_lies_outside_of_the_band_is_cut(name: str, band: tuple[float, ...], expected: list[list[bool]]) -> None:
    assert correction(name, *band).weights(OLD, SAMPLER, MASK).cut.tolist() == expected


@pytest.mark.parametrize(
    ("name", "band", "log_ratio", "cut"),
    [
        ("tis_token", (), 1e-6, False),  # as float32 rounds
        ("tis_token", (), 0.002, False),  # the largest gap of bfloat16 on-policy
        ("tis_token", (), 2**-7, False),  # neighbours in bfloat16
        ("tis_token", (), 0.02, True),
        ("tis_token", (0.0, 2.0), math.log(2) + 1e-6, False),
        ("tis_token", (0.5, 2.0), math.log(0.5) - 0.02, True),  # from below
        ("icepop", (0.5, 1.5), math.log(1.5) + 1e-3, True),  # masked: nothing of it is left
        ("icepop", (0.5, 1.5), 1e-3, False),
    ],
)
def test_what_rounding_alone_changes_is_not_cut(name, band, log_ratio, cut) -> None:
    found = correction(name, *band).weights(torch.tensor([[log_ratio]]), torch.zeros(1, 1), torch.tensor([[True]]))
    assert found.cut.item() is cut


def test_on_policy_nothing_is_cut_whatever_the_format() -> None:
    generator = torch.Generator().manual_seed(0)
    exact = -3 * torch.rand(1, 5000, generator=generator)
    for noise in (1e-6, 5e-4):  # the mean gaps that were measured in float32 and in bfloat16
        sampled = exact + noise * torch.randn(exact.shape, generator=generator)
        found = correction("tis_token").weights(exact, sampled, torch.ones_like(exact, dtype=torch.bool))
        assert not found.cut.any()
        assert found.weights.max() <= 1.0


def test_golden_loss_of_decoupled_ppo() -> None:
    """AReaL's: -mean of π_prox / π_behave · min(u A, clip(u) A) with u = π / π_prox (arXiv 2505.24298)."""
    losses = policy_loss(
        NEW,
        OLD,
        ADVANTAGES[:, None].expand(MASK.shape),
        MASK,
        clip=ClipRange(low=0.2, high=0.28),
        weights=correction("decoupled").weights(OLD, SAMPLER, MASK).weights,
    ).losses
    loss = MinibatchAverage("token", sequences=2.0, tokens=5.0)(losses, MASK)
    # A = 1: u = e^.4 clipped to 1.28, e^-.4 = .67032, 1, times 1.2214028, 1, .6065307: together 2.8402463
    # A = -1: -e^-.1 = -.9048374 and -e^.6 = -1.8221188, times 1 and e: together -5.8578698
    assert_golden(loss, -(2.8402463 - 5.8578698) / 5)


@pytest.mark.parametrize("name", PUBLISHED)
def test_programs_that_agree_get_weight_one_and_padding_gets_none(name: str) -> None:
    found = correction(name).weights(OLD, OLD, MASK)
    assert torch.equal(found.weights, MASK.float())
    assert not found.cut.any()


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_carry_no_gradient(name: str) -> None:
    old = OLD.clone().requires_grad_()
    assert not correction(name).weights(old, SAMPLER, MASK).weights.requires_grad


def test_weights_are_finite_when_the_engine_was_certain_of_something_else() -> None:
    found = correction("decoupled", 0.0, 1e30).weights(
        torch.tensor([[0.0]]), torch.tensor([[-1e4]]), torch.tensor([[True]])
    )
    assert found.weights.item() == pytest.approx(4.8517e8, rel=1e-4)  # e^20, the bound of the log-ratio


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_stands_in_the_padding_does_not_matter(name: str) -> None:
    sampler = SAMPLER.masked_fill(~MASK, torch.nan)
    found, expected = (correction(name).weights(OLD, rolled, MASK) for rolled in (sampler, SAMPLER))
    assert torch.equal(found.weights, expected.weights)
    assert torch.equal(found.cut, expected.cut)


def test_none_is_no_correction() -> None:
    assert Correction.named("none") is None


@pytest.mark.parametrize(
    ("name", "band", "words"),
    [
        ("tis", None, "correction must be one of none, tis_token, .*, got 'tis'"),
        ("icepop", [1.5, 2.0], r"0 <= low <= 1 <= high, got \[1.5, 2.0\]"),
        ("tis_token", [0.0, 0.5], r"0 <= low <= 1 <= high, got \[0.0, 0.5\]"),
        ("tis_token", [-0.5, 2.0], r"0 <= low <= 1 <= high, got \[-0.5, 2.0\]"),
        ("tis_token", [2.0], r"correction_band must be \[low, high\], got \[2.0\]"),
        ("none", [0.5, 2.0], "set correction too"),
        ("tis_token", [1.0, 1.0], r"correction_band=\[1.0, 1.0\] leaves no room around 1"),
        ("tis_sequence", [1.0, 1.0], "leaves no room around 1"),
        ("icepop", [0.5, 1.0], r"a mask that ends at 1 drops half"),
        ("sequence_mask", [1.0, 3.0], r"a mask that ends at 1 drops half"),
        ("icepop", [math.nan, 3.0], r"0 <= low <= 1 <= high, got \[nan, 3.0\]"),
    ],
)
def test_what_cannot_be_is_refused(name: str, band: list[float] | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Correction.named(name, band)
