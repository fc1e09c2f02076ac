"""The update, option by option: every test flips one option of `GRPOModule` or of its objective, and sees its work."""

import math
from dataclasses import replace
from functools import partial

import lightning as L
import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import DataLoader

from arpo.errors import ArpoError, ConfigError
from arpo.models.collate import collate
from arpo.models.tokenization import tokenize
from arpo.rollout.hooks import RolloutCallback
from arpo.types import RolloutBatch
from tests.exchanges import with_exchanges
from tests.modules.conftest import (
    fit,
    logprobs_of,
    metrics,
    moved,
    quiet_trainer,
    sampled_logprobs,
    samples,
    weights,
    windowed,
)


def assert_learns(module, groups, policy):
    """An update changes the weights by the gradient that was computed with a policy like the module's."""
    gradient = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])
    before = weights(module.policy)
    trainer = fit(module, groups)
    assert_close(before - weights(module.policy), gradient, rtol=1e-3, atol=1e-5)
    return metrics(trainer)


# --- the gradient ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "options", "loss"),
    [
        # With ρ = 1 it is -1/N Σ_i A_i mean_t log π (2505.16282, 3.1): of mean 1/3 and deviation sqrt(2)/3.
        ((1.0, 0.0, 0.0), {}, lambda a, b, c: -(2**0.5 * a.mean() - 0.5**0.5 * (b.mean() + c.mean())) / 3),
        # Of a solved task it is the loss of a language model.
        ((1.0, 1.0), {"imitation": 0.5}, lambda a, b: -0.5 * (a.mean() + b.mean()) / 2),
        ((1.0, 0.0), {"aggregation": "token"}, lambda a, b: -(a.sum() - b.sum()) / (len(a) + len(b))),
        ((1.0, 0.0), {"aggregation": "sequence_sum"}, lambda a, b: -(a.sum() - b.sum()) / 2),
        ((1.0, 0.0), {"aggregation": "dr_grpo", "dr_grpo_length": 50}, lambda a, b: -(a.sum() - b.sum()) / (50 * 2)),
    ],
    ids=["formula", "imitation", "token", "sequence_sum", "dr_grpo"],
)
def test_an_update_is_the_gradient_of_the_formula(make_module, make_policy, make_group, rewards, options, loss):
    group, policy = make_group(*rewards), make_policy()
    loss(*(logprobs_of(policy, trajectory) for trajectory in group.trajectories)).backward()
    assert_learns(make_module(**options), [group], policy)


def test_temperature_is_that_of_the_distribution_that_was_sampled(make_module, make_group):
    trajectory = make_group(1.0, 0.0).trajectories[0]
    module = make_module(temperature=0.5)
    expected = logprobs_of(module.policy, trajectory, temperature=0.5)
    found = sampled_logprobs(module, trajectory)
    assert found == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-5)
    assert found != sampled_logprobs(make_module(), trajectory)


def test_max_grad_norm_is_the_longest_step_that_gradient_descent_takes(make_module, make_group):
    module = make_module(max_grad_norm=0.01)
    before = weights(module.policy)
    trainer = fit(module, [make_group(1.0, 0.0)])
    assert (weights(module.policy) - before).norm().item() == pytest.approx(0.01, rel=1e-3)
    assert metrics(trainer)["train/grad_norm"] > 0.01  # as it was before clipping


@pytest.mark.parametrize("frozen", [False, True])
def test_a_group_whose_rewards_are_equal_changes_nothing_and_is_not_computed(make_module, make_group, frozen):
    module = make_module()
    module.policy.vision.requires_grad_(not frozen)
    before, counted = weights(module.policy), CountedPolicy(module.policy)
    trainer = fit(module, [make_group(0.0, 0.0)])
    assert torch.equal(weights(module.policy), before)
    assert (counted.rows, counted.pictures) == (0, 0)
    assert metrics(trainer)["train/skipped_minibatches"] == 1.0
    assert module.policy_version == 1


