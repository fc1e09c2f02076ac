"""Entropulse: when the phase begins, what an update learns in it, and that the run goes on as before."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from arpo.callbacks.entropulse import IMITATION, Entropulse
from arpo.errors import ConfigError
from arpo.methods.computer_rl import ComputerRL
from arpo.methods.grpo import GRPO
from arpo.methods.method import TokenTerms
from arpo.replay import ReplayBuffer
from arpo.types import RolloutBatch
from tests.callbacks.support import IdleModule, reloaded
from tests.invariant.ranks import OnRankZero, quiet_trainer
from tests.modules.conftest import loaded_policy, logprobs_of, make_group, make_module, make_policy, weights

__all__ = ["loaded_policy", "make_group", "make_module", "make_policy"]


@pytest.fixture
def past(make_group):
    """What the run has done: two successes at one task, one at another."""
    return RolloutBatch(0, 0, [make_group(1.0, 1.0, 0.0), make_group(0.0, 1.0, first=3)])


def pulse(**options) -> Entropulse:
    return Entropulse(ReplayBuffer(), GRPO(), **options)


def state(past, entropies=(1.0, 0.1), taken=0):
    """The state of a callback that has seen these entropies, and the successes of that batch."""
    callback = pulse()
    callback.buffer.admit_all(past.groups)
    return {"buffer": callback.buffer.state_dict(), "entropies": list(entropies), "taken": taken}


def run(module, callback, past, *batches):
    """Train one iteration a batch, with the episodes of the past in the store."""
    data = OnRankZero(list(batches))
    data.runtime = OnRankZero([past, *batches]).runtime
    options = {"max_epochs": len(batches), "callbacks": [callback], "reload_dataloaders_every_n_epochs": 1}
    trainer = quiet_trainer(1, "auto", **options)
    trainer.fit(module, data)
    return {name: value.item() for name, value in trainer.callback_metrics.items()}


@pytest.mark.parametrize("old", ["recompute", "stored"])
def test_the_update_imitates_one_success_a_task_and_nothing_that_was_collected(
    make_module, make_policy, make_group, past, old
):
    """The gradient is that of -log π, the mean over all tokens of the successes; the method comes back."""
    usual = ComputerRL()
    module, policy, callback = make_module(method=usual, replayed_old_logprobs=old), make_policy(), pulse(window=1)
    callback.load_state_dict(state(past))
    collected = make_group(1.0, 0.0, first=9)
    replayed = replace(past.groups[1], trajectories=(*collected.trajectories, past.groups[1].trajectories[1]))
    batch = RolloutBatch(7, 7, [replace(replayed, task=collected.task, injected=(2,))])
    start = weights(module.policy)
    logged = run(module, callback, past, batch)
    imitated = [group.trajectories[0] for group in batch.groups]
    assert [group.injected for group in batch.groups] == [(0,), (0,)]
    assert [group.task.id for group in batch.groups] == ["task0", "task3"]
    assert all(each.task_reward == 1.0 for each in imitated)
    assert batch.leftovers == [collected]  # without what replay had put in
    assert logged["entropulse/imitated"] == 2.0
    (-torch.cat([logprobs_of(policy, each) for each in imitated]).mean()).backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])
    assert_close(start - weights(module.policy), gradient, rtol=1e-3, atol=1e-5)
    assert (module.objective, module.replayed_old_logprobs) == (usual, old)
    assert callback.state_dict()["taken"] == 1
    assert len(callback.buffer) == 4  # what was collected meanwhile has a success, too


def test_what_imitates_is_not_clipped_where_earlier_minibatches_have_moved_the_policy():
    logprobs = torch.log(torch.tensor([[0.2, 0.9, 0.3]])).requires_grad_()
    terms = TokenTerms(
        logprobs=logprobs,
        old_logprobs=torch.log(torch.tensor([[0.2, 0.5, 0.5]])),  # ratios 1, 1.8 and 0.6
        advantages=torch.ones(1, 3),
        mask=torch.ones(1, 3, dtype=torch.bool),
    )
    IMITATION.loss(terms).losses.sum().backward()
    assert logprobs.grad.tolist() == [[-1.0, -1.0, -1.0]]


def test_after_the_phase_the_run_goes_on_and_no_other_phase_comes(make_module, make_group, past):
    module = make_module(optimizer=partial(torch.optim.SGD, lr=1e-3))
    callback = pulse(window=1)
    callback.load_state_dict(state(past))
    batches = [RolloutBatch(n, n, [make_group(1.0, 0.0, first=9)]) for n in range(3)]
    run(module, callback, past, *batches)
    assert [len(batch.leftovers) for batch in batches] == [1, 0, 0]
    assert callback.state_dict()["taken"] == 1
    # updates of the phase tell nothing of the run's entropy
    assert len(callback.state_dict()["entropies"]) == 2 + 2


def test_the_entropy_is_the_logged_one_and_an_update_that_computes_nothing_has_none(make_module, make_group, past):
    callback = pulse()
    logged = run(make_module(), callback, past, RolloutBatch(1, 1, [make_group(1.0, 0.0, first=9)]))
    assert callback.state_dict()["entropies"] == pytest.approx([logged["policy/entropy"]], rel=1e-4)
    assert logged["entropulse/imitated"] == 0.0
    flat = pulse()
    run(make_module(), flat, past, RolloutBatch(1, 1, [make_group(0.0, 0.0, first=9)]))
    assert flat.state_dict()["entropies"] == []


@pytest.mark.parametrize(
    ("entropies", "taken", "begins"),
    [
        ([], 0, False),
        ([1.0, 1.0, 0.1], 0, False),  # the mean of the last two is 0.55
        ([1.0, 1.0, 0.3, 0.6], 0, True),
        ([1.0, 1.0, 0.5, 0.5], 0, False),  # not below the half
        ([1.0, 1.0, 0.1, 0.1], 3, False),  # it is over
        ([1.0, 1.0, 2.0, 2.0], 2, True),  # one of three updates is left
    ],
)
@pytest.mark.parametrize("has_successes", [True, False])
def test_it_begins_once_the_mean_of_the_last_updates_is_below_a_share_of_the_first(
    make_module, past, entropies, taken, begins, has_successes
):
    module, callback = make_module(), pulse(window=2, iterations=3)
    callback.load_state_dict(state(past, entropies, taken))
    if has_successes:
        callback.buffer.admit_all(past.groups)
    callback.on_train_batch_start(None, module, RolloutBatch(9, 9, []), 0)
    assert (module.objective is IMITATION) == (begins and has_successes)
    if begins and has_successes:
        with pytest.raises(ConfigError, match="learns from rollouts, got IdleModule"):
            callback.on_train_batch_start(None, IdleModule(), RolloutBatch(9, 9, []), 0)


def test_it_goes_on_from_the_checkpoint_and_the_store(make_module, make_group, past):
    def go_on(kept):
        callback, batch = pulse(window=1, iterations=2), RolloutBatch(7, 7, [make_group(1.0, 0.0, first=9)])
        callback.load_state_dict(kept)
        run(make_module(), callback, past, batch)
        return [group.trajectories[0].id for group in batch.groups], reloaded(callback.state_dict())

    first = go_on(state(past))
    assert go_on(state(past)) == first
    assert first[1]["taken"] == 1
