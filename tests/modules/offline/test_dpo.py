from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn.functional import logsigmoid
from torch.testing import assert_close

from arpo.errors import ConfigError
from arpo.models.policy import LoraSettings, Policy
from arpo.modules.offline.dpo import DPOModule
from tests.modules.conftest import fit, weights
from tests.modules.offline.conftest import NUMBERS, PLAIN_DESCENT, gradient, likelihoods, logged, moved


@pytest.fixture
def make_dpo(make_policy):
    """A module that takes a step of plain gradient descent: the change of its weights is the gradient."""

    def make(*, start=make_policy, **options):
        optimizer = options.pop("optimizer", PLAIN_DESCENT)
        module = DPOModule(start, optimizer, start, **NUMBERS | options)
        module.configure_model()
        return module

    return make


@pytest.mark.parametrize("micro_batch_tokens", [1, 65536])
def test_the_gradient_is_that_of_the_loss_computed_whole_whatever_the_micro_batches(
    make_dpo, make_policy, judged, micro_batch_tokens
):
    batch = judged(1.0, 0.0, 1.0, 0.0)
    policy = moved(make_policy())
    with torch.no_grad():
        reference = likelihoods(make_policy(), batch)
    ratios = likelihoods(policy, batch) - reference
    loss = -logsigmoid(0.5 * (ratios[0::2] - ratios[1::2])).mean()
    expected = gradient(policy, loss)

    module = make_dpo(micro_batch_tokens=micro_batch_tokens)
    moved(module.policy)
    before = weights(module.policy)
    metrics = logged(fit(module, batch))
    assert metrics["train/loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert metrics["train/reward_good"] == pytest.approx(0.5 * ratios[0::2].mean().item(), rel=1e-3)
    assert metrics["train/accuracy"] == pytest.approx((ratios[0::2] > ratios[1::2]).float().mean().item())
    assert_close(before - weights(module.policy), expected, rtol=1e-3, atol=1e-5)


def test_a_policy_that_is_its_reference_prefers_neither(make_dpo, judged):
    assert logged(fit(make_dpo(), judged(1.0, 0.0, 1.0, 0.0)))["train/accuracy"] == 0.0


def test_a_trajectory_with_an_image_window_counts_whole(make_dpo, make_policy, judged):
    """It is a sequence a step; the loss is of the trajectory."""
    batch = [replace(trajectory, image_window=1) for trajectory in judged(0.0, 1.0, 1.0, 0.0)][2:]
    policy = moved(make_policy())
    with torch.no_grad():
        ratios = likelihoods(policy, batch) - likelihoods(make_policy(), batch)
    module = make_dpo()
    moved(module.policy)
    metrics = logged(fit(module, batch))
    assert metrics["train/loss"] == pytest.approx(-logsigmoid(0.5 * (ratios[0] - ratios[1])).item(), rel=1e-4)


def test_with_adapters_the_base_is_the_reference(make_dpo, judged, tiny_model):
    make = partial(Policy, tiny_model, lora=LoraSettings(rank=4), train_vision=False)
    batch = judged(1.0, 0.0)
    module = make_dpo(start=make, steps=6, optimizer=partial(torch.optim.AdamW, lr=1e-2))
    assert module.references == []
    base = likelihoods(module.policy, batch).detach()
    metrics = logged(fit(module, *[batch] * 6))
    assert metrics["train/loss"] < 0.693
    with torch.no_grad(), module.policy.without_adapters():
        assert_close(likelihoods(module.policy, batch), base)


def test_a_batch_that_is_not_made_of_pairs_is_refused(make_dpo, judged):
    with pytest.raises(ConfigError, match=r"not made of pairs: set datamodule\.examples\._target_ to .*pairs"):
        fit(make_dpo(), judged(1.0, 0.0, 1.0))
    with pytest.raises(ConfigError, match="not made of pairs"):
        fit(make_dpo(), judged(1.0, 0.0, 1.0, 0.0)[1:3])
    with pytest.raises(ConfigError, match="not made of pairs"):
        fit(make_dpo(), judged(1.0, 0.0, 0.0, 1.0))  # the worse one first


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"beta": 0.0}, "beta must be above 0, got 0.0"),
        ({"beta": float("inf")}, "beta must be finite, got inf"),
    ],
    ids=str,
)
def test_an_impossible_option_is_refused_with_its_name(make_dpo, options, words):
    with pytest.raises(ConfigError, match=words):
        make_dpo(**options)