def test_a_group_without_a_signal_still_counts_in_the_average(make_module, make_group):
    """Two groups, one dead: the mean is over all four sequences, so the step is half as long."""
    alone, beside = make_module(), make_module()
    start = weights(alone.policy)
    fit(alone, [make_group(1.0, 0.0)])
    fit(beside, [make_group(1.0, 0.0), make_group(0.0, 0.0, first=4)])
    assert_close(weights(beside.policy) - start, (weights(alone.policy) - start) / 2, rtol=1e-3, atol=1e-5)


def test_the_second_pass_over_a_batch_is_clipped(make_module, make_group):
    """A large first step moves every ratio out of [0.999, 1.001]: the success became likelier and the failure less."""
    options = {"epochs": 2, "optimizer": partial(torch.optim.SGD, lr=0.05)}
    narrow = fit(make_module(clip_low=0.001, clip_high=0.001, **options), [make_group(1.0, 0.0)])
    wide = fit(make_module(clip_low=0.9, clip_high=9.0, **options), [make_group(1.0, 0.0)])
    clipped = [metrics(t)["train/clip_fraction_low"] + metrics(t)["train/clip_fraction_high"] for t in (narrow, wide)]
    assert clipped[0] > 0.3  # of both passes together; the first pass has ratio 1 and clips nothing
    assert clipped[1] == 0.0


# --- minibatches, epochs, versions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("minibatches", "epochs", "steps"), [(1, 1, 1), (2, 1, 2), (2, 3, 6), (5, 1, 2)])
def test_an_iteration_takes_minibatches_times_epochs_steps(make_module, make_group, minibatches, epochs, steps):
    module = make_module(minibatches=minibatches, epochs=epochs)
    trainer = fit(module, [make_group(1.0, 0.0), make_group(0.0, 1.0, first=4)])
    assert trainer.global_step == steps  # never more minibatches than groups
    assert module.policy_version == 1


@pytest.mark.parametrize(("minibatches", "epochs"), [(1, 1), (4, 1), (4, 3)])
def test_the_loss_is_the_mean_over_the_minibatches_that_there_were(
    make_module, make_policy, make_group, minibatches, epochs
):
    """One group makes one minibatch, whatever was configured; without a step the loss of every pass is the same."""
    options = {"optimizer": partial(torch.optim.SGD, lr=0.0), "reference": make_policy, "kl_coefficient": 0.5}
    module = make_module(minibatches=minibatches, epochs=epochs, **options)
    with torch.no_grad():
        module.policy.model.lm_head.weight.mul_(1.5)
    policy, reference = module.policy, make_policy()
    divergence = 0.0
    group = make_group(1.0, 0.0)
    for trajectory in group.trajectories:
        difference = logprobs_of(policy, trajectory) - logprobs_of(reference, trajectory)
        # mean over two sequences of the mean over tokens of k3, bounded at 10
        divergence += (torch.expm1(-difference) + difference).clamp(max=10).mean().item() / 2
    reported = metrics(fit(module, [group]))
    # At ratio 1 a token's surrogate is its advantage, and those of the group, 1 and -1, add up to 0.
    assert reported["train/kl_reference"] == pytest.approx(divergence, rel=1e-4)
    assert reported["train/loss"] == pytest.approx(0.5 * divergence, rel=1e-4)


class CountedPolicy:
    """Counts what a policy's forwards and its vision tower are asked for."""

    def __init__(self, policy):
        self.rows = self.rows_with_gradient = self.pictures = 0
        self._logprobs, self._vision = policy.action_logprobs, policy._vision
        policy.action_logprobs, policy._vision = self.action_logprobs, self.vision

    def action_logprobs(self, batch, *arguments, **options):
        self.rows += len(batch.input_ids)
        self.rows_with_gradient += len(batch.input_ids) * torch.is_grad_enabled()
        return self._logprobs(batch, *arguments, **options)

    def vision(self, pixels, grids):
        self.pictures += len(grids)
        return self._vision(pixels, grids)


