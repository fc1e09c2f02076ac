"""The update, option by option: every test flips one option of `GRPOModule` or of its objective, and sees its work."""

import math
from dataclasses import replace
from functools import partial

import lightning as L
import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import DataLoader

from arpo.algorithms.losses import ClipRange
from arpo.errors import ArpoError, ConfigError
from arpo.methods.method import TokenTerms
from arpo.models.collate import collate
from arpo.models.tokenization import tokenize
from arpo.rollout.hooks import RolloutCallback
from arpo.types import RolloutBatch
from tests.modules.conftest import fit, samples, weights


def advantages(module, group):
    """The advantage of each sequence, the same for all of its tokens."""
    return [advantage for sample in samples(module, group)[0] for advantage in sample.advantages.unique().tolist()]


def logprobs_of(policy, trajectory, temperature=1.0):
    """An independent forward: one trajectory, its own batch."""
    batch = collate(tokenize(trajectory, policy.chat), trajectory.screenshots, policy.images)
    output = policy.action_logprobs(batch, temperature=temperature)
    return output.logprobs[output.mask]


def metrics(trainer):
    return {name: value.item() for name, value in trainer.callback_metrics.items()}


# --- rewards and advantages -----------------------------------------------------------------------------------------


def test_advantages_are_those_of_the_paper(make_module, make_group):
    # rewards 1, 0: mean 1/2, population deviation 1/2: (1 - 1/2) / (1/2 + 1e-6)
    assert advantages(make_module(), make_group(1.0, 0.0)) == pytest.approx([1.0, -1.0], abs=3e-6)


def test_std_sample_divides_by_one_less(make_module, make_group):
    # sqrt((1/4 + 1/4) / 1) = 0.7071: 0.5 / 0.7071
    assert advantages(make_module(std="sample"), make_group(1.0, 0.0)) == pytest.approx([0.70711, -0.70711], abs=1e-5)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("dr_grpo", [2 / 3, -1 / 3, -1 / 3]),
        ("step_grpo", [1.7320468, -0.5773489, -0.5773489]),
        ("rloo", [1.0, -0.5, -0.5]),
        ("pass_at_k", [1.0, 0.0, 0.0]),
    ],
)
def test_estimator_decides_what_an_advantage_is(make_module, make_group, estimator, expected):
    module = make_module(estimator=estimator)
    assert advantages(module, make_group(1.0, 0.0, 0.0)) == pytest.approx(expected)


@pytest.mark.parametrize(("weight", "expected"), [(1.0, [2.0, 0.0]), (0.5, [1.5, 0.0])])
def test_format_weight_weighs_the_format_reward(make_module, make_group, weight, expected):
    # r = task + weight * format: [1, 0 - weight]; dr_grpo leaves r - mean, shown here from the worse one up
    worse, better = sorted(
        advantages(make_module(format_weight=weight, estimator="dr_grpo"), make_group(1.0, 0.0, formats=(0.0, -1.0)))
    )
    assert better - worse == pytest.approx(expected[0])


def test_imitation_adds_to_the_advantage_of_a_success_even_where_all_succeed(make_module, make_group):
    module = make_module(imitation=0.5)
    assert advantages(module, make_group(1.0, 0.0)) == pytest.approx([1.5, -1.0], abs=1e-5)
    assert advantages(module, make_group(1.0, 1.0)) == [0.5, 0.5]
    assert advantages(module, make_group(0.0, 0.0)) == [0.0, 0.0]


def test_what_was_replayed_is_known_to_the_update(make_module, make_group):
    replayed = [sample.replayed for sample in samples(make_module(), make_group(0.0, 1.0, 0.0, injected=(1,)))[0]]
    assert replayed == [False, True, False]


# --- the gradient ---------------------------------------------------------------------------------------------------


def test_an_update_is_the_gradient_of_the_formula(make_module, make_policy, make_group):
    """With ρ = 1 the gradient of the loss is -1/N Σ_i A_i ∇ mean_t log π (2505.16282, 3.1)."""
    group = make_group(1.0, 0.0, 0.0)
    policy = make_policy()
    # mean 1/3, deviation sqrt(2)/3: A = sqrt(2), -1/sqrt(2), -1/sqrt(2)
    expected = [2**0.5, -(0.5**0.5), -(0.5**0.5)]
    loss = -sum(
        advantage * logprobs_of(policy, trajectory).mean()
        for advantage, trajectory in zip(expected, group.trajectories, strict=True)
    )
    (loss / 3).backward()
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
    module = make_module()
    before = weights(module.policy)
    fit(module, [group])
    assert_close(before - weights(module.policy), gradient, rtol=1e-3, atol=1e-5)


