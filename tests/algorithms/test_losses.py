import itertools
import math
from typing import Any, NamedTuple

import pytest
import torch

from arpo.algorithms.corrections import PUBLISHED
from arpo.algorithms.kl import kl_divergence
from arpo.algorithms.losses import (
    MAX_LOG_RATIO,
    MAX_SEQUENCE_LOG_RATIO,
    Aggregation,
    ClipRange,
    LossMetrics,
    MinibatchAverage,
    RatioLevel,
)
from arpo.algorithms.losses import policy_loss as token_losses
from arpo.algorithms.selection import entropy_threshold
from tests.algorithms.fixture import ADVANTAGES, ENTROPIES, MASK, NEW, OLD, SAMPLER, assert_golden

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


def policy_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    average: MinibatchAverage,
    **options: Any,
) -> Averaged:
    """The average of the losses of tokens whose advantages are those of their sequences, [batch]."""
    found = token_losses(logprobs, old_logprobs, advantages[:, None].expand(mask.shape), mask, **options)
    return Averaged(average(found.losses, mask), found.metrics)


def loss(aggregation: Aggregation, level: RatioLevel = "token", weights: torch.Tensor | None = None) -> torch.Tensor:
    return policy_loss(
        NEW, OLD, ADVANTAGES, MASK, average=average(aggregation), clip=CLIP, level=level, weights=weights
    ).loss


# verl 0.9.1 and TRL 1.16.0 on the fixture: clip 0.2 / 0.28, dual clip 3, constant length 3
GOLDEN = {
    "PPO": [-0.0446727, 0.1900191, -0.1116818, -0.0372273],
    "PPO + TIS": [0.0340211, 0.2555973, 0.0850528, 0.0283509],
    "GSPO": [-0.0863898, 0.1420127, -0.2159746, -0.0719915],
    "GSPO + TIS": [-0.0076960, 0.2075909, -0.0192399, -0.0064133],
    "PPO + 0.1 k3": [-0.0383502, 0.1965710, -0.0958755, -0.0319585],
    "PPO on the 80 % of highest entropy": [0.2113273, 0.4033524, 0.5283182, 0.1761061],
}


@pytest.mark.parametrize("column", range(4), ids=AGGREGATIONS)
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_values(name: str, column: int) -> None:
    aggregation = AGGREGATIONS[column]
    tis = PUBLISHED["tis_token"].weights(OLD, SAMPLER, MASK).weights
    match name:
        case "PPO":
            actual = loss(aggregation)
        case "PPO + TIS":
            actual = loss(aggregation, weights=tis)
        case "GSPO":
            actual = loss(aggregation, level="sequence")
        case "GSPO + TIS":
            actual = loss(aggregation, level="sequence", weights=tis)
        case "PPO + 0.1 k3":
            kl = kl_divergence(NEW, OLD, estimator="k3")
            actual = loss(aggregation) + 0.1 * average(aggregation)(kl, MASK)
        case _:
            kept = entropy_threshold(ENTROPIES[MASK], keep_fraction=0.8) <= ENTROPIES  # each token a step
            actual = loss(aggregation, weights=kept.float())
    assert_golden(actual, GOLDEN[name][column])


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


