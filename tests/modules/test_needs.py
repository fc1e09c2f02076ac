"""The numbers that a method asks for: to `credits` before an update, to `loss` in it, of critics too."""

import math
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from arpo.algorithms.losses import TokenLoss
from arpo.callbacks.checkpoint import load_policy
from arpo.errors import ConfigError
from arpo.methods.c3po import C3PO
from arpo.methods.digirl import DigiRL
from arpo.methods.grpo import GRPO
from arpo.methods.method import Credit, Method, Needs
from arpo.methods.ppo import PPO
from arpo.methods.ui_s1 import UIS1
from arpo.models.collate import collate
from arpo.models.tokenization import tokenize
from arpo.modules.critic import Linear, TwoLayer
from tests.modules.conftest import fit, logprobs_of, metrics, moved, weights, windowed
from tests.modules.test_grpo import CountedPolicy, assert_learns


@dataclass(frozen=True, kw_only=True)
class Asking(Method):
    """Remembers what it is given; every token has the advantage 1."""

    asks: ClassVar[Needs] = Needs(logprobs=True, teacher=True, reference=True, entropy=True)

    given: list = field(default_factory=list)
    terms: list = field(default_factory=list)

    def credits(self, groups, scores=None):
        self.given.append(scores)
        return [[Credit.of_trajectory(each, 1.0) for each in group.trajectories] for group in groups]

    def loss(self, terms):
        self.terms.append(terms)
        return super().loss(terms)


@pytest.mark.parametrize("window", [None, 1])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_what_a_method_asks_for_is_that_of_a_forward_of_each_policy(
    make_module, make_policy, make_group, window, minibatches
):
    reference, teacher, policy = moved(make_policy(), 1), moved(make_policy(), 2), make_policy()
    groups = [
        windowed(each, policy.chat, window) for each in (make_group(1.0, 0.0), make_group(0.0, 1.0, 1.0, first=4))
    ]
    policies = {"reference": lambda: reference, "teacher": lambda: teacher}
    module = make_module(method=Asking(), minibatches=minibatches, **policies)
    fit(module, groups)
    (scores,) = module.objective.given
    for group, row in zip(groups, scores, strict=True):
        for trajectory, said in zip(group.trajectories, row, strict=True):
            assert said.values is None
            for numbers, one in ((said.logprobs, policy), (said.reference, reference), (said.teacher, teacher)):
                assert_close(numbers, logprobs_of(one, trajectory).detach(), rtol=1e-4, atol=1e-4)
    found = {"teacher": [], "reference": [], "entropy": []}
    for terms in module.objective.terms:
        assert terms.entropy.requires_grad
        assert not terms.teacher.requires_grad
        assert terms.values is terms.returns is None
        for name, numbers in found.items():
            numbers.extend(getattr(terms, name)[terms.mask].tolist())
    for name, one in (("reference", reference), ("teacher", teacher)):
        said = [number for row in scores for each in row for number in getattr(each, name).tolist()]
        assert sorted(found[name]) == pytest.approx(sorted(said), abs=1e-5), one
    assert all(0 < entropy < 10 for entropy in found["entropy"])


def test_nothing_is_brought_that_nothing_asks_for(make_module, make_group):
    def fail():
        raise AssertionError("nothing needs it")

    for method in (GRPO(), UIS1(), PPO()):
        module = make_module(method=method, reference=fail, teacher=fail)
        assert not module.frozen
        assert (module.critic is None) == (not method.needs.values)
    assert not GRPO().needs.scores
    assert PPO().needs == DigiRL().needs == Needs(values=True, steps=True)
    assert GRPO(kl_coefficient=0.1, entropy_coefficient=0.1).needs == Needs(reference=True, entropy=True)
    assert UIS1().needs == Needs(step_rewards=True, steps=True)
    assert GRPO(estimator="step_grpo").needs == Needs(steps=True)


def test_what_a_method_needs_and_the_run_has_not_is_refused(make_module, make_policy):
    with pytest.raises(ConfigError, match="Asking learns from a teacher, and there is none: set teacher"):
        make_module(method=Asking(), reference=make_policy)
    with pytest.raises(ConfigError, match="needs a reference policy: set reference"):
        make_module(method=Asking(), teacher=make_policy)


