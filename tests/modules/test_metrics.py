"""The averages of an update, and its record of each token, against forwards of its own."""

from dataclasses import dataclass, fields, replace
from functools import partial

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
from tests.modules.conftest import fit, logprobs_of, rows


def test_a_mean_is_weighted():
    averages = Averages()
    averages.mean("a", 1.0, weight=3)
    averages.mean("a", 5.0)
    assert averages.compute() == {"a": 2.0}  # (3 · 1 + 5) / 4


def test_a_total_adds_up_and_a_maximum_keeps_the_largest():
    averages = Averages()
    for value in (-2.0, -1.0, -3.0):
        averages.total("total", value)
        averages.maximum("most", value)
    assert averages.compute() == {"total": -6.0, "most": -1.0}


def test_a_mean_of_nothing_is_left_out():
    averages = Averages()
    averages.mean("a", 1.0, weight=0)
    assert averages.compute() == {}


def metrics(tokens: int, ratio: float) -> LossMetrics:
    values = {name: torch.tensor(0.0) for name in ("approx_kl", "clipped_low", "clipped_high", "clipped_dual")}
    return LossMetrics(
        tokens=torch.tensor(tokens),
        ratio=torch.tensor(ratio * tokens),
        ratio_min=torch.tensor(ratio),
        ratio_max=torch.tensor(ratio),
        **values,
    )


def output(logprobs: list[list[float]], mask: list[list[bool]], entropy: float | None = None) -> ActionLogprobs:
    entropies = None if entropy is None else torch.full((len(mask), len(mask[0])), entropy)
    return ActionLogprobs(torch.tensor(logprobs), torch.tensor(mask), entropies)


def test_micro_batches_are_averaged_by_their_tokens():
    meter = UpdateMeter()
    for tokens, ratio, entropy in ((1, 2.0, 4.0), (3, 1.0, 1.0)):
        out = output([[0.0] * 3], [[index < tokens for index in range(3)]], entropy)
        meter.add(TokenLoss(torch.zeros(1, 3), metrics(tokens, ratio)), out, out.mask)
    computed = meter.compute()
    assert computed["train/ratio_mean"] == 1.25  # (1 · 2 + 3 · 1) / 4
    assert computed["policy/entropy"] == 1.75  # (1 · 4 + 3 · 1) / 4
    assert computed["train/ratio_max"] == 2.0


def test_what_a_method_measures_of_each_token_is_averaged_over_tokens():
    meter = UpdateMeter()
    out = output([[0.0, 0.0]], [[True, False]])
    loss = TokenLoss(torch.zeros(1, 2), metrics(1, 1.0), {"error": torch.tensor([[3.0, 9.0]])})
    meter.add(loss, out, out.mask)
    assert meter.compute()["train/error"] == 3.0


@dataclass(frozen=True)
class Row:
    """A sequence of the one group, by its member."""

    member: int
    action_tokens: int
    filler: bool = False
    start: int = 0

    @property
    def key(self) -> tuple[int, int, int]:
        return 0, self.member, self.start


ONE, TWO = Row(0, 2), Row(1, 1)


def test_the_gap_between_engine_and_trainer_is_measured_as_mean_and_maximum():
    meter = UpdateMeter()
    meter.note([ONE], trainer=[torch.tensor([-1.0, -2.0])], sampler=[torch.tensor([-1.5, -2.0])])
    meter.note([TWO], trainer=[torch.tensor([-3.0])], sampler=[torch.tensor([-2.0])])
    computed = meter.compute()
    assert computed["engine/logprob_gap_mean"] == 0.5  # (0.5 + 0 + 1) / 3
    assert computed["engine/logprob_gap_max"] == 1.0


