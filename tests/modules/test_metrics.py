"""The averages of an update, and its record of each token, against forwards of its own."""

from dataclasses import dataclass, fields
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from arpo.algorithms.losses import CorrectionWeights, LossMetrics, TokenLoss
from arpo.methods.method import Credit
from arpo.models.policy import ActionLogprobs
from arpo.modules.metrics import Averages, UpdateMeter
from arpo.types import RolloutBatch
from tests.callbacks.support import make_group, make_trajectory
from tests.exchanges import with_exchanges
from tests.modules.conftest import fit, logprobs_of, rows, windowed
from tests.rollout.trajectories import foreign


def test_a_mean_is_weighted_a_total_adds_up_a_maximum_keeps_the_largest_and_a_mean_of_nothing_is_left_out():
    averages = Averages()
    averages.mean("a", 1.0, weight=3)
    averages.mean("a", 5.0)
    averages.mean("nothing", 1.0, weight=0)
    for value in (-2.0, -1.0, -3.0):
        averages.total("total", value)
        averages.maximum("most", value)
    assert averages.compute() == {"a": 2.0, "total": -6.0, "most": -1.0}  # (3 · 1 + 5) / 4


def metrics(tokens: int, ratio: float) -> LossMetrics:
    values = {name: torch.tensor(0.0) for name in ("approx_kl", "clipped_low", "clipped_high", "clipped_dual")}
    count, mean = torch.tensor(tokens), torch.tensor(ratio)
    return LossMetrics(tokens=count, ratio=mean * count, ratio_min=mean, ratio_max=mean, **values)


def test_micro_batches_are_averaged_by_their_tokens_and_so_is_what_a_method_measures_of_each():
    meter = UpdateMeter()
    for tokens, ratio, entropy in ((1, 2.0, 4.0), (3, 1.0, 1.0)):
        mask = torch.tensor([[index < tokens for index in range(3)]])
        out = ActionLogprobs(torch.zeros(1, 3), mask, torch.full((1, 3), entropy))
        errors = {"error": torch.tensor([[entropy, entropy, 1.0]])}
        meter.add(TokenLoss(torch.zeros(1, 3), metrics(tokens, ratio), errors), out, out.mask)
    computed = meter.compute()
    assert computed["train/error"] == 1.75
    assert computed["train/ratio_mean"] == 1.25  # (1 · 2 + 3 · 1) / 4
    assert computed["policy/entropy"] == 1.75  # (1 · 4 + 3 · 1) / 4
    assert computed["train/ratio_max"] == 2.0


@dataclass(frozen=True)
class Row:
    """A sequence of the one group, by its member."""

    member: int
    action_tokens: int
    filler: bool = False
    start: int = 0

    @property
    def key(self) -> tuple[int, int, tuple[tuple[int, int]]]:
        return 0, self.member, ((self.start, self.start + self.action_tokens),)


ONE, TWO = Row(0, 2), Row(1, 1)


def test_a_token_is_compared_with_the_engine_once_however_often_it_was_computed_and_a_filler_never():
    meter = UpdateMeter()
    for _ in range(2):  # of two epochs
        meter.note([ONE], trainer=[torch.tensor([-1.0, -2.0])], sampler=[torch.tensor([-1.5, -2.0])])
    meter.note([TWO], trainer=[torch.tensor([-3.0])], sampler=[torch.tensor([-2.0])])
    meter.note([Row(7, 1, filler=True)], trainer=[torch.tensor([-9.0])], sampler=[torch.tensor([0.0])])
    for _ in range(2):  # asked again, it says the same
        computed = meter.compute()
        assert computed["engine/logprob_gap_mean"] == 0.5  # (0.5 + 0 + 1) / 3
        assert computed["engine/logprob_gap_max"] == 1.0
        # e^.5 + 1 + e^-1 = 1.6487213 + 1 + 0.3678794 = 3.0166007; squares 2.7182818 + 1 + 0.1353353 = 3.8536171
        assert computed["policy/importance_mean"] == pytest.approx(3.0166007 / 3, abs=1e-6)
        assert computed["policy/importance_max"] == pytest.approx(1.6487213, abs=1e-6)
        assert computed["policy/importance_ess"] == pytest.approx(3.0166007**2 / (3 * 3.8536171), abs=1e-6)
        assert not [name for name in computed if name.endswith("_square")]


