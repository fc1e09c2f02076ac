"""Losses of tokens, their corrections, divergences and selections, by numbers from a hand or other programs."""

import itertools
import math
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arpo.algorithms.losses import (
    MAX_LOG_RATIO,
    MAX_SEQUENCE_LOG_RATIO,
    PUBLISHED,
    Aggregation,
    ClipRange,
    Correction,
    KLEstimator,
    LossMetrics,
    MinibatchAverage,
    RatioLevel,
    kl_divergence,
)
from arpo.algorithms.losses import policy_loss as token_losses
from arpo.modules.minibatch import entropy_threshold

# The fixture on which verl 0.9.1, TRL 1.16.0 and DART's fork were run to give the golden values.
OLD = torch.tensor([[-1.0, -0.5, -2.0], [-0.2, -1.5, -0.7]])
NEW = torch.tensor([[-0.6, -0.9, -2.0], [-0.3, -0.9, -1.9]])
SAMPLER = torch.tensor([[-1.2, -0.5, -1.5], [-0.2, -2.5, -0.7]])
MASK = torch.tensor([[True, True, True], [True, True, False]])
ADVANTAGES = torch.tensor([1.0, -1.0])
ENTROPIES = torch.tensor([[0.1, 0.9, 0.5], [0.2, 0.8, 0.0]])


def assert_golden(actual: torch.Tensor, expected: list[list[float]] | list[float] | float) -> None:
    """Compare to 1e-6 absolute, the precision to which the golden values are written."""
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), atol=1e-6, rtol=0)


AGGREGATIONS: list[Aggregation] = ["token", "sequence", "sequence_sum", "dr_grpo"]
CLIP = ClipRange(low=0.2, high=0.28, dual=3.0)


def average(aggregation: Aggregation, mask: torch.Tensor = MASK, length: int = 3, ranks: int = 1) -> MinibatchAverage:
    return MinibatchAverage(
        aggregation,
        sequences=len(mask) / ranks,
        tokens=mask.sum().item() / ranks,
        length=length if aggregation == "dr_grpo" else None,
    )


class Averaged(NamedTuple):
    """The loss of a micro-batch."""

    loss: torch.Tensor
    metrics: LossMetrics


def policy_loss(logprobs, old_logprobs, advantages, mask, *, average: MinibatchAverage, **options: Any) -> Averaged:
    """The average of the losses of tokens whose advantages are those of their sequences, [batch]."""
    found = token_losses(logprobs, old_logprobs, advantages[:, None].expand(mask.shape), mask, **options)
    return Averaged(average(found.losses, mask), found.metrics)


def one_sequence(logprobs, old, advantage: float, **options: Any) -> tuple[Averaged, torch.Tensor]:
    """The loss of one sequence whose tokens all count, and its gradient."""
    logprobs = torch.tensor([logprobs], requires_grad=True)
    mask = torch.ones_like(logprobs, dtype=torch.bool)
    output = policy_loss(
        logprobs, torch.tensor([old]), torch.tensor([advantage]), mask, average=average("token", mask), **options
    )
    output.loss.backward()
    assert logprobs.grad is not None
    return output, logprobs.grad


def loss(aggregation: Aggregation, level: RatioLevel = "token", weights: torch.Tensor | None = None) -> torch.Tensor:
    options = {"clip": CLIP, "level": level, "weights": weights}
    return policy_loss(NEW, OLD, ADVANTAGES, MASK, average=average(aggregation), **options).loss


TIS = PUBLISHED["tis_token"].weights(OLD, SAMPLER, MASK).weights
MOST_UNDECIDED = (entropy_threshold(ENTROPIES[MASK], keep_fraction=0.8) <= ENTROPIES).float()  # each token a step
K3_TERM = 0.1 * kl_divergence(NEW, OLD, estimator="k3")