@pytest.mark.parametrize("of", ["advantages", "returns"])
@pytest.mark.parametrize("off", [-1, 1, 7])
@pytest.mark.parametrize("asks", [Needs(), Needs(logprobs=True)], ids=["at once", "after a forward"])
def test_a_credit_of_another_length_than_the_trajectory_is_refused(make_module, make_group, of, off, asks):
    class Wrong(Asking):
        def credits(self, groups, scores=None):
            whole = super().credits(groups)
            numbers = torch.ones(groups[0].trajectories[1].action_tokens + off)
            whole[0][1] = Credit(whole[0][1].advantages, numbers) if of == "returns" else Credit(numbers)
            return whole

    Wrong.asks = asks
    module, group = make_module(method=Wrong()), make_group(1.0, 0.0)
    length = group.trajectories[1].action_tokens
    with pytest.raises(ValueError, match=f"gave {length + off} {of} to a trajectory of {length} sampled tokens"):
        fit(module, [group])


# --- a budget of tokens, an entropy bonus ---------------------------------------------------------------------------


def test_a_batch_below_the_budget_is_warned_of_once_and_its_share_is_logged(make_module, make_group, caplog):
    module, group = make_module(method=C3PO(budget=1000)), make_group(1.0, 0.0)
    tokens = sum(each.action_tokens for each in group.trajectories)
    found = metrics(fit(module, [group], [group]))
    assert found["train/budget_used"] == pytest.approx(tokens / 1000)
    assert found["train/budget_share"] == 1.0
    said = [each.getMessage() for each in caplog.records if "module.objective.budget" in each.getMessage()]
    assert len(said) == 1
    assert f"budget=1000 is above the {tokens} sampled tokens" in said[0]


def entropies_of(policy, trajectory):
    """H of each token, by its formula, from logits of a forward without chunks."""
    logits = []
    policy.model.lm_head.register_forward_hook(lambda _, inputs, output: logits.append(output))
    logprobs_of(policy, trajectory)
    kept = [number for number in range(logits[-1].shape[-1]) if number not in set(policy.chat.forbidden_ids)]
    logprobs = logits[-1][:, kept].log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def test_an_entropy_bonus_adds_the_gradient_of_the_mean_entropy(make_module, make_policy, make_group):
    """L = -1/N Σ_i mean_t (A_i log π + c H), at ratio 1 (1602.01783, section 4); also where all failed."""
    for rewards, advantages in (((1.0, 0.0), (1.0, -1.0)), ((0.0, 0.0), (0.0, 0.0))):
        policy, group = make_policy(), make_group(*rewards)
        for trajectory, advantage in zip(group.trajectories, advantages, strict=True):
            bonus = 0.3 * entropies_of(policy, trajectory).mean()
            (-(advantage * logprobs_of(policy, trajectory).mean() + bonus) / 2).backward()
        found = assert_learns(make_module(entropy_coefficient=0.3), [group], policy)
        entropies = [entropies_of(make_policy(), each).mean().item() for each in group.trajectories]
        assert found["train/entropy"] == pytest.approx(sum(entropies) / 2, rel=1e-4)


# --- the critic -----------------------------------------------------------------------------------------------------


def test_a_critic_is_chosen_and_says_nothing_at_first(make_module, make_group):
    for kind, critic in ((nn.Linear, Linear()), (nn.Sequential, TwoLayer(hidden=8))):
        module = make_module(method=PPO(), critic=critic, critic_rate=0.1)
        assert type(module.critic) is kind
        states = torch.randn(5, module.policy.model.get_input_embeddings().embedding_dim)
        assert not module.critic(states).any()
        fit(module, [make_group(1.0, 0.0)])
        assert module.critic(states).shape == (5, 1)
        assert module.critic(states).any()