def test_old_logprobs_of_a_sequence_are_computed_once_in_all_epochs(make_module, make_group):
    module = make_module(minibatches=2, epochs=3, optimizer=partial(torch.optim.SGD, lr=0.01))
    counted = CountedPolicy(module.policy)
    fit(module, [make_group(1.0, 0.0), make_group(0.0, 1.0, first=4)])
    # Four sequences: each once for its old log-probabilities, of which those of the later epochs are the same, and
    # three times for its gradient.
    assert counted.rows_with_gradient == 12
    assert counted.rows == 12 + 4


@pytest.mark.parametrize("kl_coefficient", [0.0, 0.1])
def test_a_frozen_vision_tower_sees_each_screenshot_once_an_update(
    make_module, make_policy, make_group, monkeypatch, kl_coefficient
):
    """And learns what it learns where every forward asks the tower, as it does where there is no room for its work."""
    groups = [make_group(1.0, 0.0), make_group(0.0, 1.0, first=4)]
    weights_after = []
    for keeps in (True, False):
        options = {"kl_coefficient": kl_coefficient, "optimizer": partial(torch.optim.SGD, lr=0.01)}
        module = make_module(minibatches=2, epochs=2, reference=make_policy, **options)
        for policy in (module.policy, *module.references):
            policy.vision.requires_grad_(False)
        if not keeps:
            monkeypatch.setattr("arpo.modules.grpo.MOST_FEATURE_BYTES", 0)
        counted = [CountedPolicy(policy) for policy in (module.policy, *module.references)]
        fit(module, groups)
        # Four trajectories, of one screenshot each, which it shows once or twice.
        assert (sum(each.pictures for each in counted) == 4) == keeps
        assert all(policy.features is None for policy in (module.policy, *module.references))
        weights_after.append(weights(module.policy))
    assert_close(weights_after[0], weights_after[1], rtol=1e-5, atol=1e-6)


def test_the_order_of_groups_follows_from_seed_and_iteration(make_module, make_group):
    groups = [[sample] for sample in samples(make_module(), make_group(*[1.0, 0.0] * 4))[0]]
    plans = [make_module(seed=seed, minibatches=8).plan(groups, iteration) for seed, iteration in ((0, 0), (0, 1))]
    assert plans[0] == make_module(seed=0, minibatches=8).plan(groups, 0)
    assert plans[0] != plans[1]
    assert make_module(seed=1, minibatches=8).plan(groups, 0) != plans[0]


def test_a_rank_that_runs_out_of_samples_computes_a_filler_that_teaches_nothing(make_module, make_group):
    """Where another rank has more micro-batches, this one gets empty ones, also after a step: the second minibatch."""
    options = {"minibatches": 2, "optimizer": partial(torch.optim.SGD, lr=0.01)}
    alone, beside = make_module(**options), make_module(**options)
    beside._most = lambda count: count + 1
    groups = [make_group(1.0, 0.0), make_group(0.0, 1.0, first=4)]
    reports = [metrics(fit(module, groups)) for module in (alone, beside)]
    assert torch.equal(weights(beside.policy), weights(alone.policy))
    del reports[0]["time/update"], reports[1]["time/update"]
    assert reports[1] == pytest.approx(reports[0], rel=1e-5)


def test_warm_up_lowers_the_rate_of_the_first_steps(make_module, make_group):
    full, rising = make_module(), make_module(warmup_steps=3)
    start = weights(full.policy)
    fit(full, [make_group(1.0, 0.0)])
    trainer = fit(rising, [make_group(1.0, 0.0)])
    assert_close((weights(rising.policy) - start) * 4, weights(full.policy) - start, rtol=1e-3, atol=1e-5)
    assert metrics(trainer)["train/learning_rate"] == 0.5  # of the step that comes next: 2 of 4


def rates_of(module, *batches, checkpoint=None, iterations=None):
    """The rate of every step that was taken, and the one after the last; an iteration a batch."""
    taken, take_step = [], module.take_step
    module.take_step = lambda: (taken.append(module.learning_rate), take_step())[1]
    data = [RolloutBatch(number, number, batch) for number, batch in enumerate(batches)]
    trainer = quiet_trainer(max_epochs=iterations or len(data), reload_dataloaders_every_n_epochs=1)

    class OneAnIteration(L.LightningDataModule):
        def train_dataloader(self):
            return DataLoader(data[trainer.current_epoch : trainer.current_epoch + 1], batch_size=None)

    trainer.fit(module, OneAnIteration(), ckpt_path=checkpoint)
    return trainer, [*taken, module.learning_rate]


