"""A whole update of each method with a credit of its own, against finite differences of its formula."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from arpo.methods.c3po import C3PO
from arpo.methods.cispo import CISPO
from arpo.methods.computer_rl import ComputerRL
from arpo.methods.digirl import DigiRL
from arpo.methods.distillation import Distillation
from arpo.methods.gigpo import GiGPO
from arpo.methods.ppo import PPO
from arpo.methods.spa import ShortestPath
from arpo.methods.ui_s1 import UIS1
from arpo.methods.ui_tars2 import UITars2
from arpo.models.collate import collate
from arpo.models.tokenization import tokenize
from tests.exchanges import answered
from tests.modules.conftest import fit, logprobs_of, weights
from tests.modules.test_grpo import as_sampled
from tests.modules.test_needs import states_of

WIDTH = 3e-3
"""How far to both sides a slope is measured, in a space of weights whose gradient is some ten long."""


def trained(module):
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def assert_slopes(loss, module, step):
    """The slope of a loss along a step is as the step has it, in each half of the parameters by chance."""
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
        measured, expected = (sides[0] - sides[1]) / (2 * WIDTH), -torch.dot(step, direction).item()
        assert measured == pytest.approx(expected, rel=5e-4)


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


def of_steps(trajectory, steps):
    """One number a token of the numbers of a trajectory's steps."""
    return torch.tensor(steps).repeat_interleave(torch.tensor(trajectory.trained_lengths))


def check_slopes(make_module, policy, group, method, advantages, average, **options):
    """An update is the slope of the average of the surrogates, given the advantage of every token."""
    old = [logprobs_of(policy, trajectory).detach() for trajectory in group.trajectories]

    def loss():
        parts = zip(group.trajectories, old, advantages, strict=True)
        return average([surrogate(policy, *part) for part in parts])

    module = make_module(method=method, **options)
    (step,) = taken(module, group)
    assert_slopes(loss, policy, step)
    means = [row.mean().item() for row in advantages]
    assert module.last_update.advantages.tolist() == pytest.approx(means, abs=1e-5)


def over_sequences(rows):
    """1/N Σ_i mean_t."""
    return torch.stack([row.mean() for row in rows]).mean()


@pytest.mark.parametrize(("mean", "share"), [("trajectories", 1 / 3), ("steps", 1 / 2)])
def test_an_update_of_gigpo_is_the_slope_of_its_formula(make_module, make_policy, make_group, mean, share):
    """1/N Σ_i mean_t of the surrogate, A = A_episode + A_step (2505.10978, 3, 7 and 8; code: over steps)."""
    group = make_group(0.0, 1.0, 0.0)  # the second has two steps, of one screen
    # One of three trajectories earns 1, and two of four steps. The two of that screen have returns 1/2 and 1.
    rows = list(map(of_steps, group.trajectories, ([-share], [0.75 - share, 1.25 - share], [-share])))
    check_slopes(make_module, make_policy(), group, GiGPO(discount=0.5, episode_mean=mean), rows, over_sequences)


def test_an_update_of_the_shortest_path_is_the_slope_of_its_formula(make_module, make_policy, make_group):
    """The same average, with rewards 1, 1 - α / 2 of twice the steps, and 0 (2509.18119)."""
    group = make_group(1.0, 1.0, 0.0)
    rewards = torch.tensor([1.0, 0.75, 0.0])
    relative = (rewards - 7 / 12) / rewards.std(correction=0)
    pairs = zip(group.trajectories, relative.tolist(), strict=True)
    rows = [torch.full((each.action_tokens,), advantage) for each, advantage in pairs]
    check_slopes(make_module, make_policy(), group, ShortestPath(shortening=0.5), rows, over_sequences)


def test_an_update_of_computer_rl_is_the_slope_of_its_formula(make_module, make_policy, make_group):
    """The same average, with (r - μ) / σ over the steps of the group, of which one earned something (2508.14040)."""
    group = make_group(0.0, 1.0, 0.0)
    success = group.trajectories[1]  # of two steps
    garbled = replace(success, steps=(replace(success.steps[0], parse_error="bad_box"), success.steps[1]))
    group = replace(group, trajectories=(group.trajectories[0], garbled, group.trajectories[2]))
    # Steps earn 0, 0, 1 and 0: μ = 1/4, and σ = 1/2 of a sample.
    rows = list(map(of_steps, group.trajectories, ([-0.5], [-0.5, 1.5], [-0.5])))
    check_slopes(make_module, make_policy(), group, ComputerRL(), rows, over_sequences)