def test_imitation_of_a_solved_task_is_the_gradient_of_the_language_model_loss(make_module, make_policy, make_group):
    group = make_group(1.0, 1.0)
    policy = make_policy()
    (-0.5 * sum(logprobs_of(policy, trajectory).mean() for trajectory in group.trajectories) / 2).backward()
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
    module = make_module(imitation=0.5)
    before = weights(module.policy)
    fit(module, [group])
    assert_close(before - weights(module.policy), gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "factors"),
    [
        ({"aggregation": "token"}, lambda n: 1 / sum(n)),
        ({"aggregation": "sequence_sum"}, lambda n: 1 / len(n)),
        ({"aggregation": "dr_grpo", "dr_grpo_length": 50}, lambda n: 1 / (50 * len(n))),
    ],
    ids=["token", "sequence_sum", "dr_grpo"],
)
def test_aggregation_decides_how_tokens_are_averaged(make_module, make_policy, make_group, options, factors):
    group = make_group(1.0, 0.0)
    policy = make_policy()
    rows = [logprobs_of(policy, trajectory) for trajectory in group.trajectories]
    loss = -factors([len(row) for row in rows]) * (rows[0].sum() - rows[1].sum())
    loss.backward()
    module = make_module(**options)
    before = weights(module.policy)
    fit(module, [group])
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
    assert_close(before - weights(module.policy), gradient, rtol=1e-3, atol=1e-5)


def test_temperature_is_that_of_the_distribution_that_was_sampled(make_module, make_group):
    trajectory = make_group(1.0, 0.0).trajectories[0]
    module = make_module(temperature=0.5)
    expected = logprobs_of(module.policy, trajectory, temperature=0.5)
    assert_close(torch.tensor(module.sampled_logprobs([trajectory])[0]), expected.detach(), rtol=1e-5, atol=1e-5)
    assert module.sampled_logprobs([trajectory]) != make_module().sampled_logprobs([trajectory])


def test_max_grad_norm_is_the_longest_step_that_gradient_descent_takes(make_module, make_group):
    module = make_module(max_grad_norm=0.01)
    before = weights(module.policy)
    trainer = fit(module, [make_group(1.0, 0.0)])
    assert (weights(module.policy) - before).norm().item() == pytest.approx(0.01, rel=1e-3)
    assert metrics(trainer)["train/grad_norm"] > 0.01  # told as it was before clipping


def test_a_group_whose_rewards_are_equal_changes_nothing_and_is_not_computed(make_module, make_group):
    module = make_module()
    before = weights(module.policy)
    trainer = fit(module, [make_group(0.0, 0.0)])
    assert torch.equal(weights(module.policy), before)
    assert metrics(trainer)["train/skipped_minibatches"] == 1.0
    assert module.policy_version == 1


def test_an_update_with_nothing_to_learn_shows_a_frozen_vision_tower_nothing(make_module, make_group):
    module = make_module()
    module.policy.vision.requires_grad_(False)
    trainer = fit(module, [make_group(1.0, 1.0)])
    assert metrics(trainer)["train/skipped_minibatches"] == 1.0


def test_a_group_without_a_signal_still_counts_in_the_average(make_module, make_group):
    """Two groups, one dead: the mean is over all four sequences, so the step is half as long."""
    alone, beside = make_module(), make_module()
    start = weights(alone.policy)
    fit(alone, [make_group(1.0, 0.0)])
    fit(beside, [make_group(1.0, 0.0), make_group(0.0, 0.0, first=4)])
    assert_close(weights(beside.policy) - start, (weights(alone.policy) - start) / 2, rtol=1e-3, atol=1e-5)


# --- clipping -------------------------------------------------------------------------------------------------------


def test_the_clip_range_is_that_of_the_options(make_module):
    assert make_module(clip_low=0.1, clip_high=0.4, dual_clip=2.0).objective.clip == ClipRange(0.1, 0.4, 2.0)


def test_the_second_pass_over_a_batch_is_clipped(make_module, make_group):
    """A large first step moves every ratio out of [0.999, 1.001]; the second step then has no gradient to take.

    The success became more probable and the failure less, which is what its clip stops.
    """
    options = {"epochs": 2, "optimizer": partial(torch.optim.SGD, lr=0.05)}
    narrow = fit(make_module(clip_low=0.001, clip_high=0.001, **options), [make_group(1.0, 0.0)])
    wide = fit(make_module(clip_low=0.9, clip_high=9.0, **options), [make_group(1.0, 0.0)])
    clipped = [metrics(t)["train/clip_fraction_low"] + metrics(t)["train/clip_fraction_high"] for t in (narrow, wide)]
    assert clipped[0] > 0.3  # of both passes together; the first pass has ratio 1 and clips nothing
    assert clipped[1] == 0.0


def objective_loss(module, ratio, advantage):
    logprobs = torch.tensor([ratio]).log()[None]
    mask = torch.ones(1, 1, dtype=torch.bool)
    terms = TokenTerms(logprobs, torch.zeros(1, 1), torch.tensor([[advantage]]), mask)
    return module.objective.loss(terms).losses.item()