def test_decay_ends_at_zero_whatever_was_skipped(make_module, make_group):
    """The rate falls by 1/8 a step of four iterations of two; one that is skipped takes its share along."""
    live, dead, late = make_group(1.0, 0.0), make_group(0.0, 0.0, first=2), make_group(0.0, 1.0, first=4)
    make = partial(make_module, decay=True, minibatches=2, optimizer=partial(torch.optim.SGD, lr=1e-3))
    _, whole = rates_of(make(), *[[live, late]] * 4)
    assert whole == pytest.approx([1e-3 * rest / 8 for rest in range(8, -1, -1)])
    _, flat = rates_of(make(), [live, late], [dead, dead], [dead, dead], [live, late])
    assert flat == pytest.approx([1e-3 * rest / 8 for rest in (8, 7, 2, 1, 0)])
    _, lone = rates_of(make(), [live], [live], [live], [live])  # one group makes one minibatch
    assert lone == pytest.approx([1e-3 * rest / 8 for rest in (8, 6, 4, 2, 0)])
    assert rates_of(make(), *[[dead]] * 4)[1] == [0.0]  # nothing was learned at all
    module = make(minibatches=1)
    with torch.no_grad():
        module.policy.model.model.language_model.norm.weight.fill_(torch.nan)
    assert rates_of(module, *[[live]] * 2)[1] == [1e-3, 5e-4, 0.0]  # where gradients are refused


def test_the_warm_up_goes_by_the_same_steps(make_module, make_group):
    live, dead = make_group(1.0, 0.0), make_group(0.0, 0.0, first=2)
    _, rates = rates_of(make_module(warmup_steps=3), [dead], [live], [dead], [live])
    assert rates == [0.5, 1.0, 1.0]  # of the steps 1, 3 and 4


@pytest.mark.parametrize("behind", [0, 2])
def test_a_resumed_run_has_the_rate_of_its_iteration(make_module, make_group, tmp_path, behind):
    """Also where the schedule was left behind by what was skipped, as once it was."""
    live, dead = make_group(1.0, 0.0), make_group(0.0, 0.0, first=2)
    trainer, _ = rates_of(make_module(decay=True), [live], [dead], [dead], [live], iterations=3)
    trainer.save_checkpoint(tmp_path / "three.ckpt")
    saved = torch.load(tmp_path / "three.ckpt", weights_only=True)
    (schedule,) = saved["lr_schedulers"]
    schedule["last_epoch"] -= behind
    torch.save(saved, tmp_path / "three.ckpt")
    batches = ([live], [dead], [dead], [live])
    _, rates = rates_of(make_module(decay=True), *batches, checkpoint=tmp_path / "three.ckpt", iterations=4)
    assert rates == [0.25, 0.0]


def test_decay_in_a_run_without_an_end_is_refused(make_module):
    module = make_module(decay=True)
    for iterations in (-1, 0):
        module.trainer = quiet_trainer(max_epochs=iterations)
        with pytest.raises(ConfigError, match="set iterations"):
            module.configure_optimizers()


# --- KL, and replayed trajectories ----------------------------------------------------------------------------------


def test_the_kl_term_learns_from_groups_without_a_signal_and_pulls_back(make_module, make_policy, make_group):
    module = make_module(reference=make_policy, kl_coefficient=1.0, optimizer=partial(torch.optim.SGD, lr=0.05))
    reference = weights(module.policy)
    start = weights(moved(module.policy, 1))
    trainer = fit(module, *[[make_group(0.0, 0.0)]] * 2)
    assert "train/skipped_minibatches" not in trainer.callback_metrics
    assert torch.dot(weights(module.policy) - start, reference - start) > 0