# verl 0.9.1 and TRL 1.16.0 on the fixture: clip 0.2 / 0.28, dual clip 3, constant length 3
@pytest.mark.parametrize("column", range(4), ids=AGGREGATIONS)
@pytest.mark.parametrize(
    ("options", "term", "golden"),
    [
        ({}, None, [-0.0446727, 0.1900191, -0.1116818, -0.0372273]),  # PPO
        ({"weights": TIS}, None, [0.0340211, 0.2555973, 0.0850528, 0.0283509]),
        ({"level": "sequence"}, None, [-0.0863898, 0.1420127, -0.2159746, -0.0719915]),  # GSPO
        ({"level": "sequence", "weights": TIS}, None, [-0.0076960, 0.2075909, -0.0192399, -0.0064133]),
        ({}, K3_TERM, [-0.0383502, 0.1965710, -0.0958755, -0.0319585]),
        ({"weights": MOST_UNDECIDED}, None, [0.2113273, 0.4033524, 0.5283182, 0.1761061]),
    ],
    ids=["PPO", "PPO + TIS", "GSPO", "GSPO + TIS", "PPO + 0.1 k3", "PPO on the 80 % of highest entropy"],
)
def test_golden_values(options, term, golden, column: int) -> None:
    aggregation = AGGREGATIONS[column]
    actual = loss(aggregation, **options) + (0 if term is None else average(aggregation)(term, MASK))
    assert_golden(actual, golden[column])


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token", 3.0),  # (1 + 2 + 3 + 4 + 5) / 5
        ("sequence", 3.25),  # (6/3 + 9/2) / 2
        ("sequence_sum", 7.5),  # (6 + 9) / 2
        ("dr_grpo", 2.5),  # (6 + 9) / (2 · 3)
    ],
)
def test_golden_averages(aggregation: Aggregation, expected: float) -> None:
    assert_golden(average(aggregation)(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, torch.nan]]), MASK), expected)


@pytest.mark.parametrize(
    ("tokens", "episodes", "expected"),
    [
        ([5.0, 5.0], 1.0, 3.0),  # one episode of both rows: 15 / 5
        ([3.0, 2.0], 2.0, 3.25),  # each row an episode: (6/3 + 9/2) / 2, which is `sequence`
        ([5.0, 4.0], 2.0, 1.725),  # the second has two tokens elsewhere: (6/5 + 9/4) / 2
        ([3.0, 2.0], 0.5, 13.0),  # of a pass of two episodes by four minibatches: 4 · 6.5 / 2
    ],
)
def test_golden_averages_over_episodes(tokens: list[float], episodes: float, expected: float) -> None:
    mean = MinibatchAverage("episode", sequences=2.0, tokens=5.0, episodes=episodes)
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, torch.nan]])
    assert_golden(mean(values, MASK, torch.tensor(tokens)), expected)


