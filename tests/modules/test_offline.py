"""Learning from data that exists already: imitation, DPO and KTO, against losses computed the plain way."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn.functional import logsigmoid
from torch.testing import assert_close
from torch.utils.data import DataLoader

from arpo.callbacks.logs import IterationAxis
from arpo.errors import ConfigError
from arpo.methods.kto import mismatched, mismatches
from arpo.models.policy import LoraSettings, Policy
from arpo.models.tokenization import tokenize
from arpo.modules.offline.base import Sequences
from arpo.modules.offline.dpo import DPOModule
from arpo.modules.offline.kto import KTOModule
from arpo.modules.sft import SFTModule
from arpo.run.loggers import JsonLinesLogger
from tests.exchanges import answered, windowed, with_exchanges
from tests.models import samples
from tests.modules.conftest import fit, logprobs_of, metrics, quiet_trainer, weights


@pytest.fixture
def judged(loaded_policy):
    """Episodes with these rewards; the first two are of one task, the next two of another, and so on."""

    def make(*rewards):
        return [
            replace(
                samples.trajectory(loaded_policy.chat, (number,) * (1 + number % 3)),
                task_id=f"task{number // 2}",
                task_reward=reward,
            )
            for number, reward in enumerate(rewards)
        ]

    return make


@pytest.fixture
def make_sft(make_policy):
    def make(**options):
        optimizer = options.pop("optimizer", partial(torch.optim.AdamW, lr=3e-3, betas=(0.9, 0.98)))
        module = SFTModule(make_policy, optimizer, **({"steps": 10, "micro_batch_tokens": 65536} | options))
        module.configure_model()
        return module

    return make


@pytest.fixture
def make_preference(make_policy):
    """A module that takes a step of plain gradient descent: the change of its weights is the gradient."""

    def make(kind, *, start=make_policy, **options):
        optimizer = options.pop("optimizer", partial(torch.optim.SGD, lr=25.0))  # one cycle begins at 1/25 of it
        numbers = {"beta": 0.5, "steps": 3, "micro_batch_tokens": 65536, "max_grad_norm": 1e9}
        module = kind(start, optimizer, start, **numbers | options)
        module.configure_model()
        return module

    return make


@pytest.fixture
def demonstrations(loaded_policy):
    return [samples.trajectory(loaded_policy.chat, (seed,)) for seed in range(4)]


def likelihoods(policy, batch):
    """Σ log π of each trajectory, a forward each, with gradient."""
    return torch.stack([logprobs_of(policy, trajectory).sum() for trajectory in batch])


def moved(policy):
    """The policy with other weights."""
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(1.02)
    return policy


def assert_learns(module, batch, policy, loss):
    """An update changes the weights by the gradient of a loss of a policy like the module's, and logs the loss."""
    loss.backward()
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    before = weights(module.policy)
    found = metrics(fit(module, batch))
    assert found["train/loss"] == pytest.approx(loss.item(), rel=1e-4)
    expected = torch.cat([gradient.flatten() for gradient in gradients])
    assert_close(before - weights(module.policy), expected, rtol=1e-3, atol=1e-5)
    return found


# --- all of them ----------------------------------------------------------------------------------------------------


def test_a_trajectory_is_a_sequence_and_with_an_image_window_each_of_its_steps_is_one(loaded_policy, judged):
    one, two, three = judged(1.0, 0.0, 1.0)  # as many steps
    data = Sequences.of([one, windowed(three, loaded_policy.chat), two], loaded_policy.chat)
    assert data.owners.tolist() == [0, 1, 1, 1, 2]
    assert data.trajectories == 3
    learned = sum(int(tokens.action_mask.sum()) for tokens in data.tokenized)
    assert learned == one.action_tokens + two.action_tokens + three.action_tokens
    assert set(data.screenshots) == {key for each in (one, two, three) for key in each.screenshots}


@pytest.mark.parametrize(("iterations", "axis", "lines"), [(1, [], [0, 1, 2]), (2, [IterationAxis()], [1, 2])])
def test_a_run_of_one_iteration_logs_every_step_and_one_of_several_logs_iterations(
    make_sft, judged, tmp_path, iterations, axis, lines
):
    logger = JsonLinesLogger(tmp_path / "metrics.jsonl")
    trainer = quiet_trainer(max_epochs=iterations, logger=logger, callbacks=list(axis), log_every_n_steps=1)
    trainer.fit(make_sft(steps=6), DataLoader([judged(1.0)] * 3, batch_size=None))
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in logged] == lines
    assert all("train/loss" in line for line in logged)