def test_the_reference_is_no_parameter_of_the_module(make_module, make_policy):
    module = make_module(reference=make_policy, kl_coefficient=0.1)
    assert len(list(module.parameters())) == len(list(module.policy.parameters()))
    assert all(name.startswith("policy.") for name in module.state_dict())
    assert not any(parameter.requires_grad for parameter in module.references[0].parameters())


def test_stored_old_logprobs_make_the_ratio_that_of_the_policy_that_sampled_it(make_module, make_group):
    group = make_group(0.0, 1.0, injected=(1,))
    module = make_module(replayed_old_logprobs="stored")
    own, replayed = (torch.tensor(sampled_logprobs(module, each)) for each in group.trajectories)
    stored = torch.tensor([p for each in group.trajectories[1].exchanges for p in each.sampler_logprobs])
    fit(module, [group])
    expected = torch.cat([torch.ones_like(own), (replayed - stored).exp()])
    assert sorted(module.last_update.ratios()) == pytest.approx(expected.sort().values.tolist(), rel=1e-4, abs=1e-4)


def test_only_what_was_just_sampled_is_compared_with_the_engine(make_module, make_group):
    """The sample's made-up numbers are far off, a replayed one's old numbers would be so too by right."""
    group = make_group(0.0, 1.0, injected=(0, 1))
    assert "engine/logprob_gap_max" not in metrics(fit(make_module(), [group]))
    fresh, gaps = make_group(0.0, 1.0), []
    module = make_module()
    for trajectory in fresh.trajectories:
        theirs = (p for exchange in trajectory.exchanges for p in exchange.sampler_logprobs)
        gaps += [abs(a - b) for a, b in zip(sampled_logprobs(module, trajectory), theirs, strict=True)]
    reported = metrics(fit(module, [fresh]))
    assert reported["engine/logprob_gap_max"] == pytest.approx(max(gaps), rel=1e-4)
    assert reported["engine/logprob_gap_mean"] == pytest.approx(sum(gaps) / len(gaps), rel=1e-4)


# --- an engine behind the policy ------------------------------------------------------------------------------------


def as_sampled(group, rows, shifts, **changes):
    """The group as an engine would have sampled it that gave each member's tokens `shifts` more log-probability."""
    members = []
    for trajectory, row, shift in zip(group.trajectories, rows, shifts, strict=True):
        said = iter((row.detach() + shift).tolist())
        logprobs = [[next(said) for _ in exchange.response_ids] for exchange in trajectory.exchanges]
        members.append(with_exchanges(trajectory, sampler_logprobs=map(tuple, logprobs)))
    return replace(group, trajectories=tuple(members), **changes)


@pytest.mark.parametrize(
    ("options", "shift", "injected", "weight"),
    [
        ({"correction": "tis_token"}, math.log(4), (), 0.25),  # old / sampler = 1/4
        ({"correction": "tis_token"}, -math.log(4), (), 1.0),  # 4, truncated
        ({"correction": "tis_token", "correction_band": (0.0, 2.0)}, -math.log(4), (), 2.0),
        ({"correction": "tis_token"}, math.log(4), (0,), 1.0),  # replay counts in full
        ({"correction": "sequence_mask"}, math.log(4), (0,), 1.0),
        ({}, math.log(4), (), 1.0),
    ],
)
def test_a_correction_weighs_tokens_by_how_much_likelier_the_policy_is(
    make_module, make_policy, make_group, options, shift, injected, weight
):
    group, policy = make_group(1.0, 0.0), make_policy()
    rows = [logprobs_of(policy, trajectory) for trajectory in group.trajectories]
    # population std: A = 1 and -1; each sequence is averaged over its tokens; only the first is off its sampler
    (-(weight * rows[0].mean() - rows[1].mean()) / 2).backward()
    assert_learns(make_module(**options), [as_sampled(group, rows, (shift, 0.0), injected=injected)], policy)