@given(st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=4).filter(any), st.data())
def test_episodes_weigh_alike_wherever_their_sequences_are(sizes: list[list[int]], data: st.DataObject) -> None:
    """Minibatches, ranks and micro-batches that get each sequence by chance: their mean is the plain formula's."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    losses = [[torch.randn(size, generator=generator, dtype=torch.float64) for size in row] for row in sizes]
    there = [torch.cat(episode) for episode in losses if episode]
    plain = sum(episode.mean() for episode in there) / len(there)

    minibatches, ranks = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    mean = MinibatchAverage("episode", sequences=1.0, tokens=1.0, episodes=len(there) / minibatches / ranks)
    places = st.tuples(st.integers(1, minibatches), st.integers(1, ranks), st.integers(1, 2))
    batches: dict[tuple[int, int, int], list[tuple[torch.Tensor, int]]] = {}
    for episode in losses:
        for row in episode:
            batches.setdefault(data.draw(places), []).append((row, sum(map(len, episode))))
    found = torch.zeros((), dtype=torch.float64)
    for rows in batches.values():
        values = torch.nn.utils.rnn.pad_sequence([row for row, _ in rows], batch_first=True, padding_value=torch.nan)
        found += mean(values, ~values.isnan(), torch.tensor([tokens for _, tokens in rows], dtype=torch.float64))
    torch.testing.assert_close(found / minibatches / ranks, plain)


@pytest.mark.parametrize(("dual", "expected"), [(3.0, 3.0), (10.0, math.e**2), (None, math.e**2)])
def test_golden_dual_clip(dual: float | None, expected: float) -> None:
    # Ratio e² = 7.389, advantage -1: unbounded without a dual clip
    output, _ = one_sequence([0.0], [-2.0], -1.0, clip=ClipRange(0.2, 0.28, dual=dual))
    assert_golden(output.loss.detach(), expected)
    assert output.metrics.averages()["clip_fraction_dual"] == (1.0 if dual == 3.0 else 0.0)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "expected", "gradient", "clipped"),
    [
        # low 0.2, high 0.3: [0.8, 1.3]
        (math.log(1.5), 1.0, -1.3, 0.0, "clip_fraction_high"),
        (math.log(0.5), 1.0, -0.5, -0.5, None),
        (math.log(0.5), -1.0, 0.8, 0.0, "clip_fraction_low"),
        (math.log(1.5), -1.0, 1.5, 1.5, None),
        (math.log(1.2), 2.0, -2.4, -2.4, None),
    ],
)
def test_the_clip_stops_only_what_went_too_far_in_its_direction(
    log_ratio: float, advantage: float, expected: float, gradient: float, clipped: str | None
) -> None:
    output, found = one_sequence([log_ratio], [0.0], advantage, clip=ClipRange(low=0.2, high=0.3))
    assert_golden(output.loss.detach(), expected)
    assert_golden(found, [[gradient]])
    fractions = {name: v for name, v in output.metrics.averages().items() if name.startswith("clip_fraction") and v}
    assert fractions == ({clipped: 1.0} if clipped else {})


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_at_ratio_one_the_gradient_is_the_policy_gradient(aggregation: Aggregation, level: RatioLevel) -> None:
    logprobs, reference = OLD.clone().requires_grad_(), OLD.clone().requires_grad_()
    options = {"average": average(aggregation), "clip": ClipRange(), "level": level}
    policy_loss(logprobs, OLD, ADVANTAGES, MASK, **options).loss.backward()
    average(aggregation)(-reference * ADVANTAGES[:, None], MASK).backward()
    torch.testing.assert_close(logprobs.grad, reference.grad)


@pytest.mark.parametrize(
    ("aggregation", "scales"),
    [
        ("token", (1 / 5, 1 / 5)),  # 5 tokens
        ("sequence", (1 / 6, 1 / 4)),  # 2 sequences of 3 and of 2 tokens
        ("sequence_sum", (1 / 2, 1 / 2)),
        ("dr_grpo", (1 / 6, 1 / 6)),  # 2 sequences times the constant length 3
    ],
)
def test_under_one_ratio_a_sequence_the_weight_of_a_token_weighs_its_own_gradient(
    aggregation: Aggregation, scales: tuple[float, float]
) -> None:
    logprobs = NEW.clone().requires_grad_()
    weights = torch.tensor([[0.0, 2.0, 0.5], [1.0, 0.0, 7.0]])  # the last one lies on padding
    options = {"clip": ClipRange(low=0.2, high=0.3), "level": "sequence", "weights": weights}
    output = policy_loss(logprobs, OLD, ADVANTAGES, MASK, average=average(aggregation), **options)
    output.loss.backward()
    # Log-ratios .4, -.4, 0 and -.1, .6: ratios s = e^0 = 1 and e^.25 = 1.284, and neither is clipped: 1 lies inside,
    # and at a negative advantage a ratio above 1 is not stopped.
    # Token (i, t) adds -w s A scale to the loss; d s / d log π = s, so its gradient is the same number.
    first, second = -1.0 * scales[0], math.exp(0.25) * scales[1]
    assert_golden(output.loss.detach(), 2.5 * first + second)
    assert logprobs.grad is not None
    assert_golden(logprobs.grad, [[0.0, 2 * first, 0.5 * first], [second, 0.0, 0.0]])
    assert logprobs.grad[0, 0] == logprobs.grad[1, 1] == 0.0  # exactly, at weight 0


@pytest.mark.parametrize("difference", [20.0, -20.0])
def test_the_ratio_of_a_sequence_is_bounded_at_ten(difference: float) -> None:
    # A negative advantage is not clipped: at log-ratio 20 the loss would be e^20 = 4.9e8.
    clip = ClipRange(low=0.2, high=0.3)
    output, gradient = one_sequence([difference] * 2, [0.0] * 2, -1.0, clip=clip, level="sequence")
    # Above the bound e^10 = 22026.466; below, the clip: 1 - 0.2. Neither pulls at anything.
    expected = math.exp(MAX_SEQUENCE_LOG_RATIO) if difference > 0 else 0.8
    assert output.loss.item() == pytest.approx(expected, rel=1e-6)
    assert output.loss.item() < 22027
    assert gradient.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_zero_advantages_give_a_gradient_of_exactly_zero(aggregation: Aggregation, level: RatioLevel) -> None:
    # One ratio would overflow if its logarithm was not bounded, and 0 · inf is NaN.
    logprobs = torch.tensor([[-0.6, 0.0, -2.0], [-0.3, -0.9, -1.9]], requires_grad=True)
    old = torch.tensor([[-0.9, -200.0, -2.0], [-0.3, -0.1, -1.9]])
    clip = ClipRange(dual=3.0)
    output = policy_loss(logprobs, old, torch.zeros(2), MASK, average=average(aggregation), clip=clip, level=level)
    output.loss.backward()
    assert output.loss.item() == 0.0
    assert logprobs.grad is not None
    assert torch.count_nonzero(logprobs.grad) == 0


def test_an_outlier_leaves_loss_and_gradient_finite() -> None:
    output, gradient = one_sequence([0.0, -1.0], [-500.0, -1.1], -1.0, clip=ClipRange())
    assert output.metrics.averages()["ratio_max"] == pytest.approx(math.exp(MAX_LOG_RATIO))
    assert bool(torch.isfinite(gradient).all())


def compute(rows: slice, mean: MinibatchAverage, level: RatioLevel, pad: int, new: torch.Tensor) -> Averaged:
    def padded(values: torch.Tensor, value: float) -> torch.Tensor:
        return torch.nn.functional.pad(values[rows], (0, pad), value=value)

    return policy_loss(
        padded(new, torch.nan),
        padded(OLD_LARGE, 0.0),
        ADVANTAGES_LARGE[rows],
        padded(MASK_LARGE, False),
        average=mean,
        clip=CLIP,
        level=level,
        weights=padded(WEIGHTS_LARGE, torch.inf),
    )


_generator = torch.Generator().manual_seed(0)
OLD_LARGE = -torch.rand(6, 5, generator=_generator, dtype=torch.float64)
NEW_LARGE = OLD_LARGE + 0.6 * torch.randn(6, 5, generator=_generator, dtype=torch.float64)
WEIGHTS_LARGE = torch.rand(6, 5, generator=_generator, dtype=torch.float64)
ADVANTAGES_LARGE = torch.tensor([1.5, -0.5, 0.0, -1.0, 2.0, -0.1], dtype=torch.float64)
MASK_LARGE = torch.arange(5)[None] < torch.tensor([5, 1, 3, 2, 4, 5])[:, None]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("cuts", [[0, 6], [0, 3, 6], [0, 1, 2, 3, 4, 5, 6], [0, 5, 5, 6]])
def test_the_split_into_micro_batches_and_the_padding_do_not_matter(
    aggregation: Aggregation, level: RatioLevel, cuts: list[int]
) -> None:
    mean = average(aggregation, MASK_LARGE, length=7)
    whole = NEW_LARGE.clone().requires_grad_()
    reference = compute(slice(None), mean, level, 0, whole)
    reference.loss.backward()

    split = NEW_LARGE.clone().requires_grad_()
    parts = [
        compute(slice(start, stop), mean, level, pad, split)
        for pad, (start, stop) in enumerate(itertools.pairwise(cuts))
    ]
    for part in parts:
        part.loss.backward()  # accumulates, as the module does
    torch.testing.assert_close(sum(part.loss for part in parts), reference.loss)
    torch.testing.assert_close(split.grad, whole.grad)
    metrics = parts[0].metrics
    for part in parts[1:]:
        metrics += part.metrics
    assert metrics.averages() == pytest.approx(reference.metrics.averages())


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_ranks_that_average_their_gradients_get_the_gradient_of_one_rank(aggregation: Aggregation) -> None:
    one, two = average(aggregation, MASK_LARGE, length=5), average(aggregation, MASK_LARGE, length=5, ranks=2)
    single = compute(slice(None), one, "token", 0, NEW_LARGE).loss
    first, second = (compute(rows, two, "token", 0, NEW_LARGE).loss for rows in (slice(2), slice(2, 6)))
    torch.testing.assert_close((first + second) / 2, single)


def test_weights_carry_no_gradient_into_the_loss_and_metrics_hold_none() -> None:
    weights = MASK.float().requires_grad_()
    options = {"average": average("token"), "clip": CLIP, "weights": weights}
    output = policy_loss(NEW.clone().requires_grad_(), OLD, ADVANTAGES, MASK, **options)
    output.loss.backward()
    assert weights.grad is None
    assert not output.metrics.ratio.requires_grad
    assert not output.metrics.approx_kl.requires_grad


def test_metrics_of_the_fixture() -> None:
    metrics = policy_loss(NEW, OLD, ADVANTAGES, MASK, average=average("token"), clip=CLIP).metrics.averages()
    # Ratios e^.4, e^-.4, 1 with A = 1; e^-.1, e^.6 with A = -1: one of five above 1.28 where A > 0, none below .8
    # where A < 0
    ratios = [math.exp(d) for d in (0.4, -0.4, 0.0, -0.1, 0.6)]
    assert metrics == pytest.approx(
        {
            "ratio_mean": sum(ratios) / 5,
            "ratio_min": math.exp(-0.4),
            "ratio_max": math.exp(0.6),
            "approx_kl": (sum(ratios) - 5 - 0.5) / 5,  # ratio - 1 - log ratio
            "clip_fraction_low": 0.0,
            "clip_fraction_high": 0.2,
            "clip_fraction_dual": 0.0,
        }
    )


def test_each_token_has_the_loss_of_its_own_advantage() -> None:
    advantages = torch.tensor([[1.0, -2.0, 0.0], [0.5, -0.5, 9.0]])
    losses = token_losses(OLD, OLD, advantages, MASK, clip=CLIP).losses
    assert losses[MASK].tolist() == (-advantages)[MASK].tolist()  # at ratio 1


# --- the gap between sampler and trainer -----------------------------------------------------------------------------


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
def test_golden_weights_and_what_lies_outside_of_the_band_is_cut(name, band, expected) -> None:
    found = correction(name, *band).weights(OLD, SAMPLER, MASK)
    assert_golden(found.weights, expected)
    log_ratios = torch.where(MASK, OLD - SAMPLER, 0.0)
    ratios = (log_ratios.sum(1, keepdim=True).expand(2, 3) if "sequence" in name else log_ratios).exp()
    assert found.cut.tolist() == (MASK & ((found.weights - ratios).abs() > 1e-3)).tolist()


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


def test_golden_loss_of_decoupled_ppo() -> None:
    """AReaL's: -mean of π_prox / π_behave · min(u A, clip(u) A) with u = π / π_prox (arXiv 2505.24298)."""
    weights = correction("decoupled").weights(OLD, SAMPLER, MASK).weights
    found = policy_loss(
        NEW, OLD, ADVANTAGES, MASK, average=average("token"), clip=ClipRange(0.2, 0.28), weights=weights
    )
    # A = 1: u = e^.4 clipped to 1.28, e^-.4 = .67032, 1, times 1.2214028, 1, .6065307: together 2.8402463
    # A = -1: -e^-.1 = -.9048374 and -e^.6 = -1.8221188, times 1 and e: together -5.8578698
    assert_golden(found.loss, -(2.8402463 - 5.8578698) / 5)