@pytest.mark.parametrize("over", ["drop", "truncate"])
def test_an_update_of_c3po_is_the_slope_of_its_formula(make_module, make_policy, make_group, over):
    """1/Φ Σ of the surrogate over the tokens of what is drawn (2506.14731); ids decide that the third is last."""
    group = make_group(1.0, 0.0, 0.0)
    lengths = [each.action_tokens for each in group.trajectories]
    budget = sum(lengths) - 5
    kept = [lengths[0], lengths[1], 0 if over == "drop" else lengths[2] - 5]
    rows = [
        torch.tensor([advantage] * count + [0.0] * (length - count))
        for advantage, count, length in zip((2**0.5, -(0.5**0.5), -(0.5**0.5)), kept, lengths, strict=True)
    ]
    method = C3PO(budget=budget, over=over)
    check_slopes(make_module, make_policy(), group, method, rows, lambda parts: torch.cat(parts).sum() / budget)


def test_every_optimizer_step_of_c3po_divides_by_its_share_of_the_budget(make_module, make_group):
    """Of two minibatches, one of which has nothing to teach, the other takes a step twice as long."""
    groups = [make_group(1.0, 0.0), make_group(0.0, 0.0, first=4)]
    moved = []
    for minibatches in (1, 2):
        module = make_module(method=C3PO(budget=300), minibatches=minibatches)
        start = weights(module.policy)
        fit(module, groups)
        moved.append(weights(module.policy) - start)
    torch.testing.assert_close(moved[1], 2 * moved[0], rtol=1e-3, atol=1e-5)


def test_an_update_of_cispo_is_the_slope_of_its_formula(make_module, make_policy, make_group):
    """1/Σ|o_i| Σ of -sg[clip(ρ)] A log π (2506.13585, equation 4), here with ρ from stored log-probabilities."""
    group, policy = make_group(1.0, 0.0, 0.0, injected=(0, 1, 2)), make_policy()
    old = [logprobs_of(policy, each) for each in group.trajectories]
    group = as_sampled(group, old, (0.5, -0.4, 0.0))
    members = group.trajectories
    # Ratios e^-0.5 = .607, e^0.4 = 1.492 and 1 become .8, 1.3 and 1.
    factors = [0.8, 1.3, 1.0]
    advantages = [2**0.5, -(0.5**0.5), -(0.5**0.5)]

    def loss():
        parts = zip(factors, advantages, members, strict=True)
        rows = [-factor * advantage * logprobs_of(policy, each) for factor, advantage, each in parts]
        return torch.cat(rows).mean()

    method = CISPO(clip_low=0.2, clip_high=0.3)
    (step,) = taken(make_module(method=method, replayed_old_logprobs="stored"), group)
    assert_slopes(loss, policy, step)


def test_an_update_of_distillation_is_the_slope_of_the_surrogate_of_the_divergence(
    make_module, make_policy, make_group
):
    """1/Σ|o_i| Σ of the surrogate, with A = log π_teacher - log π_old (2306.13649); where all failed."""
    group, policy, teacher = make_group(0.0, 0.0), make_policy(), make_policy()
    with torch.no_grad():
        teacher.model.lm_head.weight.mul_(1.5)
    rows = [(logprobs_of(teacher, each) - logprobs_of(policy, each)).detach() for each in group.trajectories]
    options = {"teacher": lambda: teacher}
    check_slopes(make_module, policy, group, Distillation(), rows, lambda parts: torch.cat(parts).mean(), **options)


def corrected(chat, trajectory, *wrong):
    """The trajectory with an expert's answer in the place of some responses, as an episode would have gone on."""
    steps = []
    for number, step in enumerate(trajectory.steps):
        patch = "Action: click(start_box='(3,4)')" if number in wrong else ""
        steps.append(replace(step, patch=patch, reward=0.55 if patch else 1.0))
    return answered(chat)(replace(trajectory, steps=tuple(steps)), trajectory.exchanges)


