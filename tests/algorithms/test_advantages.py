import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arpo.algorithms.advantages import Deviation, Estimator, group_advantages

ONE_OF_EIGHT = [1.0] + [0.0] * 7
ESTIMATORS: list[Estimator] = ["grpo", "dr_grpo", "rloo", "pass_at_k"]


def advantages(rewards: list[float], estimator: Estimator = "grpo", std: Deviation = "sample") -> torch.Tensor:
    return group_advantages(torch.tensor(rewards), estimator=estimator, std=std)


@pytest.mark.parametrize(
    ("rewards", "estimator", "std", "expected"),
    [
        # μ = 1/8, σ_sample = sqrt(7/8² · 8 / 7) = sqrt(1/8) = 0.3535534: 0.875 / σ, -0.125 / σ
        (ONE_OF_EIGHT, "grpo", "sample", [2.4748666] + [-0.3535524] * 7),
        # σ_population = sqrt(1/8 · 7/8) = 0.3307189
        (ONE_OF_EIGHT, "grpo", "population", [2.6457433] + [-0.3779633] * 7),
        (ONE_OF_EIGHT, "dr_grpo", "sample", [0.875] + [-0.125] * 7),
        # 1 - 0 and 0 - 1/7
        (ONE_OF_EIGHT, "rloo", "sample", [1.0] + [-0.1428571] * 7),
        ([1.0, 0.0, 0.5, 0.25], "grpo", "sample", [1.3174620, -1.0246927, 0.1463847, -0.4391540]),
        ([1.0, 0.0, 0.5, 0.25], "rloo", "sample", [0.75, -0.5833333, 0.0833334, -0.25]),
        ([1.0, 0.0, 0.5, 0.25], "pass_at_k", "sample", [0.5, 0.0, 0.0, 0.0]),
        # One success of two steps among failures of four and two steps, as DART counts: over steps
        ([1.0] * 2 + [0.0] * 6, "grpo", "sample", [1.6201816] * 2 + [-0.5400605] * 6),
        ([1.0] * 2 + [0.0] * 6, "grpo", "population", [1.7320468] * 2 + [-0.5773489] * 6),
        # Half of a group: ±0.5 / sqrt(8/7 · 1/4) = ±0.9354
        ([1.0] * 4 + [0.0] * 4, "grpo", "sample", [0.9354126] * 4 + [-0.9354126] * 4),
        ([1.0, 0.0, 0.0], "grpo", "sample", [1.1546985] + [-0.5773493] * 2),
        ([1.0, 0.0, 0.0], "grpo", "population", [1.4142106] + [-0.7071053] * 2),
    ],
)
def test_golden_values(rewards: list[float], estimator: Estimator, std: Deviation, expected: list[float]) -> None:
    torch.testing.assert_close(advantages(rewards, estimator, std), torch.tensor(expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("std", "expected"),
    [
        # Over steps [1, 1, 0 · 6]: μ = 1/4, σ_population = sqrt(3/16) = .4330127: .75 / σ, -.25 / σ
        ("population", [1.7320468, -0.5773489, -0.5773489]),
        # σ_sample = sqrt(8/7 · 3/16) = .4629100
        ("sample", [1.6201816, -0.5400605, -0.5400605]),
    ],
)
def test_golden_values_of_darts_advantage_over_steps(std: Deviation, expected: list[float]) -> None:
    """One success of two steps, failures of four and two: every step of a trajectory has its advantage."""
    values = group_advantages(
        torch.tensor([1.0, 0.0, 0.0]), estimator="step_grpo", std=std, steps=torch.tensor([2, 4, 2])
    )
    torch.testing.assert_close(values, torch.tensor(expected), atol=1e-6, rtol=0)


def test_an_advantage_over_steps_needs_the_steps() -> None:
    with pytest.raises(ValueError, match="give steps"):
        group_advantages(torch.tensor([1.0, 0.0]), estimator="step_grpo")


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("reward", [0.0, 1.0, -0.5, 0.1, 1 / 3])
@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_equal_rewards_give_exactly_zero(estimator: Estimator, reward: float, size: int) -> None:
    # The mean of seven times 0.1 is not 0.1 in float32: without the rule the advantages were noise / epsilon.
    assert advantages([reward] * size, estimator).tolist() == [0.0] * size


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_one_format_error_in_an_all_failed_group_is_a_signal(estimator: Estimator) -> None:
    # Rewards 0 · 7 and -0.5: not degenerate. pass@k looks at the best alone, and the best are equal.
    values = advantages([0.0] * 7 + [-0.5], estimator)
    assert (values[-1].item() < 0) is (estimator != "pass_at_k")


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=12))
def test_the_advantages_of_a_group_sum_to_zero(rewards: list[float]) -> None:
    for estimator in ("grpo", "dr_grpo", "rloo"):
        assert advantages(rewards, estimator).sum().item() == pytest.approx(0.0, abs=1e-5)


def test_the_dtype_of_the_rewards_is_kept() -> None:
    assert group_advantages(torch.tensor([1.0, 0.0], dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(
    ("rewards", "arguments", "message"),
    [
        ([], {}, "without trajectories"),
        ([0.0, float("nan")], {}, "must be finite"),
    ],
)
def test_bad_arguments_are_refused(rewards: list[float], arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        group_advantages(torch.tensor(rewards), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"estimator": "gae"}, "estimator must be one of grpo, step_grpo, dr_grpo, rloo, pass_at_k, got 'gae'"),
        ({"std": "unbiased"}, "std must be one of sample, population, got 'unbiased'"),
    ],
)
def test_unknown_names_are_refused(unchecked: None, arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        group_advantages(torch.tensor([0.0, 1.0]), **arguments)