def test_two_layers_of_a_seed_learn_what_no_linear_function_says():
    """Whether two signs are the same: a linear function is right about half of the four cases."""
    states = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])
    targets, errors = torch.tensor([1.0, 1.0, 0.0, 0.0]), []
    for critic in (Linear()(2), TwoLayer(hidden=16)(2)):
        optimizer = torch.optim.Adam(critic.parameters(), lr=0.05)
        for _ in range(300):
            optimizer.zero_grad()
            error = (critic(states)[:, 0] - targets).square().mean()
            error.backward()
            optimizer.step()
        errors.append(error.item())
    assert errors[0] == pytest.approx(0.25, abs=1e-3)
    assert errors[1] < 1e-3
    ones = [TwoLayer(hidden=3, seed=seed)(4)[0].weight for seed in (0, 0, 1)]
    assert torch.equal(ones[0], ones[1])
    assert not torch.equal(ones[0], ones[2])
    with pytest.raises(ConfigError, match="hidden must be at least 1"):
        TwoLayer(hidden=0)


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
    """From V = 0 it is -1/N Σ_i mean_t R s, with s the state of a token, also of steps that are not selected."""
    method = Counting(high_entropy_steps=selected)
    module = make_module(method=method, critic_rate=0.5, micro_batch_tokens=micro_batch_tokens)
    group = windowed(make_group(1.0, 0.0), module.policy.chat, window)
    means = []
    for trajectory in group.trajectories:
        rows = states_of(module.policy, trajectory)
        returns = torch.arange(1.0, trajectory.action_tokens + 1).split([len(states) for states in rows])
        means += [(r[:, None] * states).mean(0) for states, r in zip(rows, returns, strict=True)]
    fit(module, [group])
    assert_close(module.critic.weight[0].detach(), 0.5 * torch.stack(means).mean(0), rtol=1e-4, atol=1e-5)


def test_what_the_critic_learns_pulls_at_nothing_of_the_policy(make_module, make_group):
    steps = []
    for teaches in (0.0, 1.0):
        module = make_module(method=Counting(teaches=teaches))
        torch.nn.init.constant_(module.critic.weight, 0.1)
        before = weights(module.policy)
        fit(module, [make_group(1.0, 0.0)])
        steps.append(weights(module.policy) - before)
    assert torch.equal(*steps)


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
    assert fit(module, [make_group(1.0, 0.0)]).callback_metrics["train/refused_gradients"] == 1.0
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
    whole, first, resumed = (make_module(method=Counting(), **options) for _ in range(3))
    start = weights(whole.policy)
    fit(whole, *batches)
    fit(first, batches[0]).save_checkpoint(tmp_path / "one.ckpt")
    checkpoint = torch.load(tmp_path / "one.ckpt", weights_only=True)
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


@pytest.mark.parametrize("classifies", [False, True])
def test_how_much_the_critic_explains_is_measured_before_it_learns(make_module, make_group, classifies):
    """Of a classifier it is the probability that explains; where all failed alike there is nothing to."""
    name, group = "critic/explained_variance", make_group(1.0, 0.0)
    module = make_module(method=DigiRL() if classifies else Counting(), optimizer=partial(torch.optim.SGD, lr=0.0))
    at_first = fit(module, [make_group(0.0, 0.0)]).callback_metrics
    assert name not in at_first if classifies else at_first[name] == 0  # it says 0 of every token
    torch.nn.init.constant_(module.critic.weight, 0.05)
    torch.nn.init.constant_(module.critic.bias, 0.0)
    said = [torch.cat(states_of(module.policy, each)).sum(1) * 0.05 for each in group.trajectories]
    said = [row.sigmoid() for row in said] if classifies else said
    counted = [torch.arange(1.0, len(row) + 1) for row in said]
    targets = torch.cat([torch.ones(len(said[0])), torch.zeros(len(said[1]))] if classifies else counted)
    expected = 1 - (targets - torch.cat(said)).var(correction=0) / targets.var(correction=0)
    assert fit(module, [group]).callback_metrics[name] == pytest.approx(expected.item(), rel=1e-4)


def test_a_checkpoint_holds_the_policy_its_version_and_the_critic_without_which_the_policy_can_be_loaded(
    make_module, make_policy, make_group, tmp_path
):
    trained = make_module(method=Counting(), critic_rate=0.1)
    fit(trained, [make_group(1.0, 0.0)]).save_checkpoint(tmp_path / "iteration_000001.ckpt")
    checkpoint = torch.load(tmp_path / "iteration_000001.ckpt", weights_only=True)
    resumed, alone = make_module(method=Counting()), make_policy()
    resumed.on_load_checkpoint(checkpoint)
    resumed.load_state_dict(checkpoint["state_dict"])
    load_policy(alone, tmp_path / "iteration_000001.ckpt")
    assert resumed.policy_version == 1
    assert torch.equal(weights(resumed.policy), weights(trained.policy))
    assert torch.equal(resumed.critic.weight, trained.critic.weight)
    assert torch.equal(weights(alone), weights(trained.policy))