def test_the_weights_of_a_correction_are_measured(make_module, make_policy, make_group):
    group, policy = make_group(1.0, 0.0, 1.0), make_policy()
    rows = [logprobs_of(policy, trajectory) for trajectory in group.trajectories]
    sampled = as_sampled(group, rows, (math.log(4), -math.log(3), math.log(9)), injected=(2,))
    found = metrics(fit(make_module(correction="tis_token", correction_band=(0.0, 2.0)), [sampled]))
    # n tokens of ratio 1/4 and m of ratio 3; the replayed ones are not asked
    n, m = len(rows[0]), len(rows[1])
    assert found["policy/importance_mean"] == pytest.approx((n / 4 + 3 * m) / (n + m), rel=1e-4)
    assert found["policy/importance_max"] == pytest.approx(3.0, rel=1e-4)
    assert found["policy/importance_ess"] == pytest.approx((n / 4 + 3 * m) ** 2 / (n + m) / (n / 16 + 9 * m), rel=1e-4)
    # 3 is cut to 2
    assert found["policy/weight_mean"] == pytest.approx((n / 4 + 2 * m) / (n + m), rel=1e-4)
    assert found["policy/weight_max"] == pytest.approx(2.0, rel=1e-4)
    assert found["policy/weight_ess"] == pytest.approx((n / 4 + 2 * m) ** 2 / (n + m) / (n / 16 + 4 * m), rel=1e-4)
    assert found["policy/weight_cut"] == pytest.approx(m / (n + m), rel=1e-4)


@pytest.mark.parametrize(
    ("minibatches", "epochs", "micro_batch_tokens"), [(1, 2, 65536), (2, 2, 65536), (2, 3, 65536), (3, 2, 64)]
)
def test_a_token_is_compared_with_the_engine_once_whatever_the_passes_over_it(
    make_module, make_group, minibatches, epochs, micro_batch_tokens
):
    groups = [make_group(1.0, 0.0), make_group(0.0, 1.0, 0.0, first=4), make_group(1.0, 0.0, first=9)]
    found = []
    for passes in (1, epochs):
        options = {"minibatches": minibatches, "epochs": passes, "micro_batch_tokens": micro_batch_tokens}
        module = make_module(optimizer=partial(torch.optim.SGD, lr=0.05), correction="tis_token", **options)
        found.append(metrics(fit(module, groups)))
    names = [name for name in found[0] if name.startswith(("policy/importance", "policy/weight", "engine/"))]
    assert len(names) == 2 + 3 + 4
    for name in names:
        assert found[1][name] == pytest.approx(found[0][name], rel=1e-4), name


# --- the steps in which the policy was undecided --------------------------------------------------------------------


def trained_tokens(policy, group, keep_fraction):
    """1 for each token that is trained, a row a trajectory: by the definition, from forwards of their own."""
    entropies = []
    for trajectory in group.trajectories:
        batch = collate(tokenize(trajectory, policy.chat), trajectory.screenshots, policy.images)
        (row,) = policy.action_logprobs(batch, with_entropy=True).entropy
        parts = row.split(trajectory.trained_lengths)
        entropies.append([(part.mean().item(), len(part)) for part in parts])
    ranked = sorted(entropy for row in entropies for entropy, _ in row)
    place = (1 - keep_fraction) * (len(ranked) - 1)
    low = int(place)
    threshold = ranked[low] + (place - low) * (ranked[min(low + 1, len(ranked) - 1)] - ranked[low])
    return [torch.cat([torch.full((n,), float(h >= threshold)) for h, n in row]) for row in entropies]


@pytest.mark.parametrize("minibatches", [1, 2])
@pytest.mark.parametrize("micro_batch_tokens", [64, 65536])
def test_steps_of_low_entropy_teach_nothing_and_still_count(
    make_module, make_policy, make_group, minibatches, micro_batch_tokens
):
    """-1/N Σ_i A_i 1/|o_i| Σ_t 1[H ≥ the median of the group] log π, in the first minibatch too (2509.23866)."""
    group, policy = make_group(1.0, 0.0, 0.0, 1.0), make_policy()
    kept = trained_tokens(policy, group, 0.5)
    assert 0 < sum(row.sum() for row in kept) < sum(map(len, kept))
    signs = (1.0, -1.0, -1.0, 1.0)
    rows = [logprobs_of(policy, trajectory) for trajectory in group.trajectories]
    (-sum(a * (row * keep).mean() for a, row, keep in zip(signs, rows, kept, strict=True)) / 4).backward()
    module = make_module(high_entropy_steps=0.5, minibatches=minibatches, micro_batch_tokens=micro_batch_tokens)
    found = assert_learns(module, [group], policy)  # one group makes one minibatch
    assert found["policy/trained_steps"] == pytest.approx(0.5)  # 3 of the 6 steps lie above their median