def test_the_ratios_between_trainer_and_engine_are_measured_with_their_effective_sample_size():
    meter = UpdateMeter()
    meter.note([ONE], trainer=[torch.tensor([-1.0, -2.0])], sampler=[torch.tensor([-1.5, -2.0])])
    meter.note([TWO], trainer=[torch.tensor([-3.0])], sampler=[torch.tensor([-2.0])])
    computed = meter.compute()
    # e^.5 + 1 + e^-1 = 1.6487213 + 1 + 0.3678794 = 3.0166007; squares 2.7182818 + 1 + 0.1353353 = 3.8536171
    assert computed["policy/importance_mean"] == pytest.approx(3.0166007 / 3, abs=1e-6)
    assert computed["policy/importance_max"] == pytest.approx(1.6487213, abs=1e-6)
    assert computed["policy/importance_ess"] == pytest.approx(3.0166007**2 / (3 * 3.8536171), abs=1e-6)
    assert not [name for name in computed if name.endswith("_square")]


def test_a_token_is_compared_once_however_often_it_was_computed_and_a_filler_never():
    meter = UpdateMeter()
    for _ in range(2):  # of two epochs
        meter.note([ONE], trainer=[torch.tensor([-1.0, -2.0])], sampler=[torch.tensor([-1.5, -2.0])])
    meter.note([TWO], trainer=[torch.tensor([-3.0])], sampler=[torch.tensor([-2.0])])
    meter.note([Row(7, 1, filler=True)], trainer=[torch.tensor([-9.0])], sampler=[torch.tensor([0.0])])
    for _ in range(2):  # asked again, it says the same
        computed = meter.compute()
        assert computed["engine/logprob_gap_mean"] == 0.5  # (0.5 + 0 + 1) / 3
        assert computed["policy/importance_mean"] == pytest.approx(3.0166007 / 3, abs=1e-6)


def test_weights_that_are_all_zero_have_no_effective_sample():
    meter = UpdateMeter()
    mask = torch.tensor([[True, True, False]])
    meter.correct(CorrectionWeights(torch.zeros(1, 3), mask), mask)
    computed = meter.compute()
    assert (computed["policy/weight_ess"], computed["policy/weight_cut"]) == (0.0, 1.0)


def test_a_later_number_replaces_an_earlier_one_and_padding_and_fillers_are_left_out():
    meter = UpdateMeter()
    filler = Row(1, 3, filler=True)
    meter.note([ONE, filler], logprobs=torch.tensor([[1.0, 2.0, 9.0], [3.0, 4.0, 5.0]]), entropy=None)
    meter.note([ONE], logprobs=torch.tensor([[5.0, 6.0, 9.0]]))
    assert {key: row.tolist() for key, row in meter.rows("logprobs").items()} == {ONE.key: [5.0, 6.0]}
    assert meter.rows("entropy") == {}


def test_what_is_added_after_a_look_is_brought_to_the_host_in_float32_too():
    meter = UpdateMeter()
    for value in (1.0, 2.0):
        meter.note([TWO], logprobs=torch.tensor([[value]], dtype=torch.bfloat16))
        (row,) = meter.rows("logprobs").values()
        assert (row.dtype, row.tolist()) == (torch.float32, [value])


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
    windowed = replace(make_trajectory(["a", "b"], id="3/0/0"), image_window=1)
    meter = UpdateMeter()
    for start, numbers in ((3, [4.0, 5.0, 6.0]), (0, [1.0, 2.0, 3.0])):
        meter.note([Row(0, 3, start=start)], entropy=torch.tensor([numbers]))
    record = meter.record(RolloutBatch(3, 3, [make_group(windowed)]), [[Credit(torch.zeros(6))]])
    assert record.numbers["entropy"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_collecting_asks_the_device_for_no_number():
    """On the meta device there are no numbers: to ask for one fails."""
    meter = UpdateMeter()
    values = metrics(1, 1.0)
    on_device = LossMetrics(**{field.name: getattr(values, field.name).to("meta") for field in fields(values)})
    mask = torch.ones(2, 3, dtype=torch.bool, device="meta")
    logprobs = torch.zeros(2, 3, device="meta")
    for _ in range(2):
        meter.add(
            TokenLoss(logprobs, on_device, {"numbers": logprobs}),
            ActionLogprobs(logprobs, mask, logprobs),
            mask,
        )
        meter.note([Row(0, 3)], trainer=[logprobs[0]], sampler=[logprobs[1]])
        meter.correct(CorrectionWeights(logprobs, mask), mask)
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
