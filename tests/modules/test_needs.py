"""The numbers that a method asks for and the module brings: to `credits` before an update, to `loss` in it."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from arpo.errors import ConfigError
from arpo.methods.c3po import C3PO
from arpo.methods.digirl import DigiRL
from arpo.methods.grpo import GRPO
from arpo.methods.method import Credit, Method, Needs
from arpo.methods.ppo import PPO
from arpo.methods.ui_s1 import UIS1
from arpo.modules.critic import Linear, TwoLayer
from tests.modules.conftest import fit, weights
from tests.modules.test_grpo import assert_learns, logprobs_of, metrics


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


def moved(policy, seed):
    """A policy with other weights."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return policy


@pytest.mark.parametrize("window", [None, 1])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_what_a_method_asks_for_is_that_of_a_forward_of_each_policy(
    make_module, make_policy, make_group, window, minibatches
):
    reference, teacher, policy = moved(make_policy(), 1), moved(make_policy(), 2), make_policy()
    groups = [make_group(1.0, 0.0), make_group(0.0, 1.0, 1.0, first=4)]
    groups = [
        replace(each, trajectories=tuple(replace(one, image_window=window) for one in each.trajectories))
        for each in groups
    ]
    module = make_module(
        method=Asking(), reference=lambda: reference, teacher=lambda: teacher, minibatches=minibatches
    )
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
        assert not make_module(method=method, reference=fail, teacher=fail).frozen
    assert not GRPO().needs.scores
    assert (PPO().needs, DigiRL().needs) == (Needs(values=True), Needs(values=True))
    assert GRPO(kl_coefficient=0.1, entropy_coefficient=0.1).needs == Needs(reference=True, entropy=True)
    assert UIS1().needs == Needs(step_rewards=True)


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


# --- a budget of tokens ---------------------------------------------------------------------------------------------


def test_a_batch_below_the_budget_is_warned_of_once_and_its_share_is_logged(make_module, make_group, caplog):
    module, group = make_module(method=C3PO(budget=1000)), make_group(1.0, 0.0)
    tokens = sum(each.action_tokens for each in group.trajectories)
    found = metrics(fit(module, [group], [group]))
    assert found["train/budget_used"] == pytest.approx(tokens / 1000)
    assert found["train/budget_share"] == 1.0
    said = [each.getMessage() for each in caplog.records if "module.objective.budget" in each.getMessage()]
    assert len(said) == 1
    assert f"budget=1000 is above the {tokens} sampled tokens" in said[0]


# --- an entropy bonus -----------------------------------------------------------------------------------------------


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


def test_without_a_bonus_nothing_is_logged_and_no_update_changes(make_module, make_group):
    plain, none = make_module(), make_module(entropy_coefficient=0.0)
    assert "train/entropy" not in metrics(fit(none, [make_group(1.0, 0.0)]))
    fit(plain, [make_group(1.0, 0.0)])
    assert torch.equal(weights(plain.policy), weights(none.policy))


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


def test_two_layers_learn_what_no_linear_function_says():
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


def test_the_weights_of_two_layers_follow_from_their_seed_alone():
    ones = [TwoLayer(hidden=3, seed=seed)(4)[0].weight for seed in (0, 0, 1)]
    assert torch.equal(ones[0], ones[1])
    assert not torch.equal(ones[0], ones[2])
    with pytest.raises(ConfigError, match="hidden must be at least 1"):
        TwoLayer(hidden=0)