def test_a_trajectory_without_advantage_still_counts_in_the_threshold(make_module, make_policy, make_group):
    """Rewards 1, 0 and 1/2: the third has no gradient, and two steps that others are compared with."""
    group, policy = make_group(1.0, 0.0, 0.5, 0.5, first=3), make_policy()
    kept = trained_tokens(policy, group, 0.5)
    alone = trained_tokens(policy, replace(group, trajectories=group.trajectories[:2]), 0.5)
    assert [row.tolist() for row in kept[:2]] != [row.tolist() for row in alone]
    rows = [logprobs_of(policy, trajectory) for trajectory in group.trajectories]
    (-((rows[0] * kept[0]).mean() - (rows[1] * kept[1]).mean()) / 2 / 4).backward()  # dr_grpo: A = 1/2, -1/2, 0, 0
    assert_learns(make_module(high_entropy_steps=0.5, estimator="dr_grpo"), [group], policy)


def test_a_step_that_is_left_out_is_left_out_of_the_divergence_too(make_module, make_policy, make_group):
    group = make_group(0.0, 0.0, 0.0)
    module = make_module(reference=make_policy, kl_coefficient=0.1, kl="k2", high_entropy_steps=0.5)
    with torch.no_grad():
        module.policy.model.lm_head.weight.mul_(1.5)
    kept = trained_tokens(module.policy, group, 0.5)
    expected = 0.0
    for trajectory, keep in zip(group.trajectories, kept, strict=True):
        difference = logprobs_of(module.policy, trajectory) - logprobs_of(make_policy(), trajectory)
        expected += (keep * difference**2 / 2).mean().item() / 3
    assert metrics(fit(module, [group]))["train/kl_reference"] == pytest.approx(expected, rel=1e-4)


def test_keeping_every_step_is_the_same_update(make_module, make_group):
    groups = [make_group(1.0, 0.0, 0.0), make_group(0.0, 1.0, first=4)]
    plain, every = (make_module(minibatches=2, high_entropy_steps=keep) for keep in (None, 1.0))
    fit(plain, groups)
    assert metrics(fit(every, groups))["policy/trained_steps"] == 1.0
    assert_close(weights(every.policy), weights(plain.policy), rtol=1e-4, atol=1e-5)


def test_a_selection_and_a_correction_multiply(make_module, make_policy, make_group):
    group, policy = make_group(1.0, 0.0), make_policy()
    kept = trained_tokens(policy, group, 0.5)
    rows = [logprobs_of(policy, trajectory) for trajectory in group.trajectories]
    (-(0.25 * (rows[0] * kept[0]).mean() - (rows[1] * kept[1]).mean()) / 2).backward()
    sampled = as_sampled(group, rows, (math.log(4), 0.0))
    assert_learns(make_module(high_entropy_steps=0.5, correction="tis_token"), [sampled], policy)


# --- one sequence a step --------------------------------------------------------------------------------------------


def test_a_window_of_screenshots_makes_every_step_a_sequence_with_the_advantage_of_its_trajectory(
    make_module, make_policy, make_group
):
    policy = make_policy()
    group = windowed(make_group(1.0, 0.0), policy.chat)  # of 1 and 2 steps
    rows = []
    for trajectory in group.trajectories:
        for tokens in tokenize(trajectory, policy.chat):
            output = policy.action_logprobs(collate([tokens], trajectory.screenshots, policy.images))
            rows.append(output.logprobs[output.mask])
    assert [len(row) for row in rows] == [length for each in group.trajectories for length in each.trained_lengths]
    # Over steps [1, 0, 0]: μ = 1/3, σ = sqrt(2)/3: A = sqrt(2) and -1/sqrt(2); the mean is over three steps
    (-(2**0.5 * rows[0].mean() - 0.5**0.5 * (rows[1].mean() + rows[2].mean())) / 3).backward()
    assert_learns(make_module(estimator="step_grpo"), [group], policy)