@pytest.mark.parametrize("name", PUBLISHED)
def test_programs_that_agree_get_weight_one_without_gradient_and_padding_gets_none(name: str) -> None:
    found = correction(name).weights(OLD.clone().requires_grad_(), OLD, MASK)
    assert torch.equal(found.weights, MASK.float())
    assert not found.weights.requires_grad
    assert not found.cut.any()
    sampler = SAMPLER.masked_fill(~MASK, torch.nan)  # what stands in the padding does not matter
    found, expected = (correction(name).weights(OLD, rolled, MASK) for rolled in (sampler, SAMPLER))
    assert torch.equal(found.weights, expected.weights)
    assert torch.equal(found.cut, expected.cut)


def test_weights_are_finite_when_the_engine_was_certain_of_something_else() -> None:
    found = correction("decoupled", 0.0, 1e30).weights(
        torch.tensor([[0.0]]), torch.tensor([[-1e4]]), torch.tensor([[True]])
    )
    assert found.weights.item() == pytest.approx(4.8517e8, rel=1e-4)  # e^20, the bound of the log-ratio


# --- the divergence from a reference ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("estimator", "expected"), [("k1", 0.1), ("abs", 0.3), ("k2", 0.069), ("k3", 0.0632254)])
def test_golden_divergences(estimator: KLEstimator, expected: float) -> None:
    # d = new - old on the five action tokens: .4, -.4, 0, -.1, .6; k1: .5 / 5, abs: 1.5 / 5, k2: .69 / 2 / 5
    assert_golden(kl_divergence(NEW, OLD, estimator=estimator)[MASK].mean(), expected)