def test_dual_clip_bounds_the_loss_of_a_negative_advantage(make_module):
    assert objective_loss(make_module(), ratio=10.0, advantage=-1.0) == pytest.approx(10.0)
    assert objective_loss(make_module(dual_clip=3.0), ratio=10.0, advantage=-1.0) == pytest.approx(3.0)


def test_the_high_clip_is_wider_than_the_low_one(make_module):
    assert objective_loss(make_module(), ratio=2.0, advantage=1.0) == pytest.approx(-1.3)
    assert objective_loss(make_module(), ratio=0.5, advantage=-1.0) == pytest.approx(0.8)


def test_level_sequence_has_one_ratio_a_sequence(make_module, make_group):
    options = {"epochs": 2, "optimizer": partial(torch.optim.SGD, lr=0.01), "clip_low": 0.9, "clip_high": 9.0}
    spreads = {}
    for level in ("token", "sequence"):
        reported = metrics(fit(make_module(level=level, **options), [make_group(1.0, 0.0)]))
        spreads[level] = reported["train/ratio_max"] - reported["train/ratio_min"]
    assert 0 < spreads["sequence"] < spreads["token"]  # a mean over tokens lies inside of their range


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
    module = make_module(
        optimizer=partial(torch.optim.SGD, lr=0.0),
        minibatches=minibatches,
        epochs=epochs,
        reference=make_policy,
        kl_coefficient=0.5,
    )
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


def test_one_iteration_is_one_policy_version(make_module, make_group):
    module = make_module(minibatches=2)
    fit(module, *[[make_group(1.0, 0.0)]] * 3)
    assert module.policy_version == 3


def test_old_logprobs_of_later_minibatches_are_from_before_the_first_step(make_module, make_group):
    """In the first minibatch every ratio is 1 by construction; in the second it is what the first step changed."""
    groups = [make_group(1.0, 0.0), make_group(0.0, 1.0, first=4)]
    one, two = make_module(minibatches=1), make_module(minibatches=2, optimizer=partial(torch.optim.SGD, lr=0.01))
    fit(one, groups)
    fit(two, groups)
    assert (one.last_update.ratios() == 1).all()
    assert (two.last_update.ratios() == 1).mean() < 0.9


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
    make_module, make_policy, make_group, kl_coefficient
):
    """And learns what it learns where every forward asks the tower."""
    groups = [make_group(1.0, 0.0), make_group(0.0, 1.0, first=4)]
    weights_after = []
    for keeps in (True, False):
        module = make_module(
            minibatches=2,
            epochs=2,
            reference=make_policy,
            kl_coefficient=kl_coefficient,
            optimizer=partial(torch.optim.SGD, lr=0.01),
        )
        for policy in (module.policy, *module._reference):
            policy.vision.requires_grad_(False)
        if not keeps:
            module._seen = lambda policy, screenshots: None
        counted = [CountedPolicy(policy) for policy in (module.policy, *module._reference)]
        fit(module, groups)
        # Four trajectories, of one screenshot each, which it shows once or twice.
        assert (sum(each.pictures for each in counted) == 4) == keeps
        assert all(policy.features is None for policy in (module.policy, *module._reference))
        weights_after.append(weights(module.policy))
    assert_close(weights_after[0], weights_after[1], rtol=1e-5, atol=1e-6)


def test_the_order_of_groups_follows_from_seed_and_iteration(make_module, make_group):
    groups = [[sample] for sample in samples(make_module(), make_group(*[1.0, 0.0] * 4))[0]]
    plans = [make_module(seed=seed, minibatches=8)._plan(groups, iteration) for seed, iteration in ((0, 0), (0, 1))]
    again = make_module(seed=0, minibatches=8)._plan(groups, 0)
    assert plans[0] == again
    assert plans[0] != plans[1]
    assert make_module(seed=1, minibatches=8)._plan(groups, 0) != plans[0]


def test_micro_batches_change_memory_and_not_the_result(make_module, make_group):
    whole, parts = make_module(), make_module(micro_batch_tokens=1)
    groups = [make_group(1.0, 0.0, 0.0)]
    start = weights(whole.policy)
    fit(whole, groups)
    fit(parts, groups)
    assert_close(weights(parts.policy) - start, weights(whole.policy) - start, rtol=1e-3, atol=1e-5)


def test_a_rank_that_runs_out_of_samples_computes_a_filler_that_teaches_nothing(make_module, make_group):
    """Where another rank has more micro-batches, this one gets empty ones, also after a step: the second minibatch."""
    options = {"minibatches": 2, "optimizer": partial(torch.optim.SGD, lr=0.01)}
    alone, beside = make_module(**options), make_module(**options)
    chunks = beside._chunks
    beside._chunks = lambda lengths: [*chunks(lengths), []]
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


