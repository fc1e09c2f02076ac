from dataclasses import replace
from functools import partial

import pytest
import torch

from arpo.errors import ConfigError
from arpo.models.collate import collate
from arpo.models.tokenization import tokenize
from arpo.modules.sft import SFTModule
from tests.models import samples
from tests.modules.conftest import fit, weights


@pytest.fixture
def make_sft(make_policy):
    def make(**options):
        optimizer = options.pop("optimizer", partial(torch.optim.AdamW, lr=3e-3, betas=(0.9, 0.98)))
        return SFTModule(make_policy, optimizer, **({"steps": 10, "micro_batch_tokens": 65536} | options))

    return make


@pytest.fixture
def demonstrations(loaded_policy):
    return [samples.trajectory(loaded_policy.chat, (seed,)) for seed in range(4)]


def loss(module, trajectories):
    """Mean over all tokens of -log π, by a forward a trajectory."""
    rows = []
    for trajectory in trajectories:
        batch = collate(tokenize(trajectory, module.policy.chat), trajectory.screenshots, module.policy.images)
        with torch.no_grad():
            output = module.policy.action_logprobs(batch)
        rows.append(output.logprobs[output.mask])
    return -torch.cat(rows).mean().item()


def test_a_few_demonstrations_are_learned(make_sft, demonstrations):
    module = make_sft(steps=12)
    module.configure_model()
    before = loss(module, demonstrations)
    trainer = fit(module, *[demonstrations] * 12)
    assert trainer.global_step == 12
    assert loss(module, demonstrations) < 0.5 * before


def test_the_loss_is_the_mean_over_all_tokens_whatever_the_micro_batches(make_sft, demonstrations):
    optimizer = partial(torch.optim.SGD, lr=0.0)
    whole, parts = make_sft(optimizer=optimizer), make_sft(optimizer=optimizer, micro_batch_tokens=1)
    reported = [fit(module, demonstrations).callback_metrics["train/loss"].item() for module in (whole, parts)]
    assert reported == pytest.approx([loss(whole, demonstrations)] * 2, rel=1e-4)


def test_failed_demonstrations_are_imitated_too(make_sft, demonstrations):
    """The warm start learns the demonstrator's mistakes on purpose: reinforcement learning has to have work."""
    failed = [replace(trajectory, task_reward=0.0) for trajectory in demonstrations]
    optimizer = partial(torch.optim.SGD, lr=0.1)
    modules = [make_sft(optimizer=optimizer), make_sft(optimizer=optimizer)]
    for module, data in zip(modules, (demonstrations, failed), strict=True):
        fit(module, data)
    assert torch.equal(*(weights(module.policy) for module in modules))


def test_the_rate_rises_and_falls_once_over_the_run(make_sft, make_policy):
    module = make_sft(steps=10, warmup_fraction=0.3, optimizer=partial(torch.optim.SGD, lr=1.0))
    module.configure_model()
    configured = module.configure_optimizers()
    rates = []
    for _ in range(10):
        rates.append(configured["optimizer"].param_groups[0]["lr"])
        configured["optimizer"].step()
        configured["lr_scheduler"].step() if len(rates) < 10 else None
    assert max(rates) == pytest.approx(1.0)
    assert rates.index(max(rates)) == 2  # 0.3 of 10 steps, counted from 0
    assert rates[0] < 0.1
    assert rates[-1] < 1e-3


@pytest.mark.parametrize("steps", [3, 10, 11])
def test_a_short_run_has_a_schedule_too(make_sft, demonstrations, steps):
    module = make_sft(steps=steps, warmup_fraction=0.1)
    assert fit(module, *[demonstrations[:1]] * steps).global_step == steps


def test_a_gradient_that_is_not_finite_is_left_out_as_in_reinforcement_learning(make_sft, demonstrations):
    module = make_sft()
    module.configure_model()
    with torch.no_grad():
        module.policy.model.model.language_model.norm.weight.fill_(torch.nan)
    before = weights(module.policy)
    trainer = fit(module, demonstrations)
    assert trainer.global_step == 0
    assert torch.equal(weights(module.policy).nan_to_num(), before.nan_to_num())
    assert trainer.callback_metrics["train/refused_gradients"] == 1.0
    assert "train/grad_norm" not in trainer.callback_metrics


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 2}, "steps must be at least 3, got 2"),
        ({"warmup_fraction": 1.5}, r"warmup_fraction must lie in \[0, 1\], got 1.5"),
    ],
    ids=str,
)
def test_an_impossible_option_is_refused_with_its_name(make_sft, options, words):
    with pytest.raises(ConfigError, match=words):
        make_sft(**options)