K3 = lambda d: min(math.expm1(min(-d, 90)) + d, 10.0)  # noqa: E731 - a formula beside the others
"""At most ten, where one token would add e^20 - 1 - 20 = 4.9e8."""


@pytest.mark.parametrize("difference", [-300.0, -90.0, -21.0, -2.0, 0.0, 2.0, 21.0, 90.0, 300.0])
@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        ("k1", lambda d: d, lambda _: 1.0),
        ("abs", abs, lambda d: math.copysign(1.0, d) if d else 0.0),
        ("k2", lambda d: d * d / 2, lambda d: d),
        # Bounded it is 0, and finite: that of infinity times 0 would be none.
        ("k3", K3, lambda d: 0.0 if K3(d) == 10 else 1 - math.exp(-d)),
    ],
)
def test_the_farther_the_policy_is_the_less_it_may_lose_its_way_back(estimator, difference, value, gradient) -> None:
    logprobs = torch.tensor([[difference - 301.0]], requires_grad=True)
    divergence = kl_divergence(logprobs, torch.tensor([[-301.0]]), estimator=estimator)
    divergence.sum().backward()
    assert divergence.item() == pytest.approx(value(difference))
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(gradient(difference))


@given(st.floats(-500, 0), st.floats(-500, 0))
def test_k3_is_finite_and_never_negative(logprob: float, reference: float) -> None:
    value = kl_divergence(torch.tensor([[logprob]]), torch.tensor([[reference]]), estimator="k3").item()
    assert 0 <= value < math.inf


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_as_a_loss_k2_has_the_gradient_of_the_kl_and_k3_that_of_the_other_direction(estimator: KLEstimator) -> None:
    logits = torch.tensor([[0.3, -0.4, 1.0]], requires_grad=True)
    policy, reference = logits.log_softmax(1), torch.tensor([[0.5, 0.2, 0.3]]).log()
    sampled = policy.exp().detach()  # every token, as often as the policy samples it
    (sampled * kl_divergence(policy, reference, estimator=estimator)).sum().backward(retain_graph=True)
    assert logits.grad is not None
    found = logits.grad.clone()
    logits.grad = None
    exact = {
        "k1": 0.0 * policy.sum(),
        "k2": (policy.exp() * (policy - reference)).sum(),  # KL(π ‖ π_ref)
        "k3": (reference.exp() * (reference - policy)).sum(),  # KL(π_ref ‖ π)
    }
    exact[estimator].backward()
    torch.testing.assert_close(found, logits.grad)