def test_the_rate_rises_and_falls_once_over_the_run(make_sft):
    configured = make_sft(warmup_fraction=0.3, optimizer=partial(torch.optim.SGD, lr=1.0)).configure_optimizers()
    rates = []
    for _ in range(10):
        rates.append(configured["optimizer"].param_groups[0]["lr"])
        configured["optimizer"].step()
        if len(rates) < 10:
            configured["lr_scheduler"].step()
    assert max(rates) == pytest.approx(1.0)
    assert rates.index(max(rates)) == 2  # 0.3 of 10 steps, counted from 0
    assert rates[0] < 0.1
    assert rates[-1] < 1e-3


def test_a_short_run_has_a_schedule_too(make_sft, demonstrations):
    assert fit(make_sft(steps=3, warmup_fraction=0.1), *[demonstrations[:1]] * 3).global_step == 3


def test_a_gradient_that_is_not_finite_is_left_out_as_in_reinforcement_learning(make_sft, demonstrations):
    module = make_sft()
    with torch.no_grad():
        module.policy.model.model.language_model.norm.weight.fill_(torch.nan)
    before = weights(module.policy)
    trainer = fit(module, demonstrations)
    assert trainer.global_step == 0
    assert torch.equal(weights(module.policy).nan_to_num(), before.nan_to_num())
    assert trainer.callback_metrics["train/refused_gradients"] == 1.0
    assert "train/grad_norm" not in trainer.callback_metrics


# --- imitation ------------------------------------------------------------------------------------------------------


def loss_of(module, trajectories):
    """Mean over all tokens of -log π, by a forward a trajectory."""
    with torch.no_grad():
        return -torch.cat([logprobs_of(module.policy, trajectory) for trajectory in trajectories]).mean().item()


def test_a_few_demonstrations_are_learned(make_sft, demonstrations):
    module = make_sft(steps=12)
    before = loss_of(module, demonstrations)
    assert fit(module, *[demonstrations] * 12).global_step == 12
    assert loss_of(module, demonstrations) < 0.5 * before


def test_the_loss_is_the_mean_over_all_tokens_whatever_the_micro_batches(make_sft, demonstrations):
    optimizer = partial(torch.optim.SGD, lr=0.0)
    whole, parts = make_sft(optimizer=optimizer), make_sft(optimizer=optimizer, micro_batch_tokens=1)
    reported = [metrics(fit(module, demonstrations))["train/loss"] for module in (whole, parts)]
    assert reported == pytest.approx([loss_of(whole, demonstrations)] * 2, rel=1e-4)


def test_failed_demonstrations_are_imitated_too(make_sft, demonstrations):
    """The warm start learns the demonstrator's mistakes on purpose: reinforcement learning has to have work."""
    learned = []
    for reward in (1.0, 0.0):
        module = make_sft(optimizer=partial(torch.optim.SGD, lr=0.1))
        fit(module, [replace(trajectory, task_reward=reward) for trajectory in demonstrations])
        learned.append(weights(module.policy))
    assert torch.equal(*learned)


# --- DPO ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro_batch_tokens", [1, 65536])
def test_the_gradient_of_dpo_is_that_of_the_loss_computed_whole_whatever_the_micro_batches(
    make_preference, make_policy, judged, micro_batch_tokens
):
    batch, policy = judged(1.0, 0.0, 1.0, 0.0), moved(make_policy())
    ratios = likelihoods(policy, batch) - likelihoods(make_policy(), batch).detach()
    loss = -logsigmoid(0.5 * (ratios[0::2] - ratios[1::2])).mean()
    module = make_preference(DPOModule, micro_batch_tokens=micro_batch_tokens)
    moved(module.policy)
    found = assert_learns(module, batch, policy, loss)
    assert found["train/reward_good"] == pytest.approx(0.5 * ratios[0::2].mean().item(), rel=1e-3)
    assert found["train/accuracy"] == pytest.approx((ratios[0::2] > ratios[1::2]).float().mean().item())


def test_a_trajectory_with_an_image_window_counts_whole(make_preference, make_policy, judged):
    """It is a sequence a step; the loss is of the trajectory."""
    policy, module = moved(make_policy()), make_preference(DPOModule)
    batch = [windowed(trajectory, policy.chat) for trajectory in judged(0.0, 1.0, 1.0, 0.0)][2:]
    ratios = (likelihoods(policy, batch) - likelihoods(make_policy(), batch)).detach()
    moved(module.policy)
    found = metrics(fit(module, batch))
    assert found["train/loss"] == pytest.approx(-logsigmoid(0.5 * (ratios[0] - ratios[1])).item(), rel=1e-4)


def test_with_adapters_the_base_is_the_reference(make_preference, judged, tiny_model):
    make = partial(Policy, tiny_model, lora=LoraSettings(rank=4), train_vision=False)
    batch = judged(1.0, 0.0)
    module = make_preference(DPOModule, start=make, steps=6, optimizer=partial(torch.optim.AdamW, lr=1e-2))
    assert module.references == []
    base = likelihoods(module.policy, batch).detach()
    assert metrics(fit(module, *[batch] * 6))["train/loss"] < 0.693
    with torch.no_grad(), module.policy.without_adapters():
        assert_close(likelihoods(module.policy, batch), base)