def test_weights_that_are_all_zero_have_no_effective_sample():
    meter = UpdateMeter()
    mask = torch.tensor([[True, True, False]])
    zeros = torch.zeros(1, 3)
    meter.add(TokenLoss(zeros), ActionLogprobs(zeros, mask, None), mask, CorrectionWeights(zeros, mask), mask)
    computed = meter.compute()
    assert (computed["policy/weight_ess"], computed["policy/weight_cut"]) == (0.0, 1.0)


def test_a_later_number_replaces_an_earlier_one_in_float32_and_padding_and_fillers_are_left_out():
    meter = UpdateMeter()
    filler = Row(1, 3, filler=True)
    for value in (1.0, 5.0):
        numbers = torch.tensor([[value, 2.0, 9.0], [3.0, 4.0, 5.0]], dtype=torch.bfloat16)
        meter.note([ONE, filler], logprobs=numbers, entropy=None)
        (row,) = meter.rows("logprobs").values()
        assert (row.dtype, row.tolist()) == (torch.float32, [value, 2.0])
    assert meter.rows("logprobs").keys() == {ONE.key}
    assert meter.rows("entropy") == {}


def test_tokens_stand_in_the_order_of_trajectories_and_steps_and_what_is_unknown_is_nan():
    one, two = make_trajectory(["a", "b"], id="3/0/0"), make_trajectory(["a"], id="1/0/1")  # 6 and 3 tokens
    meter = UpdateMeter()
    meter.note([Row(1, 3)], logprobs=torch.tensor([[-1.0, -2.0, -3.0]]))
    late = make_trajectory(["a"], id="2/0/0")
    batch = RolloutBatch(3, 4, [make_group(one, two, injected=(1,))], leftovers=[make_group(late)])
    record = meter.record(batch, [[Credit(torch.zeros(6)), Credit(torch.tensor([1.0, 1.5, 2.0]))]])
    assert (record.iteration, record.policy_version) == (3, 4)
    assert record.groups[0].members == ("3/0/0", "1/0/1")
    assert record.groups[0].injected == (1,)
    assert record.left_out == ("2/0/0",)
    assert record.offsets.tolist() == [0, 6, 9]
    assert record.advantages.tolist() == [0.0, 1.5]
    assert record.numbers["logprobs"][6:].tolist() == [-1.0, -2.0, -3.0]
    assert np.isnan(record.numbers["logprobs"][:6]).all()
    assert record.ratios().tolist() == []