@pytest.mark.parametrize(("decay", "rates"), [(False, [1.0, 1.0]), (True, [1.0, 0.5])])
def test_decay_spreads_the_rate_over_the_steps_of_the_run(make_module, make_group, decay, rates):
    module = make_module(decay=decay, minibatches=2)
    taken, take_step = [], module.take_step
    module.take_step = lambda: (taken.append(module.learning_rate), take_step())[1]
    trainer = fit(module, [make_group(1.0, 0.0), make_group(1.0, 0.0, first=2)])
    assert taken == rates
    assert metrics(trainer)["train/learning_rate"] == 2 * rates[1] - 1  # of the step that would come next


def rates_of(module, *batches, checkpoint=None, iterations=None):
    """The rate of every step that was taken, and the one after the last; an iteration a batch."""
    taken, take_step = [], module.take_step
    module.take_step = lambda: (taken.append(module.learning_rate), take_step())[1]
    data = [RolloutBatch(number, number, batch) for number, batch in enumerate(batches)]
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=iterations or len(data),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        reload_dataloaders_every_n_epochs=1,
    )

    class OneAnIteration(L.LightningDataModule):
        def train_dataloader(self):
            return DataLoader(data[trainer.current_epoch : trainer.current_epoch + 1], batch_size=None)

    trainer.fit(module, OneAnIteration(), ckpt_path=checkpoint)
    return trainer, [*taken, module.learning_rate]


DEAD = (0.0, 0.0)


def test_decay_ends_at_zero_whatever_was_skipped(make_module, make_group):
    """The rate falls by 1/8 a step of four iterations of two; one that is skipped takes its share along."""
    live, dead, late = make_group(1.0, 0.0), make_group(*DEAD, first=2), make_group(0.0, 1.0, first=4)
    make = partial(make_module, decay=True, minibatches=2, optimizer=partial(torch.optim.SGD, lr=1e-3))
    _, whole = rates_of(make(), *[[live, late]] * 4)
    assert whole == pytest.approx([1e-3 * rest / 8 for rest in range(8, -1, -1)])
    _, flat = rates_of(make(), [live, late], [dead, dead], [dead, dead], [live, late])
    assert flat == pytest.approx([1e-3 * rest / 8 for rest in (8, 7, 2, 1, 0)])
    _, lone = rates_of(make(), [live], [live], [live], [live])  # one group makes one minibatch
    assert lone == pytest.approx([1e-3 * rest / 8 for rest in (8, 6, 4, 2, 0)])
    assert rates_of(make(), *[[dead]] * 4)[1] == [0.0]  # nothing was learned at all


def test_decay_ends_at_zero_where_a_gradient_was_refused(make_module, make_group):
    module = make_module(decay=True)
    with torch.no_grad():
        module.policy.model.model.language_model.norm.weight.fill_(torch.nan)
    assert rates_of(module, *[[make_group(1.0, 0.0)]] * 2)[1] == [1.0, 0.5, 0.0]


def test_the_warm_up_goes_by_the_same_steps(make_module, make_group):
    live, dead = make_group(1.0, 0.0), make_group(*DEAD, first=2)
    _, rates = rates_of(make_module(warmup_steps=3), [dead], [live], [dead], [live])
    assert rates == [0.5, 1.0, 1.0]  # of the steps 1, 3 and 4


@pytest.mark.parametrize("behind", [0, 2])
def test_a_resumed_run_has_the_rate_of_its_iteration(make_module, make_group, tmp_path, behind):
    """Also where the schedule was left behind by what was skipped, as once it was."""
    live, dead = make_group(1.0, 0.0), make_group(*DEAD, first=2)
    trainer, _ = rates_of(make_module(decay=True), [live], [dead], [dead], [live], iterations=3)
    trainer.save_checkpoint(tmp_path / "three.ckpt")
    saved = torch.load(tmp_path / "three.ckpt", weights_only=True)
    (schedule,) = saved["lr_schedulers"]
    schedule["last_epoch"] -= behind
    torch.save(saved, tmp_path / "three.ckpt")
    _, rates = rates_of(
        make_module(decay=True), [live], [dead], [dead], [live], checkpoint=tmp_path / "three.ckpt", iterations=4
    )
    assert rates == [0.25, 0.0]


@pytest.mark.parametrize("iterations", [-1, 0])
def test_decay_in_a_run_without_an_end_is_refused(make_module, iterations):
    module = make_module(decay=True)
    module.trainer = L.Trainer(max_epochs=iterations, accelerator="cpu", logger=False)
    with pytest.raises(ConfigError, match="set iterations"):
        module.configure_optimizers()


# --- KL -------------------------------------------------------------------------------------------------------------


def test_the_policy_has_no_divergence_from_itself_and_some_after_a_step(make_module, make_policy, make_group):
    module = make_module(reference=make_policy, kl_coefficient=0.1, optimizer=partial(torch.optim.SGD, lr=0.01))
    assert metrics(fit(module, [make_group(1.0, 0.0)]))["train/kl_reference"] == pytest.approx(0.0, abs=1e-6)
    assert metrics(fit(module, [make_group(1.0, 0.0)]))["train/kl_reference"] > 1e-5