def test_a_batch_that_is_not_made_of_pairs_or_of_one_trajectory_is_refused(make_preference, judged):
    worse_first = judged(1.0, 0.0, 0.0, 1.0)
    for batch in (judged(1.0, 0.0, 1.0), judged(1.0, 0.0, 1.0, 0.0)[1:3], worse_first):
        with pytest.raises(ConfigError, match=r"not made of pairs: set datamodule\.examples\._target_ to .*pairs"):
            fit(make_preference(DPOModule), batch)
    with pytest.raises(ConfigError, match=r"there is a batch of 1: its data must give at least 2"):
        fit(make_preference(KTOModule), judged(1.0))


# --- KTO ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro_batch_tokens", [1, 65536])
def test_the_gradient_of_kto_is_that_of_the_loss_computed_whole_whatever_the_micro_batches(
    make_preference, make_policy, judged, micro_batch_tokens
):
    batch = judged(1.0, 0.0, 0.0)
    policy, reference = moved(make_policy()), make_policy()
    pairs = [(batch[0], batch[2]), *zip(batch[1:], batch, strict=False)]
    crossed = [mismatched(*pair, answered(policy.chat)) for pair in pairs]
    with torch.no_grad():
        baseline = (likelihoods(policy, crossed) - likelihoods(reference, crossed)).mean().clamp(min=0)
        start = likelihoods(reference, batch)
    gains = 0.5 * (likelihoods(policy, batch) - start - baseline)
    loss = (1 - gains[0].sigmoid() + 1.5 * (1 - (-gains[1:]).sigmoid()).sum()) / 3
    module = make_preference(KTOModule, undesirable_weight=1.5, micro_batch_tokens=micro_batch_tokens)
    moved(module.policy)
    found = assert_learns(module, batch, policy, loss)
    assert found["train/kl_baseline"] == pytest.approx(baseline.item(), rel=1e-3, abs=1e-6)


def test_a_mismatched_trajectory_sees_what_one_saw_and_says_what_another_said(loaded_policy, judged):
    chat = loaded_policy.chat
    _, one, other = judged(1.0, 1.0, 1.0)  # two steps and three
    crossed = mismatched(one, other, answered(chat))
    assert [step.screenshot for step in crossed.steps] == [step.screenshot for step in one.steps]
    assert [each.response_ids for each in crossed.exchanges] == [each.response_ids for each in other.exchanges[:2]]
    assert crossed.exchanges[0].added_ids == one.exchanges[0].added_ids
    assert crossed.exchanges[1].added_ids == chat.next_prompt(other.exchanges[0].response_ids)
    (tokens,) = tokenize(crossed, chat)
    assert int(tokens.action_mask.sum()) == sum(other.trained_lengths[:2])
    assert len(mismatched(other, one, answered(chat)).steps) == 2


def with_responses(trajectory, *responses):
    logprobs = [(0.0,) * len(ids) for ids in responses]
    return with_exchanges(trajectory, response_ids=responses, sampler_logprobs=logprobs)


def test_a_mismatch_is_the_nearest_one_before_that_said_something_else(judged):
    base = judged(1.0, 1.0)[1]  # of two steps
    a, b = with_responses(base, (1,), (2,)), with_responses(base, (1,), (3,))
    again = replace(a, id="stored again", task_reward=0.0)
    short = replace(a, steps=a.steps[:1], exchanges=a.exchanges[:1])  # says what all say, as far as it goes
    for batch, expected in [
        ([a, b], [(a, b), (b, a)]),
        ([a, again, b], [(a, b), (again, b), (b, again)]),
        ([a, again], []),
        ([a, b, short], [(a, b), (b, a)]),
        ([short, short], []),
        ([a], []),
    ]:
        assert mismatches(batch) == expected


def test_a_batch_in_which_all_said_the_same_has_the_reference_point_of_the_start(make_preference, judged):
    module = make_preference(KTOModule)
    moved(module.policy)
    (one,) = judged(1.0)
    found = metrics(fit(module, [one, replace(one, id="again", task_reward=0.0)]))
    assert found["train/kl_baseline"] == 0.0
    assert found["train/loss"] > 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"undesirable_weight": 0.0}, "undesirable_weight must be above 0, got 0.0"),  # of the method
        ({"steps": 2}, "steps must be at least 3, got 2"),
        ({"warmup_fraction": 1.5}, "warmup_fraction must be at most 1, got 1.5"),
    ],
)
def test_an_impossible_option_of_the_module_or_its_method_is_refused(make_preference, options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make_preference(KTOModule, **options)