@pytest.mark.parametrize(("dual", "expected"), [(3.0, 3.0), (10.0, math.e**2), (None, math.e**2)])
def test_golden_dual_clip(dual: float | None, expected: float) -> None:
    # Ratio e² = 7.389, advantage -1: unbounded without a dual clip
    one = torch.tensor([[True]])
    output = policy_loss(
        torch.tensor([[0.0]]),
        torch.tensor([[-2.0]]),
        torch.tensor([-1.0]),
        one,
        average=average("token", one),
        clip=ClipRange(0.2, 0.28, dual=dual),
    )
    assert_golden(output.loss, expected)
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
    logprobs = torch.tensor([[log_ratio]], requires_grad=True)
    one = torch.tensor([[True]])
    output = policy_loss(
        logprobs,
        torch.tensor([[0.0]]),
        torch.tensor([advantage]),
        one,
        average=average("sequence", one),
        clip=ClipRange(low=0.2, high=0.3),
    )
    output.loss.backward()
    assert_golden(output.loss.detach(), expected)
    assert logprobs.grad is not None
    assert_golden(logprobs.grad, [[gradient]])
    fractions = {name: v for name, v in output.metrics.averages().items() if name.startswith("clip_fraction") and v}
    assert fractions == ({clipped: 1.0} if clipped else {})


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_at_ratio_one_the_gradient_is_the_policy_gradient(aggregation: Aggregation, level: RatioLevel) -> None:
    logprobs = OLD.clone().requires_grad_()
    policy_loss(
        logprobs, OLD, ADVANTAGES, MASK, average=average(aggregation), clip=ClipRange(), level=level
    ).loss.backward()
    reference = OLD.clone().requires_grad_()
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
    output = policy_loss(
        logprobs,
        OLD,
        torch.tensor([1.0, -1.0]),
        MASK,
        average=average(aggregation),
        clip=ClipRange(low=0.2, high=0.3),
        level="sequence",
        weights=weights,
    )
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
    logprobs = torch.full((1, 2), difference, requires_grad=True)
    mask = torch.tensor([[True, True]])
    output = policy_loss(
        logprobs,
        torch.zeros(1, 2),
        torch.tensor([-1.0]),
        mask,
        average=average("sequence", mask),
        clip=ClipRange(low=0.2, high=0.3),
        level="sequence",
    )
    output.loss.backward()
    # Above the bound e^10 = 22026.466; below, the clip: 1 - 0.2. Neither pulls at anything.
    expected = math.exp(MAX_SEQUENCE_LOG_RATIO) if difference > 0 else 0.8
    assert output.loss.item() == pytest.approx(expected, rel=1e-6)
    assert output.loss.item() < 22027
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[0.0, 0.0]]


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
    logprobs = torch.tensor([[0.0, -1.0]], requires_grad=True)
    mask = torch.tensor([[True, True]])
    old = torch.tensor([[-500.0, -1.1]])
    output = policy_loss(logprobs, old, torch.tensor([-1.0]), mask, average=average("token", mask), clip=ClipRange())
    output.loss.backward()
    assert output.metrics.averages()["ratio_max"] == pytest.approx(math.exp(MAX_LOG_RATIO))
    assert logprobs.grad is not None
    assert bool(torch.isfinite(logprobs.grad).all())


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


def test_weights_carry_no_gradient_into_the_loss() -> None:
    weights = MASK.float().requires_grad_()
    logprobs = NEW.clone().requires_grad_()
    policy_loss(logprobs, OLD, ADVANTAGES, MASK, average=average("token"), clip=CLIP, weights=weights).loss.backward()
    assert weights.grad is None


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


def test_metrics_hold_no_graph() -> None:
    output = policy_loss(NEW.clone().requires_grad_(), OLD, ADVANTAGES, MASK, average=average("token"), clip=CLIP)
    assert output.loss.requires_grad
    assert not output.metrics.ratio.requires_grad
    assert not output.metrics.approx_kl.requires_grad


@pytest.mark.parametrize(
    ("aggregation", "sequences", "tokens", "length", "message"),
    [
        ("token", 0.0, 0.0, None, "needs sequences and action tokens, got 0.0 sequences with 0.0 tokens"),
        ("token", 2.0, 0.0, None, "needs sequences and action tokens, got 2.0 sequences with 0.0 tokens"),
        ("dr_grpo", 1.0, 1.0, None, "length belongs to aggregation 'dr_grpo' alone, got 'dr_grpo', None"),
        ("token", 1.0, 1.0, 3, "length belongs to aggregation 'dr_grpo' alone, got 'token', 3"),
        ("dr_grpo", 1.0, 1.0, 0, "length must be at least 1, got 0"),
    ],
)
def test_averages_that_cannot_be_are_refused(
    aggregation: Aggregation, sequences: float, tokens: float, length: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        MinibatchAverage(aggregation, sequences, tokens, length)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"low": -0.1}, r"clip_low must lie in \[0, 1\], got -0.1"),
        ({"low": 1.2}, r"clip_low must lie in \[0, 1\], got 1.2"),
        ({"high": -0.1}, "clip_high must be at least 0 and finite, got -0.1"),
        ({"high": math.inf}, "clip_high must be at least 0 and finite, got inf"),
        ({"high": math.nan}, "clip_high must be at least 0 and finite, got nan"),
        ({"dual": math.nan}, r"dual_clip must be finite and above 1 \+ clip_high = 1.3, got nan"),
        ({"dual": 1.2}, r"dual_clip must be finite and above 1 \+ clip_high = 1.3, got 1.2"),
    ],
)
def test_clips_that_cannot_be_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClipRange(**arguments)


def test_unknown_names_are_refused(unchecked: None) -> None:
    with pytest.raises(ValueError, match="aggregation must be one of sequence, token, sequence_sum, dr_grpo"):
        average("mean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="level must be one of token, sequence, got 'step'"):
        loss("token", level="step")  # type: ignore[arg-type]


def test_each_token_has_the_loss_of_its_own_advantage() -> None:
    advantages = torch.tensor([[1.0, -2.0, 0.0], [0.5, -0.5, 9.0]])
    losses = token_losses(OLD, OLD, advantages, MASK, clip=CLIP).losses
    assert losses[MASK].tolist() == (-advantages)[MASK].tolist()  # at ratio 1