# --- the selection of steps ------------------------------------------------------------------------------------------


def test_golden_threshold_keeps_eight_of_ten_steps() -> None:
    # H = .1 … 1.0: the .2 quantile lies .2 · 9 = 1.8 places up, at .2 + .8 · .1 = .28
    entropies = torch.arange(1, 11).float() / 10
    threshold = entropy_threshold(entropies, keep_fraction=0.8)
    assert threshold.item() == pytest.approx(0.28, abs=1e-6)
    assert (entropies >= threshold).tolist() == [False, False] + [True] * 8


@pytest.mark.parametrize(("keep_fraction", "steps"), [(0.7, 51), (0.4, 46), (0.4, 86)])
def test_a_threshold_that_falls_on_a_step_keeps_that_step(keep_fraction: float, steps: int) -> None:
    # .3 · 50 = 15, .6 · 45 = 27, .6 · 85 = 51: the quantile is one of the steps, here the last one without entropy
    left_out = round((1 - keep_fraction) * (steps - 1))
    entropies = torch.tensor([0.0] * (left_out + 1) + [1.0] * (steps - left_out - 1))
    assert entropy_threshold(entropies, keep_fraction=keep_fraction).item() == 0.0


def test_steps_that_tie_are_all_kept_and_to_keep_all_asks_for_no_more_than_the_least() -> None:
    entropies = torch.full((5,), 0.5)
    assert bool((entropies >= entropy_threshold(entropies, keep_fraction=0.2)).all())
    assert entropy_threshold(torch.tensor([0.4, 0.1, 0.9]), keep_fraction=1.0).item() == pytest.approx(0.1)


