"""The record of an update, against forwards of its own."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from tests.modules.conftest import fit, rows
from tests.modules.test_grpo import logprobs_of

SLOW = partial(torch.optim.SGD, lr=0.05)


def keys_of(*groups):
    return {(number, member) for number, group in enumerate(groups) for member in range(len(group.trajectories))}


def test_before_and_in_and_after_are_those_of_the_policy_at_that_moment(make_module, make_policy, make_group):
    one, two = make_group(1.0, 0.0), make_group(0.0, 1.0, first=3)
    module = make_module(minibatches=2, optimizer=SLOW)
    module.measures_after = True
    policy = make_policy()
    fit(module, [one, two])
    for number, group in enumerate((one, two)):
        for member, trajectory in enumerate(group.trajectories):
            key = (number, member)
            before = logprobs_of(policy, trajectory).detach()
            after = logprobs_of(module.policy, trajectory).detach()
            assert_close(rows(module, "old_logprobs")[key], before, rtol=0, atol=1e-5)
            assert_close(rows(module, "after_logprobs")[key], after, rtol=0, atol=1e-5)
            assert (before - after).abs().max() > 1e-4  # the update changed something
    ratios = [rows(module, "logprobs")[key] - rows(module, "old_logprobs")[key] for key in keys_of(one, two)]
    found = torch.from_numpy(module.last_update.ratios()).sort().values
    assert_close(torch.cat(ratios).exp().sort().values, found, rtol=0, atol=1e-6)


def test_the_first_minibatch_is_learned_from_before_any_step_and_the_second_after_one(make_module, make_group):
    module = make_module(minibatches=2, optimizer=SLOW)
    fit(module, [make_group(1.0, 0.0), make_group(0.0, 1.0, first=3)])
    moved = {
        number: max(
            (rows(module, "logprobs")[number, member] - rows(module, "old_logprobs")[number, member]).abs().max()
            for member in range(2)
        )
        for number in range(2)
    }
    first, second = sorted(moved.values())
    assert first == 0
    assert second > 1e-5


def test_entropies_are_recorded_before_and_in_the_update(make_module, make_group):
    module = make_module(minibatches=2, optimizer=SLOW)
    fit(module, [make_group(1.0, 0.0), make_group(0.0, 1.0, first=3)])
    old, now = rows(module, "old_entropy"), rows(module, "entropy")
    assert old.keys() == now.keys() == keys_of(make_group(1.0, 0.0), make_group(0.0, 1.0, first=3))
    same = [torch.equal(old[key], now[key]) for key in old]
    assert sorted(same) == [False, False, True, True]  # the minibatch that came first, and the other
    assert all((row > 0).all() for row in old.values())


def test_a_second_epoch_counts_and_the_policy_before_the_update_stays_that_before(
    make_module, make_policy, make_group
):
    group = make_group(1.0, 0.0)
    module = make_module(minibatches=1, epochs=2, optimizer=SLOW)
    policy = make_policy()
    fit(module, [group])
    before = logprobs_of(policy, group.trajectories[0]).detach()
    assert_close(rows(module, "old_logprobs")[0, 0], before, rtol=0, atol=1e-5)
    assert (rows(module, "logprobs")[0, 0] - before).abs().max() > 1e-5


def test_after_is_measured_once_however_many_epochs(make_module, make_group):
    module = make_module(minibatches=2, epochs=2, optimizer=SLOW)
    module.measures_after = True
    fit(module, [make_group(1.0, 0.0), make_group(0.0, 1.0, first=3)])
    assert rows(module, "after_logprobs").keys() == rows(module, "logprobs").keys()


def test_without_being_asked_nothing_is_measured_after(make_module, make_group):
    module = make_module(optimizer=SLOW)
    fit(module, [make_group(1.0, 0.0)])
    assert rows(module, "after_logprobs") == {}


def test_a_group_without_a_signal_has_advantages_and_no_numbers(make_module, make_group):
    module = make_module(optimizer=SLOW)
    fit(module, [make_group(0.0, 0.0), make_group(1.0, 0.0, first=3)])
    assert {key[0] for key in rows(module, "logprobs")} == {1}
    advantages = module.last_update.advantages
    assert advantages[0] == advantages[1] == 0.0
    assert advantages[2] == pytest.approx(1.0, abs=3e-6)


def test_a_window_has_a_sequence_a_step_and_each_is_recorded(make_module, make_group):
    group = make_group(1.0, 0.0)
    windowed = replace(group, trajectories=tuple(replace(t, image_window=1) for t in group.trajectories))
    module = make_module(optimizer=SLOW)
    fit(module, [windowed])
    lengths = {(0, member): each.action_tokens for member, each in enumerate(group.trajectories)}
    assert {place: len(row[~row.isnan()]) for place, row in rows(module, "logprobs").items()} == lengths


def test_weights_of_a_correction_are_recorded(make_module, make_group):
    module = make_module(correction="tis_token", optimizer=SLOW)
    fit(module, [make_group(1.0, 0.0)])
    found = rows(module, "weights")
    assert found.keys() == {(0, 0), (0, 1)}
    assert (found[0, 0] != 1).any()