@pytest.mark.parametrize("kl_coefficient", [0.0, 0.1])
def test_a_step_that_is_a_sequence_and_not_selected_is_not_computed_again_and_changes_nothing(
    make_module, make_policy, make_group, monkeypatch, kl_coefficient
):
    chat = make_policy().chat
    groups = [windowed(each, chat) for each in (make_group(1.0, 0.0, 0.0, 1.0), make_group(0.0, 1.0, first=4))]
    learned, rows = [], []
    options = {"minibatches": 2, "epochs": 2, "high_entropy_steps": 0.5, "reference": make_policy}
    options |= {"kl_coefficient": kl_coefficient, "optimizer": partial(torch.optim.SGD, lr=0.01)}
    for leaves_out in (True, False):
        module = make_module(micro_batch_tokens=1, **options)  # one sequence a forward: sums have the same order
        if not leaves_out:
            monkeypatch.setattr("arpo.modules.grpo.without_untrained", lambda minibatch: minibatch)
        counted = CountedPolicy(module.policy)
        found = metrics(fit(module, groups))
        assert found["policy/trained_steps"] == pytest.approx(5 / 9)  # 3 of 6 steps and 2 of 3
        learned.append(weights(module.policy))
        rows.append((counted.rows, counted.rows_with_gradient))
    assert torch.equal(*learned)
    # 6 + 3 steps once before, then in each of two epochs those that were selected, or all
    assert rows == [(9 + 2 * 5, 2 * 5), (9 + 2 * 9, 2 * 9)]


# --- what goes wrong, and callbacks ---------------------------------------------------------------------------------


def test_gradients_that_are_not_finite_change_nothing_and_the_third_in_a_row_ends_the_run(make_module, make_group):
    module = make_module()
    with torch.no_grad():
        module.policy.model.model.language_model.norm.weight.fill_(torch.nan)
    before = weights(module.policy)
    batches = [[make_group(1.0, 0.0)]] * 2
    trainer = fit(module, *batches)
    assert trainer.global_step == 0
    assert metrics(trainer)["train/refused_gradients"] == 1.0
    assert torch.equal(weights(module.policy).nan_to_num(), before.nan_to_num())
    with pytest.raises(ArpoError, match="3 times in a row"):
        fit(module, *batches)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"minibatches": 0}, "minibatches must be at least 1, got 0"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"micro_batch_tokens": 0}, "micro_batch_tokens must be at least 1"),
        ({"warmup_steps": -1}, "warmup_steps must be at least 0"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be above 0"),
        ({"temperature": math.nan}, "temperature must be a finite number, got nan"),
        ({"max_grad_norm": math.inf}, "max_grad_norm must be a finite number, got inf"),
        ({"critic_rate": 0.0}, "critic_rate must be above 0"),
        ({"critic_warmup": -1}, "critic_warmup must be at least 0"),
        ({"critic_warmup": 3}, "critic_warmup=3 with GRPO, which has no critic"),
    ],
    ids=str,
)
def test_an_impossible_option_is_refused_with_its_name(make_module, options, words):
    with pytest.raises(ConfigError, match=words):
        make_module(**options)


def test_callbacks_see_and_change_the_batch_before_anything_is_computed_from_it(make_module, make_group):
    class Rescue(RolloutCallback):
        def on_rollout_end(self, trainer, module, batch):
            batch.groups = [make_group(0.0, 1.0, injected=(1,))]

    module = make_module()
    trainer = quiet_trainer(callbacks=[Rescue()])
    trainer.fit(module, DataLoader([RolloutBatch(0, 0, [make_group(0.0, 0.0)])], batch_size=None))
    assert trainer.global_step == 1
    assert module.last_update.advantages.tolist() == pytest.approx([-1.0, 1.0], abs=3e-6)