# --- what is refused -------------------------------------------------------------------------------------------------


BAND = "0 <= low <= 1 <= high, got "


@pytest.mark.parametrize(
    ("make", "arguments", "sentence"),
    [
        (MinibatchAverage, ("token", 0.0, 1.0), "sequences must be above 0, got 0.0"),
        (MinibatchAverage, ("token", 2.0, 0.0), "tokens must be above 0, got 0.0"),
        (MinibatchAverage, ("dr_grpo", 1.0, 1.0, 0), "length must be at least 1, got 0"),
        (ClipRange, (0.0, 0.0), "leaves no ratio that counts but 1"),
        (ClipRange, (0.2, 0.3, math.nan), r"dual_clip must be finite and above 1 \+ clip_high = 1.3, got nan"),
        (ClipRange, (0.2, 0.3, 1.2), r"dual_clip must be finite and above 1 \+ clip_high = 1.3, got 1.2"),
        (Correction.named, ("icepop", [1.5, 2.0]), BAND + r"\[1.5, 2.0\]"),
        (Correction.named, ("tis_token", [0.0, 0.5]), BAND + r"\[0.0, 0.5\]"),
        (Correction.named, ("tis_token", [-0.5, 2.0]), BAND + r"\[-0.5, 2.0\]"),
        (Correction.named, ("icepop", [math.nan, 3.0]), BAND + r"\[nan, 3.0\]"),
        (Correction.named, ("tis_token", [2.0]), r"correction_band must be \[low, high\], got \[2.0\]"),
        (Correction.named, ("none", [0.5, 2.0]), "set correction too"),
        (Correction.named, ("tis_token", [1.0, 1.0]), r"correction_band=\[1.0, 1.0\] leaves no room around 1"),
        (Correction.named, ("icepop", [0.5, 1.0]), r"a mask that ends at 1 drops half"),
        (Correction.named, ("sequence_mask", [1.0, 3.0]), r"a mask that ends at 1 drops half"),
    ],
)
def test_what_cannot_be_is_refused(make, arguments, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        make(*arguments)


def test_without_a_correction_there_is_none() -> None:
    assert Correction.named("none") is None
