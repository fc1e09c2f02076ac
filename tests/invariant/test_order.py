"""What must not change an update: how it is cut, in which order it comes, and where a trajectory comes from."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from arpo.methods.method import TokenTerms
from tests.modules.conftest import fit, samples, weights


@pytest.fixture
def groups(make_group):
    """Three groups of several lengths, with successes, failures and a format error."""
    return [
        make_group(1.0, 0.0, 0.0),
        make_group(0.0, 1.0, first=3),
        make_group(0.0, 0.0, 1.0, 0.0, formats=(-1.0, 0.0, 0.0, 0.0), first=5),
    ]


@pytest.fixture
def gradient(make_module):
    """Minus the gradient of one update, learned from plain gradient descent with rate 1, through Trainer.fit."""

    def of(groups, **options):
        module = make_module(**options)
        before = weights(module.policy)
        fit(module, groups)
        change = weights(module.policy) - before
        assert change.abs().max() > 1e-3  # there is something that could differ
        return change

    return of


def same(one, other):
    assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"aggregation": "token"}, {"level": "sequence"}], ids=str)
def test_micro_batches_of_any_size_give_the_same_gradient(gradient, groups, options):
    whole = gradient(groups, **options)
    for tokens in (1, 150, 400):
        same(gradient(groups, micro_batch_tokens=tokens, **options), whole)


def test_the_order_of_groups_and_of_trajectories_in_a_group_does_not_matter(gradient, groups):
    turned = [replace(group, trajectories=group.trajectories[::-1]) for group in groups]
    same(gradient(groups[::-1]), gradient(groups))
    same(gradient(turned), gradient(groups))


def test_an_injected_trajectory_teaches_what_a_collected_one_teaches(gradient, groups):
    injected = [replace(groups[0], injected=(0,)), *groups[1:]]
    assert torch.equal(gradient(injected), gradient(groups))


def test_a_group_in_which_all_failed_pulls_at_nothing(make_module, make_group, groups):
    """Its gradient is not small but zero, in every parameter, when it is computed instead of being left out."""
    module = make_module(kl_coefficient=0.0)
    fit(module, groups[:1])  # attaches a trainer
    (members,) = samples(module, make_group(0.0, 0.0, 0.0, first=11))
    assert [sample.teaches for sample in members] == [False, False, False]
    screenshots = {key: png for sample in members for key, png in sample.screenshots.items()}
    output = module.action_logprobs([sample.tokens for sample in members], screenshots)
    before = output.logprobs.detach()
    advantages = torch.zeros_like(before)
    (minibatch,) = module.plan([members], 0)
    average = module.objective.average(float(minibatch.sequences), float(minibatch.action_tokens), 1.0, 1.0)
    terms = TokenTerms(output.logprobs, before, advantages, output.mask)
    average(module.objective.loss(terms).losses, output.mask).backward()
    gradients = [parameter.grad for parameter in module.trainable_parameters()]
    assert all(gradient is not None and torch.count_nonzero(gradient) == 0 for gradient in gradients)
    assert not minibatch.samples  # and so the update leaves it out