def sampled_logprobs(policy, trajectory):
    """Log-probabilities of each response, from a forward of its own over the context in which it was sampled."""
    rows = []
    for number, exchange in enumerate(trajectory.exchanges):
        ids, pictures = trajectory.context(number)
        alone = replace(exchange, parent=None, added_ids=ids, pictures=pictures)
        read = replace(trajectory, steps=(), exchanges=(alone,))
        batch = collate(tokenize(read, policy.chat), trajectory.screenshots, policy.images)
        output = policy.action_logprobs(batch)
        rows.append(output.logprobs[output.mask])
    return rows


@pytest.mark.parametrize("micro_batch_tokens", [65536, 1])
def test_an_update_of_corrected_episodes_is_the_slope_of_the_formula_over_their_sequences(
    make_module, make_policy, make_group, micro_batch_tokens
):
    """1/N Σ over sequences of the mean of the surrogate (2509.11543): one more begins after each corrected step."""
    group, policy = make_group(0.0, 0.0, 0.0, 0.0), make_policy()
    wrong = [(0,), (0,), (), (1,)]  # the second and the last one have two steps
    pairs = zip(group.trajectories, wrong, strict=True)
    members = [corrected(policy.chat, trajectory, *places) for trajectory, places in pairs]
    group = replace(group, trajectories=tuple(members))
    assert [len(tokenize(each, policy.chat)) for each in members] == [1, 2, 1, 1]
    # Rewards .55 | .55, 1 | 1 | 1, .55: mean .775, sample deviation sqrt(6 * .225² / 5).
    episode = [[-1.0], [-1.0, 1.0], [1.0], [1.0, -1.0]]
    # Returns at step 0: .55, .55, 1, 1, of mean .775, sample deviation sqrt(4 * .225² / 3); at step 1: 1 and .55.
    step = [[-1.0], [-1.0, 1.0], [1.0], [1.0, -1.0]]
    scales = [(5 / 6) ** 0.5, (3 / 4) ** 0.5, 0.5**0.5]
    advantages = [
        [scales[0] * a + scales[1 + number] * b for number, (a, b) in enumerate(zip(*rows, strict=True))]
        for rows in zip(episode, step, strict=True)
    ]
    old = [[row.detach() for row in sampled_logprobs(policy, each)] for each in members]

    def loss():
        parts = []
        for trajectory, before, lessons, places in zip(members, old, advantages, wrong, strict=True):
            ratios = [(new - was).exp() for new, was in zip(sampled_logprobs(policy, trajectory), before, strict=True)]
            rows = [
                -torch.minimum(ratio * lesson, ratio.clamp(0.8, 1.3) * lesson)
                for ratio, lesson in zip(ratios, lessons, strict=True)
            ]
            alone = 0 in places and len(rows) == 2
            parts += [row.mean() for row in rows] if alone else [torch.cat(rows).mean()]
        return torch.stack(parts).mean()

    module = make_module(method=UIS1(least_spread=0.2), micro_batch_tokens=micro_batch_tokens)
    (taken_step,) = taken(module, group)
    assert_slopes(loss, policy, taken_step)
    record = module.last_update
    lengths = [each.action_tokens for each in members]
    assert [len(record.tokens(number)["logprobs"]) for number in range(4)] == lengths
    for number, (rows, lessons) in enumerate(zip(old, advantages, strict=True)):
        assert record.tokens(number)["old_logprobs"].tolist() == pytest.approx(torch.cat(rows).tolist(), abs=1e-5)
        means = sum(lesson * len(row) for lesson, row in zip(lessons, rows, strict=True)) / lengths[number]
        assert record.advantages[number] == pytest.approx(means, abs=1e-4)


