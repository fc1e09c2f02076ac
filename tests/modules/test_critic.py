"""The critic of a module, by a method that asks for values and teaches it the number of each token."""

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch.testing import assert_close

from arpo.algorithms.losses import TokenLoss
from arpo.callbacks.checkpoint import load_policy
from arpo.errors import ConfigError
from arpo.methods.digirl import DigiRL
from arpo.methods.method import Credit, Method, Needs
from arpo.models.collate import collate
from arpo.models.tokenization import tokenize
from tests.modules.conftest import fit, weights
from tests.modules.test_grpo import CountedPolicy


@dataclass(frozen=True, kw_only=True)
class Counting(Method):
    """Advantages are what the critic said plus one; the critic is to say the place of the token, from 1."""

    asks: ClassVar[Needs] = Needs(values=True)

    asked: list = field(default_factory=list)
    teaches: float = 1.0

    def credits(self, groups, scores=None):
        values = [[each.values for each in row] for row in scores]
        self.asked.append(values)
        return [[Credit(said + 1.0, torch.arange(1.0, len(said) + 1)) for said in row] for row in values]

    def loss(self, terms):
        policy = super().loss(terms)
        errors = (terms.values - terms.returns).square() / 2 * self.teaches
        return TokenLoss(policy.losses + errors, policy.metrics, {"value_error": errors.detach()})


class Watching(torch.nn.Module):
    """Keeps the states that it is shown."""

    def forward(self, states):
        self.states = states
        return states[:, :1]


def states_of(policy, trajectory):
    """The states from which a policy predicts the sampled tokens, a tensor for each sequence of a trajectory."""
    watching, found = Watching(), []
    for tokens in tokenize(trajectory, policy.chat):
        policy.action_logprobs(collate([tokens], trajectory.screenshots, policy.images), critic=watching)
        found.append(watching.states)
    return found


@pytest.mark.parametrize("window", [None, 1])
@pytest.mark.parametrize(("micro_batch_tokens", "selected"), [(65536, None), (1, None), (65536, 0.1)])
def test_a_first_update_teaches_the_critic_by_its_formula(
    make_module, make_group, window, micro_batch_tokens, selected
):
    """From V = 0 the gradient of the mean of (V - R)² / 2 is -1/N Σ_i mean_t R s, with s the state of a token.

    Of steps that are not selected, too, which teach the policy nothing.
    """
    group = make_group(1.0, 0.0)
    group = replace(group, trajectories=tuple(replace(each, image_window=window) for each in group.trajectories))
    method = Counting(high_entropy_steps=selected)
    module = make_module(method=method, critic_rate=0.5, micro_batch_tokens=micro_batch_tokens)
    means = []
    for trajectory in group.trajectories:
        rows = states_of(module.policy, trajectory)
        returns = torch.arange(1.0, trajectory.action_tokens + 1).split([len(states) for states in rows])
        means += [(r[:, None] * states).mean(0) for states, r in zip(rows, returns, strict=True)]
    fit(module, [group])
    assert_close(module.critic.weight[0].detach(), 0.5 * torch.stack(means).mean(0), rtol=1e-4, atol=1e-5)


def test_what_the_critic_learns_pulls_at_nothing_of_the_policy(make_module, make_group):
    moved = []
    for teaches in (0.0, 1.0):
        module = make_module(method=Counting(teaches=teaches))
        torch.nn.init.constant_(module.critic.weight, 0.1)
        before = weights(module.policy)
        fit(module, [make_group(1.0, 0.0)])
        moved.append(weights(module.policy) - before)
    assert torch.equal(*moved)


@pytest.mark.parametrize("minibatches", [1, 2])
@pytest.mark.parametrize("frozen", [True, False])
def test_the_critic_is_asked_by_the_forward_that_gives_old_logprobs(make_module, make_group, minibatches, frozen):
    module = make_module(method=Counting(), minibatches=minibatches, epochs=2)
    module.policy.vision.requires_grad_(not frozen)
    counted = CountedPolicy(module.policy)
    fit(module, [make_group(1.0, 0.0), make_group(0.0, 1.0, first=4)])
    assert (counted.rows, counted.rows_with_gradient) == (4 + 8, 8)
    assert (counted.pictures == 4) == frozen  # one a trajectory, seen once


def test_a_gradient_of_the_critic_that_is_not_finite_changes_nothing(make_module, make_group):
    module = make_module(method=Counting(teaches=math.nan))
    before = weights(module.policy)
    trainer = fit(module, [make_group(1.0, 0.0)])
    assert trainer.callback_metrics["train/refused_gradients"] == 1.0
    assert torch.equal(weights(module.policy), before)
    assert not module.critic.weight.any()


def test_what_the_critic_said_is_asked_before_every_update_and_measured(make_module, make_group):
    """Advantages are all 1 at first, when it says 0, and other ones once it has learned."""
    module = make_module(method=Counting(), critic_rate=0.01, optimizer=partial(torch.optim.SGD, lr=0.0))
    group = make_group(1.0, 0.0)
    trainer = fit(module, [group], [group])
    first, second = module.objective.asked
    assert [[len(row) for row in rows] for rows in first] == [[each.action_tokens for each in group.trajectories]]
    assert all((row == 0).all() for rows in first for row in rows)
    assert all((row != 0).all() for rows in second for row in rows)
    assert trainer.callback_metrics["train/value_error"] > 0


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_while_it_warms_up_the_critic_alone_learns_and_then_the_policy_does_as_from_the_start(
    make_module, make_group, optimizer
):
    """No decay of weights, no moments of the optimizer, no count of steps: AdamW's first step comes afterwards."""
    options = {"critic_warmup": 2, "optimizer": partial(optimizer, lr=0.01, weight_decay=0.1), "critic_rate": 0.01}
    module, group = make_module(method=Counting(), minibatches=2, **options), make_group(1.0, 0.0)
    before, critics = weights(module.policy), []
    for _ in range(2):
        trainer = fit(module, [group])
        assert torch.equal(weights(module.policy), before)
        assert trainer.callback_metrics["train/grad_norm"] == 0
        critics.append(module.critic.weight.detach().clone())
    assert critics[0].any()
    assert not torch.equal(*critics)
    at_once = make_module(method=Counting(), minibatches=2, **(options | {"critic_warmup": 0}))
    at_once.critic.load_state_dict(module.critic.state_dict())
    for each in (module, at_once):
        fit(each, [group])
    assert not torch.equal(weights(module.policy), before)
    assert_close(weights(module.policy), weights(at_once.policy), rtol=0, atol=1e-6)