def test_the_kl_term_learns_from_groups_without_a_signal_and_pulls_back(make_module, make_policy, make_group):
    module = make_module(reference=make_policy, kl_coefficient=1.0, optimizer=partial(torch.optim.SGD, lr=0.05))
    reference = weights(module.policy)
    with torch.no_grad():
        for parameter in module.policy.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    moved = weights(module.policy)
    trainer = fit(module, *[[make_group(0.0, 0.0)]] * 2)
    assert "train/skipped_minibatches" not in trainer.callback_metrics
    step = weights(module.policy) - moved
    assert torch.dot(step, reference - moved) > 0


@pytest.mark.parametrize("kl", ["k1", "k2"])
def test_the_kl_estimator_is_the_one_that_was_named(make_module, make_policy, make_group, kl):
    module = make_module(reference=make_policy, kl_coefficient=0.1, kl=kl)
    with torch.no_grad():
        module.policy.model.lm_head.weight.mul_(1.5)
    policy, reference = module.policy, make_policy()
    (first, second) = make_group(0.0, 0.0).trajectories
    expected = 0.0
    for trajectory in (first, second):
        difference = logprobs_of(policy, trajectory) - logprobs_of(reference, trajectory)
        values = difference if kl == "k1" else difference**2 / 2
        expected += values.mean().item() / 2  # mean over two sequences of the mean over tokens
    reported = metrics(fit(module, [make_group(0.0, 0.0)]))["train/kl_reference"]
    assert reported == pytest.approx(expected, rel=1e-4)


def test_the_reference_is_no_parameter_of_the_module(make_module, make_policy):
    module = make_module(reference=make_policy, kl_coefficient=0.1)
    assert len(list(module.parameters())) == len(list(module.policy.parameters()))
    assert all(name.startswith("policy.") for name in module.state_dict())
    assert not any(parameter.requires_grad for parameter in module._reference[0].parameters())


def test_without_a_coefficient_no_reference_is_loaded(make_module):
    def fail():
        raise AssertionError("the reference was built")

    assert make_module(reference=fail)._reference == []


# --- replayed trajectories ------------------------------------------------------------------------------------------


def test_a_replayed_trajectory_is_learned_from_as_if_it_were_new(make_module, make_group):
    module = make_module()
    fit(module, [make_group(0.0, 1.0, injected=(1,))])
    assert (module.last_update.ratios() == 1).all()


def test_stored_old_logprobs_make_the_ratio_that_of_the_policy_that_sampled_it(make_module, make_group):
    group = make_group(0.0, 1.0, injected=(1,))
    module = make_module(replayed_old_logprobs="stored")
    own, replayed = map(torch.tensor, module.sampled_logprobs(group.trajectories))
    stored = torch.tensor([p for step in group.trajectories[1].steps for p in step.sampler_logprobs])
    fit(module, [group])
    expected = torch.cat([torch.ones_like(own), (replayed - stored).exp()])
    assert sorted(module.last_update.ratios()) == pytest.approx(expected.sort().values.tolist(), rel=1e-4, abs=1e-4)


def test_only_what_was_just_sampled_is_compared_with_the_engine(make_module, make_group):
    """The sample's made-up numbers are far off, a replayed one's old numbers would be so too by right."""
    group = make_group(0.0, 1.0, injected=(0, 1))
    assert "engine/logprob_gap_max" not in metrics(fit(make_module(), [group]))
    fresh = make_group(0.0, 1.0)
    module = make_module()
    gaps = [
        abs(ours - theirs)
        for trajectory in fresh.trajectories
        for ours, theirs in zip(
            module.sampled_logprobs([trajectory])[0],
            (p for step in trajectory.steps for p in step.sampler_logprobs),
            strict=True,
        )
    ]
    reported = metrics(fit(module, [fresh]))
    assert reported["engine/logprob_gap_max"] == pytest.approx(max(gaps), rel=1e-4)
    assert reported["engine/logprob_gap_mean"] == pytest.approx(sum(gaps) / len(gaps), rel=1e-4)


# --- an engine behind the policy ------------------------------------------------------------------------------------


def shifted(trajectory, logprobs, shift):
    """The trajectory as an engine would have sampled it that gave every token `shift` more log-probability."""
    steps, rest = [], list(logprobs)
    for step in trajectory.steps:
        own, rest = rest[: len(step.response_ids)], rest[len(step.response_ids) :]
        steps.append(replace(step, sampler_logprobs=tuple(value + shift for value in own)))
    return replace(trajectory, steps=tuple(steps))