def test_the_sequences_of_a_window_are_put_one_after_the_other():
    steps = with_exchanges(make_trajectory(["a", "b"], id="3/0/0"), parent=(None, None))
    meter = UpdateMeter()
    for start, numbers in ((3, [4.0, 5.0, 6.0]), (0, [1.0, 2.0, 3.0])):
        meter.note([Row(0, 3, start=start)], entropy=torch.tensor([numbers]))
    record = meter.record(RolloutBatch(3, 3, [make_group(steps)]), [[Credit(torch.zeros(6))]])
    assert record.numbers["entropy"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_the_tokens_of_paths_that_interleave_stand_in_the_order_of_their_exchanges():
    meter, made = UpdateMeter(), foreign()
    for spans, numbers in ((((2, 4), (5, 7)), [2.0, 3.0, 5.0, 6.0]), (((0, 2), (4, 5)), [0.0, 1.0, 4.0])):
        place = SimpleNamespace(key=(0, 0, spans), filler=False, action_tokens=len(numbers))
        meter.note([place], entropy=torch.tensor([numbers]))
    record = meter.record(RolloutBatch(3, 3, [make_group(made)]), [[Credit(torch.zeros(7))]])
    assert record.numbers["entropy"].tolist() == list(range(7))
    assert meter.by_trajectory("entropy")[0, 0].tolist() == list(range(7))


def test_collecting_asks_the_device_for_no_number():
    """On the meta device there are no numbers: to ask for one fails."""
    meter = UpdateMeter()
    values = metrics(1, 1.0)
    on_device = LossMetrics(**{field.name: getattr(values, field.name).to("meta") for field in fields(values)})
    mask = torch.ones(2, 3, dtype=torch.bool, device="meta")
    logprobs = torch.zeros(2, 3, device="meta")
    for _ in range(2):
        loss = TokenLoss(logprobs, on_device, {"numbers": logprobs})
        meter.add(loss, ActionLogprobs(logprobs, mask, logprobs), mask, CorrectionWeights(logprobs, mask), mask)
        meter.note([Row(0, 3)], trainer=[logprobs[0]], sampler=[logprobs[1]])
        meter.averages.total("train/loss", logprobs.sum())


def test_numbers_of_a_device_and_of_the_host_make_the_same_averages():
    averages = [Averages(), Averages()]
    for kept, number in zip(averages, (float, torch.tensor), strict=True):
        for value in (-2.5, -1.25, 3.0):
            kept.total("total", number(value))
            kept.maximum("most", number(value))
            kept.part("mean", number(value), 2)
    assert averages[0].compute() == averages[1].compute() == {"total": -0.75, "most": 3.0, "mean": -0.125}


def test_ranks_give_the_mean_of_everything_the_largest_of_all_and_the_mean_of_their_totals():
    one, two = Averages(), Averages()
    one.mean("a", 1.0, weight=3)
    two.mean("a", 5.0)
    for part, value in ((one, 2.0), (two, 4.0)):
        part.total("total", value)
        part.maximum("most", value)
    assert Averages.of_ranks([one, two]).compute() == {"a": 2.0, "total": 3.0, "most": 4.0}  # (3 · 1 + 5) / 4


SLOW = partial(torch.optim.SGD, lr=0.05)


@pytest.mark.parametrize("epochs", [1, 2])
def test_before_and_in_and_after_are_those_of_the_policy_at_that_moment(make_module, make_policy, make_group, epochs):
    one, two = make_group(1.0, 0.0), make_group(0.0, 1.0, first=3)
    module = make_module(minibatches=2, epochs=epochs, optimizer=SLOW)
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
    keys = {(number, member) for number in range(2) for member in range(2)}
    assert rows(module, "after_logprobs").keys() == keys
    gaps = {key: rows(module, "logprobs")[key] - rows(module, "old_logprobs")[key] for key in keys}
    found = torch.from_numpy(module.last_update.ratios()).sort().values
    assert_close(torch.cat([*gaps.values()]).exp().sort().values, found, rtol=0, atol=1e-6)
    # In one epoch the minibatch that came first is learned from before any step, in a second one none is.
    moved = sorted(max(gaps[number, member].abs().max() for member in range(2)) for number in range(2))
    assert moved[1] > 1e-5
    assert (moved[0] == 0) == (epochs == 1)
    old, now = rows(module, "old_entropy"), rows(module, "entropy")
    assert old.keys() == now.keys() == keys
    assert sum(torch.equal(old[key], now[key]) for key in keys) == (2 if epochs == 1 else 0)
    assert all((row > 0).all() for row in old.values())


def test_a_group_without_a_signal_has_advantages_and_no_numbers(make_module, make_group):
    module = make_module(optimizer=SLOW)
    fit(module, [make_group(0.0, 0.0), make_group(1.0, 0.0, first=3)])
    assert {key[0] for key in rows(module, "logprobs")} == {1}
    assert rows(module, "after_logprobs") == {}  # not asked for
    advantages = module.last_update.advantages
    assert advantages[0] == advantages[1] == 0.0
    assert advantages[2] == pytest.approx(1.0, abs=3e-6)


def test_a_window_has_a_sequence_a_step_and_each_is_recorded(make_module, make_group):
    group = make_group(1.0, 0.0)
    module = make_module(optimizer=SLOW)
    fit(module, [windowed(group, module.policy.chat)])
    lengths = {(0, member): each.action_tokens for member, each in enumerate(group.trajectories)}
    assert {place: len(row[~row.isnan()]) for place, row in rows(module, "logprobs").items()} == lengths


def test_weights_of_a_correction_are_recorded(make_module, make_group):
    module = make_module(correction="tis_token", optimizer=SLOW)
    fit(module, [make_group(1.0, 0.0)])
    found = rows(module, "weights")
    assert found.keys() == {(0, 0), (0, 1)}
    assert (found[0, 0] != 1).any()