def test_a_run_of_iterations_warms_its_critic_up_in_the_first_ones_and_so_does_one_that_is_resumed(
    make_module, make_group, tmp_path
):
    batches = [[make_group(1.0, 0.0)]] * 3
    options = {"critic_warmup": 2, "critic_rate": 0.01, "optimizer": partial(torch.optim.AdamW, lr=0.01)}
    whole = make_module(method=Counting(), **options)
    start = weights(whole.policy)
    fit(whole, *batches)
    first = make_module(method=Counting(), **options)
    fit(first, batches[0]).save_checkpoint(tmp_path / "one.ckpt")
    checkpoint = torch.load(tmp_path / "one.ckpt", weights_only=True)
    resumed = make_module(method=Counting(), **options)
    resumed.on_load_checkpoint(checkpoint)
    resumed.load_state_dict(checkpoint["state_dict"])
    resumed.saved = checkpoint["optimizer_states"][0]
    resumed.on_train_start = lambda: resumed.optimizers().optimizer.load_state_dict(resumed.saved)
    fit(resumed, batches[1])
    assert torch.equal(weights(resumed.policy), start)
    resumed.saved = resumed.trainer.optimizers[0].state_dict()
    fit(resumed, batches[2])
    assert not torch.equal(weights(resumed.policy), start)
    assert torch.equal(weights(resumed.policy), weights(whole.policy))
    assert torch.equal(resumed.critic.weight, whole.critic.weight)


def test_how_much_the_critic_explains_is_measured_before_it_learns(make_module, make_group):
    module, group = make_module(method=Counting(), optimizer=partial(torch.optim.SGD, lr=0.0)), make_group(1.0, 0.0)
    assert fit(module, [group]).callback_metrics["critic/explained_variance"] == 0  # it says 0 of every token
    torch.nn.init.constant_(module.critic.weight, 0.05)
    said = [torch.cat(states_of(module.policy, each)).sum(1) * 0.05 for each in group.trajectories]
    returns = [torch.arange(1.0, len(row) + 1) for row in said]
    left = torch.cat(returns) - torch.cat(said)
    expected = 1 - left.var(correction=0) / torch.cat(returns).var(correction=0)
    found = fit(module, [group]).callback_metrics["critic/explained_variance"]
    assert found == pytest.approx(expected.item(), rel=1e-4)


def test_of_a_classifier_it_is_the_probability_that_explains(make_module, make_group):
    module, group = make_module(method=DigiRL()), make_group(1.0, 0.0)
    torch.nn.init.constant_(module.critic.weight, 0.05)
    said = [torch.cat(states_of(module.policy, each)).sum(1).mul(0.05).sigmoid() for each in group.trajectories]
    targets = torch.cat([torch.ones(len(said[0])), torch.zeros(len(said[1]))])
    expected = 1 - (targets - torch.cat(said)).var(correction=0) / targets.var(correction=0)
    found = fit(module, [group]).callback_metrics["critic/explained_variance"]
    assert found == pytest.approx(expected.item(), rel=1e-4)


def test_where_all_failed_alike_there_is_nothing_to_explain(make_module, make_group):
    assert (
        "critic/explained_variance" not in fit(make_module(method=DigiRL()), [make_group(0.0, 0.0)]).callback_metrics
    )


def test_a_critic_that_is_not_there_cannot_be_warmed_up(make_module):
    with pytest.raises(ConfigError, match="critic_warmup=3 with GRPO, which has no critic"):
        make_module(critic_warmup=3)
    with pytest.raises(ConfigError, match="critic_warmup must be at least 0"):
        make_module(method=Counting(), critic_warmup=-1)


def test_a_checkpoint_holds_the_policy_its_version_and_the_critic(make_module, make_group, tmp_path):
    trained = make_module(method=Counting(), critic_rate=0.1)
    fit(trained, [make_group(1.0, 0.0)]).save_checkpoint(tmp_path / "one.ckpt")
    checkpoint = torch.load(tmp_path / "one.ckpt", weights_only=True)
    resumed = make_module(method=Counting())
    resumed.on_load_checkpoint(checkpoint)
    resumed.load_state_dict(checkpoint["state_dict"])
    assert resumed.policy_version == 1
    assert torch.equal(weights(resumed.policy), weights(trained.policy))
    assert torch.equal(resumed.critic.weight, trained.critic.weight)


def test_the_policy_of_a_checkpoint_is_loaded_without_the_critic(make_module, make_policy, make_group, tmp_path):
    trained = make_module(method=Counting())
    fit(trained, [make_group(1.0, 0.0)]).save_checkpoint(tmp_path / "iteration_000001.ckpt")
    alone = make_policy()
    load_policy(alone, tmp_path / "iteration_000001.ckpt")
    assert torch.equal(weights(alone), weights(trained.policy))


def test_without_a_method_that_wants_one_there_is_no_critic(make_module):
    assert make_module().critic is None