def as_sampled(group, rows, shifts, **changes):
    """The group as an engine would have sampled it that gave each member's tokens `shifts` more log-probability."""
    members = zip(group.trajectories, rows, shifts, strict=True)
    return replace(group, trajectories=tuple(shifted(each, row.tolist(), by) for each, row, by in members), **changes)


@pytest.mark.parametrize(
    ("options", "shift", "injected", "weight"),
    [
        ({"correction": "tis_token"}, math.log(4), (), 0.25),  # old / sampler = 1/4
        ({"correction": "tis_token"}, -math.log(4), (), 1.0),  # 4, truncated
        ({"correction": "tis_token", "correction_band": (0.0, 2.0)}, -math.log(4), (), 2.0),
        ({"correction": "icepop"}, math.log(4), (), 0.0),  # below .5
        ({"correction": "icepop"}, -math.log(4), (), 4.0),
        ({"correction": "decoupled"}, -math.log(4), (), 4.0),
        ({"correction": "decoupled"}, -math.log(6), (), 0.0),  # above 5
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
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
    module = make_module(**options)
    before = weights(module.policy)
    fit(module, [as_sampled(group, rows, (shift, 0.0), injected=injected)])
    assert_close(before - weights(module.policy), gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "total", "weight"),
    [
        ("tis_sequence", math.log(4), 0.25),
        ("tis_sequence", -math.log(4), 2.0),
        ("sequence_mask", math.log(4), 0.25),
        ("sequence_mask", -math.log(2), 2.0),
        ("sequence_mask", -math.log(4), 0.0),  # above 3
    ],
)
def test_a_correction_of_sequences_weighs_by_the_product_over_their_tokens(
    make_module, make_policy, make_group, name, total, weight
):
    group, policy = make_group(1.0, 0.0), make_policy()
    rows = [logprobs_of(policy, trajectory) for trajectory in group.trajectories]
    (-(weight * rows[0].mean() - rows[1].mean()) / 2).backward()
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
    module = make_module(correction=name)
    before = weights(module.policy)
    fit(module, [as_sampled(group, rows, (total / len(rows[0]), 0.0))])
    assert_close(before - weights(module.policy), gradient, rtol=1e-3, atol=1e-5)


def test_a_correction_of_an_engine_that_agrees_changes_nothing(make_module, make_policy, make_group):
    group, policy = make_group(1.0, 0.0), make_policy()
    rows = [logprobs_of(policy, trajectory) for trajectory in group.trajectories]
    exact = as_sampled(group, rows, (0.0, 0.0))
    plain = make_module()
    fit(plain, [exact])
    for name in ("tis_token", "tis_sequence", "icepop", "sequence_mask", "decoupled"):
        corrected = make_module(correction=name)
        fit(corrected, [exact])
        assert_close(weights(corrected.policy), weights(plain.policy), rtol=1e-4, atol=1e-5)


def test_the_weights_of_a_correction_are_told(make_module, make_policy, make_group):
    group, policy = make_group(1.0, 0.0, 1.0), make_policy()
    rows = [logprobs_of(policy, trajectory) for trajectory in group.trajectories]
    sampled = as_sampled(group, rows, (math.log(4), -math.log(3), math.log(9)), injected=(2,))
    told = metrics(fit(make_module(correction="tis_token", correction_band=(0.0, 2.0)), [sampled]))
    # n tokens of ratio 1/4 and m of ratio 3; the replayed ones are not asked
    n, m = len(rows[0]), len(rows[1])
    assert told["policy/importance_mean"] == pytest.approx((n / 4 + 3 * m) / (n + m), rel=1e-4)
    assert told["policy/importance_max"] == pytest.approx(3.0, rel=1e-4)
    assert told["policy/importance_ess"] == pytest.approx((n / 4 + 3 * m) ** 2 / (n + m) / (n / 16 + 9 * m), rel=1e-4)
    # 3 is cut to 2
    assert told["policy/weight_mean"] == pytest.approx((n / 4 + 2 * m) / (n + m), rel=1e-4)
    assert told["policy/weight_max"] == pytest.approx(2.0, rel=1e-4)
    assert told["policy/weight_ess"] == pytest.approx((n / 4 + 2 * m) ** 2 / (n + m) / (n / 16 + 4 * m), rel=1e-4)
    assert told["policy/weight_cut"] == pytest.approx(m / (n + m), rel=1e-4)


@pytest.mark.parametrize(
    ("minibatches", "epochs", "micro_batch_tokens"), [(1, 2, 65536), (2, 2, 65536), (2, 3, 65536), (3, 2, 64)]
)
def test_a_token_is_compared_with_the_engine_once_whatever_the_passes_over_it(
    make_module, make_group, minibatches, epochs, micro_batch_tokens
):
    groups = [make_group(1.0, 0.0), make_group(0.0, 1.0, 0.0, first=4), make_group(1.0, 0.0, first=9)]
    told = []
    for passes in (1, epochs):
        options = {"minibatches": minibatches, "epochs": passes, "micro_batch_tokens": micro_batch_tokens}
        module = make_module(optimizer=partial(torch.optim.SGD, lr=0.05), correction="tis_token", **options)
        told.append(metrics(fit(module, groups)))
    names = [name for name in told[0] if name.startswith(("policy/importance", "policy/weight", "engine/"))]
    assert len(names) == 2 + 3 + 4
    for name in names:
        assert told[1][name] == pytest.approx(told[0][name], rel=1e-4), name


# --- the steps in which the policy was undecided --------------------------------------------------------------------


def trained_tokens(policy, group, keep_fraction):
    """1 for each token that is trained, a row a trajectory: by the definition, from forwards of their own."""
    entropies = []
    for trajectory in group.trajectories:
        batch = collate(tokenize(trajectory, policy.chat), trajectory.screenshots, policy.images)
        (row,) = policy.action_logprobs(batch, with_entropy=True).entropy
        lengths = [len(step.response_ids) for step in trajectory.steps]
        entropies.append(
            [(part.mean().item(), length) for part, length in zip(row.split(lengths), lengths, strict=True)]
        )
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
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
    module = make_module(high_entropy_steps=0.5, minibatches=minibatches, micro_batch_tokens=micro_batch_tokens)
    before = weights(module.policy)
    told = metrics(fit(module, [group]))  # one group makes one minibatch
    assert_close(before - weights(module.policy), gradient, rtol=1e-3, atol=1e-5)
    assert told["policy/trained_steps"] == pytest.approx(0.5)  # 3 of the 6 steps lie above their median


def test_a_trajectory_without_advantage_still_counts_in_the_threshold(make_module, make_policy, make_group):
    """Rewards 1, 0 and 1/2: the third has no gradient, and two steps that others are compared with."""
    group, policy = make_group(1.0, 0.0, 0.5, 0.5, first=3), make_policy()
    kept = trained_tokens(policy, group, 0.5)
    alone = trained_tokens(policy, replace(group, trajectories=group.trajectories[:2]), 0.5)
    assert [row.tolist() for row in kept[:2]] != [row.tolist() for row in alone]
    rows = [logprobs_of(policy, trajectory) for trajectory in group.trajectories]
    (-((rows[0] * kept[0]).mean() - (rows[1] * kept[1]).mean()) / 2 / 4).backward()  # dr_grpo: A = 1/2, -1/2, 0, 0
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
    module = make_module(high_entropy_steps=0.5, estimator="dr_grpo")
    before = weights(module.policy)
    fit(module, [group])
    assert_close(before - weights(module.policy), gradient, rtol=1e-3, atol=1e-5)


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
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
    module = make_module(high_entropy_steps=0.5, correction="tis_token")
    before = weights(module.policy)
    fit(module, [as_sampled(group, rows, (math.log(4), 0.0))])
    assert_close(before - weights(module.policy), gradient, rtol=1e-3, atol=1e-5)


# --- one sequence a step --------------------------------------------------------------------------------------------


def test_a_window_of_screenshots_makes_every_step_a_sequence_with_the_advantage_of_its_trajectory(
    make_module, make_policy, make_group
):
    group, policy = make_group(1.0, 0.0), make_policy()  # of 1 and 2 steps
    windowed = replace(group, trajectories=tuple(replace(each, image_window=1) for each in group.trajectories))
    rows = []
    for trajectory in windowed.trajectories:
        for tokens in tokenize(trajectory, policy.chat):
            output = policy.action_logprobs(collate([tokens], trajectory.screenshots, policy.images))
            rows.append(output.logprobs[output.mask])
    assert [len(row) for row in rows] == [len(step.response_ids) for t in group.trajectories for step in t.steps]
    # Over steps [1, 0, 0]: μ = 1/3, σ = sqrt(2)/3: A = sqrt(2) and -1/sqrt(2); the mean is over three steps
    (-(2**0.5 * rows[0].mean() - 0.5**0.5 * (rows[1].mean() + rows[2].mean())) / 3).backward()
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
    module = make_module(estimator="step_grpo")
    before = weights(module.policy)
    fit(module, [windowed])
    assert_close(before - weights(module.policy), gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kl_coefficient", [0.0, 0.1])
def test_a_step_that_is_a_sequence_and_not_selected_is_not_computed_again_and_changes_nothing(
    make_module, make_policy, make_group, monkeypatch, kl_coefficient
):
    groups = [
        replace(group, trajectories=tuple(replace(each, image_window=1) for each in group.trajectories))
        for group in (make_group(1.0, 0.0, 0.0, 1.0), make_group(0.0, 1.0, first=4))
    ]
    learned, rows = [], []
    for leaves_out in (True, False):
        module = make_module(
            minibatches=2,
            epochs=2,
            micro_batch_tokens=1,  # one sequence a forward: sums of gradients have the same order
            high_entropy_steps=0.5,
            reference=make_policy,
            kl_coefficient=kl_coefficient,
            optimizer=partial(torch.optim.SGD, lr=0.01),
        )
        if not leaves_out:
            monkeypatch.setattr("arpo.modules.grpo.without_untrained", lambda minibatch: minibatch)
        counted = CountedPolicy(module.policy)
        told = metrics(fit(module, groups))
        assert told["policy/trained_steps"] == pytest.approx(5 / 9)  # 3 of 6 steps and 2 of 3
        learned.append(weights(module.policy))
        rows.append((counted.rows, counted.rows_with_gradient))
    assert torch.equal(*learned)
    # 6 + 3 steps once before, then in each of two epochs those that were selected, or all
    assert rows == [(9 + 2 * 5, 2 * 5), (9 + 2 * 9, 2 * 9)]


def test_the_trainers_logprobs_of_a_windowed_trajectory_are_those_of_all_its_steps(make_module, make_group):
    plain = make_group(1.0, 0.0).trajectories
    module = make_module()
    windowed = [replace(trajectory, image_window=1) for trajectory in plain]
    found = module.sampled_logprobs(windowed)
    assert [len(row) for row in found] == [trajectory.action_tokens for trajectory in plain]
    first = len(plain[1].steps[0].response_ids)
    whole = module.sampled_logprobs(plain)
    assert_close(torch.tensor(found[0]), torch.tensor(whole[0]))  # one step sees the same in both
    assert_close(torch.tensor(found[1][:first]), torch.tensor(whole[1][:first]))
    assert found[1][first:] != pytest.approx(whole[1][first:], abs=1e-3)  # the second saw one screenshot less


# --- what goes wrong ------------------------------------------------------------------------------------------------


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
        ({"temperature": float("nan")}, "temperature must be above 0"),
        ({"temperature": math.inf}, "temperature must be finite, got inf"),
        ({"max_grad_norm": math.inf}, "max_grad_norm must be finite, got inf"),
        ({"imitation": math.inf}, "imitation must be finite, got inf"),
        ({"kl_coefficient": math.nan}, "kl_coefficient must be at least 0, got nan"),
        ({"correction": "tis"}, "correction must be one of none, tis_token"),
        ({"correction": "icepop", "correction_band": (2.0, 3.0)}, "0 <= low <= 1 <= high"),
        ({"correction_band": (0.0, 2.0)}, "set correction too"),
        ({"high_entropy_steps": 0.0}, "high_entropy_steps must lie in"),
        ({"high_entropy_steps": 1.1}, "high_entropy_steps must lie in"),
        ({"kl_coefficient": 0.1}, "needs a reference policy"),
        ({"kl_coefficient": -0.1}, "kl_coefficient must be at least 0, got -0.1"),
        ({"format_weight": -1.0}, "format_weight must be at least 0, got -1.0"),
        ({"replayed_old_logprobs": "guess"}, "recompute or stored, got 'guess'"),
        ({"std": "biased"}, "std must be one of sample, population, got 'biased'"),
        ({"estimator": "ppo"}, "estimator must be one of grpo"),
        ({"level": "word"}, "level must be one of token, sequence"),
        ({"aggregation": "mean"}, "aggregation must be one of sequence"),
        ({"aggregation": "dr_grpo"}, "belongs to aggregation=dr_grpo"),
        ({"aggregation": "dr_grpo", "dr_grpo_length": 0}, "dr_grpo_length must be at least 1, got 0"),
        ({"dr_grpo_length": 5}, "belongs to aggregation=dr_grpo"),
        ({"kl": "k9"}, "kl must be one of k1"),
    ],
    ids=str,
)
def test_an_impossible_option_is_refused_with_its_name(make_module, options, words):
    with pytest.raises(ConfigError, match=words):
        make_module(**options)


# --- Lightning ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_holds_the_policy_and_its_version(make_module, make_group, tmp_path):
    trained = make_module()
    fit(trained, [make_group(1.0, 0.0)]).save_checkpoint(tmp_path / "one.ckpt")
    checkpoint = torch.load(tmp_path / "one.ckpt", weights_only=True)
    resumed = make_module()
    resumed.on_load_checkpoint(checkpoint)
    resumed.load_state_dict(checkpoint["state_dict"])
    assert resumed.policy_version == 1
    assert torch.equal(weights(resumed.policy), weights(trained.policy))


def test_callbacks_see_and_change_the_batch_before_anything_is_computed_from_it(make_module, make_group):
    class Rescue(RolloutCallback):
        def on_rollout_end(self, trainer, module, batch):
            batch.groups = [make_group(0.0, 1.0, injected=(1,))]

    module = make_module()
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=[Rescue()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(module, DataLoader([RolloutBatch(0, 0, [make_group(0.0, 0.0)])], batch_size=None))
    assert trainer.global_step == 1
    assert module.last_update.advantages.tolist() == pytest.approx([-1.0, 1.0], abs=3e-6)
