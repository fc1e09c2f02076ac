"""A whole update of each method with a credit of its own, against finite differences of its formula."""

import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from arpo.methods.gigpo import GiGPO
from arpo.methods.ppo import PPO
from tests.modules.conftest import fit
from tests.modules.test_critic import states_of
from tests.modules.test_grpo import logprobs_of

WIDTH = 3e-3
"""How far to both sides a slope is measured, in a space of weights whose gradient is some ten long."""


def trained(module):
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def slopes(loss, module, step):
    """The slope of a loss along a step, in each half of the parameters by chance, measured and as the step has it."""
    start, generator = parameters_to_vector(trained(module)).detach(), torch.Generator().manual_seed(0)
    half = torch.rand(step.shape, generator=generator) < 0.5
    for part in (half, ~half):
        direction = step * part / (step * part).norm()
        sides = []
        for width in (WIDTH, -WIDTH):
            vector_to_parameters(start + width * direction, trained(module))
            with torch.no_grad():
                sides.append(loss().item())
        vector_to_parameters(start, trained(module))
        yield (sides[0] - sides[1]) / (2 * WIDTH), -torch.dot(step, direction).item()


def taken(module, group):
    """What plain descent has added to the weights of the policy, and to those of the critic where there is one."""
    parts = [part for part in (module.policy, module.critic) if part is not None]
    before = [parameters_to_vector(trained(part)).detach() for part in parts]
    fit(module, [group])
    return [parameters_to_vector(trained(part)).detach() - old for part, old in zip(parts, before, strict=True)]


def surrogate(policy, trajectory, old, advantages):
    """-min(ρ A, clip(ρ, 0.8, 1.3) A) of each token."""
    ratio = (logprobs_of(policy, trajectory) - old).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.3) * advantages)


def test_an_update_of_gigpo_is_the_slope_of_its_formula(make_module, make_policy, make_group):
    """1/N Σ_i mean_t of the surrogate, with A = A_episode + A_step (2505.10978, equations 3, 7 and 8)."""
    group, policy = make_group(0.0, 1.0, 0.0), make_policy()  # the second has two steps, of one screen
    # Episodes over four steps: mean 1/2. The two steps of that screen have returns 1/2 and 1: -1/4 and +1/4.
    by_step = [[-0.5], [0.25, 0.75], [-0.5]]
    rows = []
    for trajectory, steps in zip(group.trajectories, by_step, strict=True):
        lengths = torch.tensor([len(step.response_ids) for step in trajectory.steps])
        rows.append(torch.tensor(steps).repeat_interleave(lengths))
    old = [logprobs_of(policy, trajectory).detach() for trajectory in group.trajectories]

    def loss():
        parts = zip(group.trajectories, old, rows, strict=True)
        return torch.stack([surrogate(policy, *part).mean() for part in parts]).mean()

    (step,) = taken(make_module(method=GiGPO(discount=0.5)), group)
    for measured, expected in slopes(loss, policy, step):
        assert measured == pytest.approx(expected, rel=5e-4)


def gae(rewards, values, discount, decay):
    """A_t = Σ_k (γ λ)^k δ_{t+k}, as it is written (1506.02438, equation 16)."""
    following = [*values[1:], 0.0]
    deltas = [r + discount * v - u for r, v, u in zip(rewards, following, values, strict=True)]
    return [sum((discount * decay) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


def test_an_update_of_ppo_is_the_slope_of_its_formula_for_policy_and_critic(make_module, make_policy, make_group):
    """The mean over all tokens of the surrogate and of (V - A - V_old)² / 2; states have no slope of the latter."""
    group, policy = make_group(1.0, 0.0), make_policy()
    module = make_module(method=PPO(discount=0.9, gae_lambda=0.8, aggregation="token"), critic_rate=1.0)
    torch.manual_seed(0)
    torch.nn.init.normal_(module.critic.weight, std=0.05)
    critic = torch.nn.Linear(module.critic.in_features, 1)
    critic.load_state_dict(module.critic.state_dict())
    states = [torch.cat(states_of(policy, trajectory)).detach() for trajectory in group.trajectories]
    values = [critic(rows).detach()[:, 0] for rows in states]
    rewards = [torch.zeros_like(row) for row in values]
    rewards[0][-1] = 1.0
    pairs = zip(rewards, values, strict=True)
    raw = [torch.tensor(gae(r.tolist(), v.tolist(), 0.9, 0.8)) for r, v in pairs]
    whole = torch.cat(raw)
    advantages = [(row - whole.mean()) / whole.std(correction=0) for row in raw]
    targets = torch.cat(raw) + torch.cat(values)
    old = [logprobs_of(policy, trajectory).detach() for trajectory in group.trajectories]

    def loss():
        parts = zip(group.trajectories, old, advantages, strict=True)
        errors = (critic(torch.cat(states))[:, 0] - targets).square() / 2
        return (torch.cat([surrogate(policy, *part) for part in parts]) + errors).mean()

    for part, step in zip((policy, critic), taken(module, group), strict=True):
        for measured, expected in slopes(loss, part, step):
            assert measured == pytest.approx(expected, rel=5e-4)
