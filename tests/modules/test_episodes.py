"""The aggregation `episode`: an episode weighs as any other, on however many sequences its tokens are."""

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from arpo.methods.grpo import GRPO
from arpo.methods.method import Credit
from arpo.types import Group, Task
from tests.exchanges import with_exchanges
from tests.models.samples import trajectory as sampled
from tests.modules.conftest import fit, logprobs_of, metrics, moved, sampled_logprobs, weights, windowed

PATH, FORK, ROOTS = (None, 0, 1), (None, 0, 0), (None, None, None)
"""The parents of three exchanges: one sequence, two that share the first exchange, and three."""


def split(trajectory, parents):
    """The trajectory with its exchanges as another tree, which says the same."""
    return with_exchanges(trajectory, parent=parents)


@pytest.fixture
def episodes(loaded_policy):
    """Episodes of three steps, of one and of two, the first a success."""
    found = [sampled(loaded_policy.chat, seeds) for seeds in ((1, 2, 3), (4,), (5, 6))]
    return [replace(each, task_id="t", task_reward=float(number == 0)) for number, each in enumerate(found)]


class Noted(torch.optim.SGD):
    """Gradient descent that stays where it is, and adds up the gradients of its steps."""

    def __init__(self, parameters, total):
        super().__init__(parameters, lr=0.0)
        self.total = total

    def step(self, closure=None):
        loss = super().step(closure)
        parts = [parameter.grad.flatten() for group in self.param_groups for parameter in group["params"]]
        self.total.append(torch.cat(parts).clone())
        return loss


@dataclass(frozen=True, kw_only=True)
class Second(GRPO):
    """A lesson for the second member of each group alone."""

    def credits(self, groups, scores=None):
        return [
            [Credit.of_trajectory(each, float(number == 1)) for number, each in enumerate(group.trajectories)]
            for group in groups
        ]


@pytest.mark.parametrize(("parents", "sequences"), [(PATH, 1), (FORK, 2), (ROOTS, 3)])
@pytest.mark.parametrize("aggregation", ["episode", "sequence"])
def test_an_episode_that_is_split_takes_no_weight_from_another(make_module, episodes, aggregation, parents, sequences):
    """An update from the other alone: with `sequence`, its part is 1 of 1 + k sequences, and else 1 of 2 episodes."""

    def change(first):
        module = make_module(method=Second(aggregation=aggregation))
        before = weights(module.policy)
        fit(module, [Group(Task("t", "Click."), (first, episodes[1]))])
        return weights(module.policy) - before

    part = 2 / (1 + sequences) if aggregation == "sequence" else 1.0
    assert_close(change(split(episodes[0], parents)), part * change(episodes[0]), rtol=1e-3, atol=1e-6)


def in_words(trajectory, chat):
    """The episode as an agent would play it that shows the model no picture."""
    first = trajectory.exchanges[0]
    words = tuple(each for each in first.added_ids if each != chat.image_token_id)
    return replace(trajectory, steps=(), exchanges=(replace(first, added_ids=words, pictures=()),), screenshots={})


@pytest.mark.parametrize("frozen", [False, True], ids=["trained tower", "frozen tower"])
def test_episodes_without_a_picture_are_learned_from(make_module, episodes, frozen):
    module = make_module()
    module.policy.vision.requires_grad_(not frozen)
    group = Group(Task("t", "Click."), tuple(in_words(each, module.policy.chat) for each in episodes[:2]))
    before = [sampled_logprobs(module, each) for each in group.trajectories]
    fit(module, [group])
    after = [sampled_logprobs(module, each) for each in group.trajectories]
    success, failure = (sum(new) - sum(old) for old, new in zip(before, after, strict=True))
    assert success > max(0, failure)


def mean_loss(policy, groups, method, reference=None):
    """1/E Σ_e 1/T_e Σ_t of -A log π, and of the estimate k2 of a divergence: the plain formula."""
    parts, divergences = [], []
    for group, credits in zip(groups, method.credits(groups), strict=True):
        for episode, credit in zip(group.trajectories, credits, strict=True):
            if not episode.action_tokens:
                continue
            logprobs = logprobs_of(policy, episode)
            parts.append(-(credit.advantages * logprobs).mean())
            with torch.no_grad():
                before = logprobs if reference is None else logprobs_of(reference, episode)
            divergences.append((logprobs - before).square().mean() / 2)
    return sum(parts) / len(parts), sum(divergences) / len(divergences)


@pytest.mark.parametrize("minibatches", [1, 2])
@pytest.mark.parametrize("micro_batch_tokens", [100, 65536])
def test_the_minibatches_of_a_pass_have_the_gradient_of_the_plain_formula(
    make_module, make_policy, make_group, episodes, minibatches, micro_batch_tokens
):
    """Two of three groups share a minibatch: forks, an image window, a replayed one, and one without a token."""
    policy, reference = make_policy(), moved(make_policy(), 3)
    untrained = with_exchanges(episodes[1], trained=[False])
    groups = [
        Group(Task("t", "Click."), (split(episodes[0], FORK), untrained, episodes[2]), injected=(0,)),
        windowed(make_group(0.0, 1.0, first=7), policy.chat),
        make_group(1.0, 0.0, 0.0, first=9),
    ]
    total, options = [], {"aggregation": "episode", "kl_coefficient": 0.5, "kl": "k2"}
    loss, divergence = mean_loss(policy, groups, GRPO(**options), reference)
    (loss + 0.5 * divergence).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])

    sizes = {"minibatches": minibatches, "micro_batch_tokens": micro_batch_tokens}
    module = make_module(optimizer=partial(Noted, total=total), reference=lambda: reference, **sizes, **options)
    logged = metrics(fit(module, groups))
    assert len(total) == minibatches
    assert_close(sum(total) / minibatches, expected, rtol=1e-3, atol=1e-5)
    assert logged["train/kl_reference"] == pytest.approx(divergence.item(), rel=1e-4)


def test_tokens_of_steps_that_are_left_out_still_count_in_their_episode(make_module, make_policy, make_group):
    """As they count in every other average: one of an episode's two steps is selected, and half of it is trained."""
    policy, module = make_policy(), make_module(aggregation="episode", high_entropy_steps=0.5)
    group = windowed(make_group(1.0, 0.0), policy.chat)  # of one step and of two, of which two in all are kept
    before, parts, kept = weights(module.policy), [], []
    fit(module, [group])
    for at, (episode, advantage) in enumerate(zip(group.trajectories, (1.0, -1.0), strict=True)):
        selected = module.last_update.tokens(at).get("weights")
        selected = torch.zeros(episode.action_tokens) if selected is None else torch.from_numpy(selected).nan_to_num()
        kept += [part.mean().item() for part in selected.split(episode.trained_lengths)]
        parts.append(-(advantage * selected * logprobs_of(policy, episode)).mean())
    (sum(parts) / 2).backward()
    assert sorted(kept) == [0.0, 1.0, 1.0]
    gradient = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])
    assert_close(before - weights(module.policy), gradient, rtol=1e-3, atol=1e-5)


def test_of_episodes_that_are_a_sequence_each_it_is_their_average_by_sequence(make_module, make_group):
    """To the last digit: what an image window or a fork does not split is trained as before."""
    found = []
    for aggregation in ("sequence", "episode"):
        module = make_module(aggregation=aggregation)
        fit(module, [make_group(1.0, 0.0, 0.0)])
        found.append(weights(module.policy))
    assert torch.equal(*found)
