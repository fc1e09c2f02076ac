"""What an update records of every token, against forwards of its own."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from arpo.modules.token_record import TokenRecord
from tests.modules.conftest import fit
from tests.modules.test_grpo import logprobs_of

SLOW = partial(torch.optim.SGD, lr=0.05)


def keys_of(*groups):
    return {(number, member, 0) for number, group in enumerate(groups) for member in range(len(group.trajectories))}


def test_before_and_in_and_after_are_those_of_the_policy_at_that_moment(make_module, make_policy, make_group):
    one, two = make_group(1.0, 0.0), make_group(0.0, 1.0, first=3)
    module = make_module(minibatches=2, optimizer=SLOW)
    module.measures_after = True
    policy = make_policy()
    fit(module, [one, two])
    record = module.last_tokens
    for number, group in enumerate((one, two)):
        for member, trajectory in enumerate(group.trajectories):
            key = (number, member, 0)
            before = logprobs_of(policy, trajectory).detach()
            after = logprobs_of(module.policy, trajectory).detach()
            assert_close(record.rows("old_logprobs")[key], before, rtol=0, atol=1e-5)
            assert_close(record.rows("after_logprobs")[key], after, rtol=0, atol=1e-5)
            assert (before - after).abs().max() > 1e-4  # the update changed something
    ratios = [record.rows("logprobs")[key] - record.rows("old_logprobs")[key] for key in keys_of(one, two)]
    assert_close(torch.cat(ratios).exp().sort().values, module.last_update["ratio"].sort().values, rtol=0, atol=1e-6)


def test_the_first_minibatch_is_learned_from_before_any_step_and_the_second_after_one(make_module, make_group):
    module = make_module(minibatches=2, optimizer=SLOW)
    fit(module, [make_group(1.0, 0.0), make_group(0.0, 1.0, first=3)])
    record = module.last_tokens
    moved = {
        number: max(
            (record.rows("logprobs")[number, member, 0] - record.rows("old_logprobs")[number, member, 0]).abs().max()
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
    old, now = module.last_tokens.rows("old_entropy"), module.last_tokens.rows("entropy")
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
    record = module.last_tokens
    before = logprobs_of(policy, group.trajectories[0]).detach()
    assert_close(record.rows("old_logprobs")[0, 0, 0], before, rtol=0, atol=1e-5)
    assert (record.rows("logprobs")[0, 0, 0] - before).abs().max() > 1e-5


def test_after_is_measured_once_however_many_epochs(make_module, make_group):
    module = make_module(minibatches=2, epochs=2, optimizer=SLOW)
    module.measures_after = True
    fit(module, [make_group(1.0, 0.0), make_group(0.0, 1.0, first=3)])
    assert module.last_tokens.rows("after_logprobs").keys() == module.last_tokens.rows("logprobs").keys()


def test_without_being_asked_nothing_is_measured_after(make_module, make_group):
    module = make_module(optimizer=SLOW)
    fit(module, [make_group(1.0, 0.0)])
    assert module.last_tokens.rows("after_logprobs") == {}


def test_a_group_without_a_signal_has_advantages_and_no_numbers(make_module, make_group):
    module = make_module(optimizer=SLOW)
    fit(module, [make_group(0.0, 0.0), make_group(1.0, 0.0, first=3)])
    record = module.last_tokens
    assert {key[0] for key in record.rows("logprobs")} == {1}
    advantages = record.mean_advantages()
    assert advantages[0, 0] == advantages[0, 1] == 0.0
    assert advantages[1, 0] == pytest.approx(1.0, abs=3e-6)


def test_a_window_has_a_sequence_a_step_and_each_is_recorded(make_module, make_group):
    group = make_group(1.0, 0.0)
    windowed = replace(group, trajectories=tuple(replace(t, image_window=1) for t in group.trajectories))
    module = make_module(optimizer=SLOW)
    fit(module, [windowed])
    steps = {(0, m, part) for m, t in enumerate(group.trajectories) for part in range(len(t.steps))}
    assert module.last_tokens.rows("logprobs").keys() == steps


def test_weights_of_a_correction_are_recorded(make_module, make_group):
    module = make_module(correction="tis_token", optimizer=SLOW)
    fit(module, [make_group(1.0, 0.0)])
    rows = module.last_tokens.rows("weights")
    assert rows.keys() == {(0, 0, 0), (0, 1, 0)}
    assert (rows[0, 0, 0] != 1).any()


def test_a_later_number_replaces_an_earlier_one_and_padding_and_fillers_are_left_out():
    record = TokenRecord()
    one = SimpleNamespace(key=(0, 0, 0), advantages=torch.ones(2), filler=False, action_tokens=2)
    filler = SimpleNamespace(key=(0, 1, 0), advantages=torch.ones(3), filler=True, action_tokens=3)
    record.add([one, filler], logprobs=torch.tensor([[1.0, 2.0, 9.0], [3.0, 4.0, 5.0]]), entropy=None)
    record.add([one], logprobs=torch.tensor([[5.0, 6.0, 9.0]]))
    assert {key: row.tolist() for key, row in record.rows("logprobs").items()} == {(0, 0, 0): [5.0, 6.0]}
    assert record.rows("entropy") == {}


def test_what_ranks_recorded_comes_together():
    records = [TokenRecord(), TokenRecord()]
    for rank, record in enumerate(records):
        sample = SimpleNamespace(
            key=(rank, 0, 0), advantages=torch.full((1,), float(rank)), filler=False, action_tokens=1
        )
        record.add([sample], logprobs=torch.tensor([[float(rank)]]))
        record.weigh([sample])
    records[0].merge(records[1])
    assert {key: row.tolist() for key, row in records[0].rows("logprobs").items()} == {
        (0, 0, 0): [0.0],
        (1, 0, 0): [1.0],
    }
    assert records[0].mean_advantages() == {(0, 0): 0.0, (1, 0): 1.0}


def test_what_is_added_after_a_look_is_brought_to_the_host_in_float32_too():
    record = TokenRecord()
    sample = SimpleNamespace(key=(0, 0, 0), advantages=torch.ones(1), filler=False, action_tokens=1)
    for value in (1.0, 2.0):
        record.add([sample], logprobs=torch.tensor([[value]], dtype=torch.bfloat16))
        (row,) = record.rows("logprobs").values()
        assert (row.dtype, row.tolist()) == (torch.float32, [value])