def gae(rewards, values, discount, decay):
    """A_t = Σ_k (γ λ)^k δ_{t+k}, as it is written (1506.02438, equation 16)."""
    following = [*values[1:], 0.0]
    deltas = [r + discount * v - u for r, v, u in zip(rewards, following, values, strict=True)]
    return [sum((discount * decay) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


def critic_of(module):
    """A copy of the critic of a module, which has been moved from 0."""
    torch.manual_seed(0)
    torch.nn.init.normal_(module.critic.weight, std=0.05)
    return deepcopy(module.critic)


def states_by(policy, group):
    return [torch.cat(states_of(policy, trajectory)).detach() for trajectory in group.trajectories]


@pytest.mark.parametrize(
    ("method", "of_policy", "of_critic"),
    [
        (PPO(discount=0.9, gae_lambda=0.8, aggregation="token"), lambda _: 0.8, 0.8),
        (UITars2(discount=0.9, length_weight=0.2, aggregation="token"), lambda each: 1 - 5 / each.action_tokens, 1.0),
    ],
    ids=["ppo", "ui_tars2"],
)
def test_an_update_with_a_critic_is_the_slope_of_its_formula_for_policy_and_critic(
    make_module, make_policy, make_group, method, of_policy, of_critic
):
    """The mean over all tokens of the surrogate and of (V - A - V_old)² / 2, with a λ for each A in UI-TARS-2."""
    group, policy = make_group(1.0, 0.0), make_policy()
    assert all(0 < of_policy(trajectory) < 1 for trajectory in group.trajectories)
    module = make_module(method=method, critic_rate=1.0)
    critic, states = critic_of(module), states_by(policy, group)
    values = [critic(rows).detach()[:, 0] for rows in states]
    rewards = [torch.zeros_like(row) for row in values]
    rewards[0][-1] = 1.0
    decays = map(of_policy, group.trajectories)
    raw = [
        torch.tensor(gae(*map(torch.Tensor.tolist, pair), 0.9, decay))
        for *pair, decay in zip(rewards, values, decays, strict=True)
    ]
    whole = torch.cat(raw)
    advantages = [(row - whole.mean()) / whole.std(correction=0) for row in raw]
    pairs = zip(rewards, values, strict=True)
    targets = torch.cat([torch.tensor(gae(r.tolist(), v.tolist(), 0.9, of_critic)) + v for r, v in pairs])
    old = [logprobs_of(policy, trajectory).detach() for trajectory in group.trajectories]

    def loss():
        parts = zip(group.trajectories, old, advantages, strict=True)
        errors = (critic(torch.cat(states))[:, 0] - targets).square() / 2
        return (torch.cat([surrogate(policy, *part) for part in parts]) + errors).mean()

    for part, step in zip((policy, critic), taken(module, group), strict=True):
        assert_slopes(loss, part, step)


def test_an_update_of_digirl_is_the_slope_of_its_formula_for_policy_and_critic(make_module, make_policy, make_group):
    """The mean over all tokens of -1[A > 0] log π and of the cross-entropy between σ(V) and 1[G > 0]."""
    group, policy = make_group(0.0, 1.0, 0.0, 1.0), make_policy()  # the second and the fourth have two steps
    module = make_module(method=DigiRL(kept=0.3, aggregation="token"), critic_rate=1.0)
    critic, states = critic_of(module), states_by(policy, group)
    first = [critic(rows[:1]).detach().sigmoid().item() for rows in states]
    succeeded = torch.tensor([float(trajectory.task_reward) for trajectory in group.trajectories])
    best = max((1, 3), key=lambda member: 1 - first[member])  # 30 % of four are the best one and no other
    signs = [torch.zeros(len(rows)) for rows in states]
    lengths = group.trajectories[best].trained_lengths
    values = critic(states[best]).detach().sigmoid()[:, 0]
    gains = [values[lengths[0]] - values[0] - 0.05 + 0.0 + 0.5, 0 - values[lengths[0]] - 0.05 + 1.0 + 1.0]
    signs[best] = torch.tensor([float(gain > 0) for gain in gains]).repeat_interleave(torch.tensor(lengths))
    assert signs[best].any()
    targets = succeeded.repeat_interleave(torch.tensor([len(rows) for rows in states]))

    def loss():
        said = critic(torch.cat(states))[:, 0].sigmoid()
        entropies = -(targets * said.log() + (1 - targets) * (1 - said).log())
        imitated = torch.cat([logprobs_of(policy, trajectory) for trajectory in group.trajectories]) * torch.cat(signs)
        return (entropies - imitated).mean()

    for part, step in zip((policy, critic), taken(module, group), strict=True):
        assert_slopes(loss, part, step)
