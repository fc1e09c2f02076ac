"""The update of every method that learns from rollouts (`arpo.methods`): GRPO by default (ARPO, arXiv 2505.16282)."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from math import prod
from os import sched_getaffinity
from statistics import fmean
from typing import Literal

import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import override

from arpo.algorithms.losses import CorrectionWeights
from arpo.algorithms.rewards import explained_variance
from arpo.bounds import AtLeastOne, NotNegativeInt, Positive, checked
from arpo.errors import ConfigError
from arpo.methods.method import Credit, Method, Scores, TokenScores, TokenTerms
from arpo.models.collate import micro_batches
from arpo.models.policy import ActionLogprobs, Policy
from arpo.models.vision.tower import to_device
from arpo.modules.base import MakeOptimizer, PlannedRate, PolicyModule
from arpo.modules.critic import LINEAR, MakeCritic
from arpo.modules.metrics import UpdateMeter
from arpo.modules.minibatch import (
    Key,
    Minibatch,
    Sample,
    by_tower,
    chunk_by_tokens,
    samples_of,
    scatter,
    select_steps,
    split,
    without_flat_groups,
    without_untrained,
    without_zero_advantage,
)
from arpo.rollout.hooks import announce, broadcast
from arpo.rollout.sampler import derive_seed
from arpo.types import Group, RolloutBatch

log = logging.getLogger(__name__)

OldLogprobs = Literal["recompute", "stored"]

MOST_PROCESSES = 8
"""Processes of a rank that decode screenshots: eight make some 35 screenshots of 1080p a second."""
MOST_FEATURE_BYTES = 16 * 2**30
"""Bytes of visual tokens that a rank keeps on its host: those of 830 screenshots of 1080p for a 7B in bfloat16.

Where a rank would need more, the vision tower sees every screenshot in every forward."""


@dataclass(frozen=True, slots=True)
class UpdateWork:
    """One update on its way; meter and cache fill while it runs."""

    minibatches: Sequence[Minibatch]
    """This rank's share of those of all epochs: fewer than configured where there are fewer groups."""
    screenshots: Mapping[str, bytes]
    """The PNGs that its samples show, by SHA-256, in the order in which they are wanted."""
    meter: UpdateMeter = field(default_factory=UpdateMeter)
    cache: defaultdict[str, dict[Key, Tensor]] = field(default_factory=lambda: defaultdict(dict))
    """By the names of `TokenScores`, those of each sequence before the first step; and `entropies`."""
    credits: Sequence[Sequence[Credit]] = ()
    """Of each trajectory of each group, on rank 0; none yet while scores are asked for."""


@checked
class GRPOModule(PolicyModule):
    """A policy whose `training_step` learns from one rollout batch in `minibatches * epochs` optimizer steps.

    Args:
        policy: See `PolicyModule`, as for all that are not below; reference and teacher are built where the method
            needs them.
        objective: The method: from groups to the credit of each token, and from log-probabilities to its loss.
        warmup_steps: Optimizer steps over which the learning rate rises linearly.
        decay: Let the learning rate fall linearly to 0 over the iterations of the run, in place of keeping it. Rise
            and fall go by iterations, each `minibatches * epochs` steps long: the run's length is known in iterations
            alone, and a minibatch that is skipped or refused takes its share of the schedule with it.
        minibatches: Optimizer steps in one pass over a batch; as many as there are groups, where those are fewer.
        epochs: Passes over a batch.
        temperature: That of the sampling.
        replayed_old_logprobs: Old log-probabilities of a replayed trajectory: `recompute`d with the current policy
            (the ratio starts at 1, as in the official code), or the `stored` ones of the policy that sampled it.
        critic: Makes the critic, where the method wants one, of the size of the states from which the policy predicts
            its tokens; no gradient of it changes these.
        critic_rate: Its learning rate.
        critic_warmup: Iterations at the beginning in which the critic alone learns, from rollouts of a policy that
            stays as it is (value pretraining, arXiv 2509.02544); `critic/explained_variance` shows how many it needs.
            The rate rises and falls by the same iterations.
        seed: Seeds the order of groups in minibatches.
    """

    learns_from = "rollouts"

    def __init__(  # noqa: PLR0913 - one argument a line of the paper's table
        self,
        policy: Callable[..., Policy],
        optimizer: MakeOptimizer,
        objective: Method,
        *,
        warmup_steps: NotNegativeInt = 0,
        decay: bool = False,
        reference: Callable[..., Policy] | None = None,
        teacher: Callable[..., Policy] | None = None,
        minibatches: AtLeastOne = 2,
        epochs: AtLeastOne = 1,
        micro_batch_tokens: AtLeastOne = 65536,
        max_grad_norm: Positive = 1.0,
        temperature: Positive = 1.0,
        replayed_old_logprobs: OldLogprobs = "recompute",
        critic: MakeCritic = LINEAR,
        critic_rate: Positive = 1e-3,
        critic_warmup: NotNegativeInt = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            policy,
            optimizer,
            micro_batch_tokens=micro_batch_tokens,
            max_grad_norm=max_grad_norm,
            reference=reference if objective.needs.reference else None,
            teacher=teacher if objective.needs.teacher else None,
        )
        if objective.needs.reference and reference is None:
            raise ConfigError(
                f"{type(objective).__name__} with kl_coefficient={objective.kl_coefficient} needs a reference policy: "
                "set reference, for example to ${model.policy}, or kl_coefficient=0"
            )
        if objective.needs.teacher and teacher is None:
            raise ConfigError(
                f"{type(objective).__name__} learns from a teacher, and there is none: set teacher, or another method"
            )
        if critic_warmup and not objective.needs.values:
            raise ConfigError(
                f"critic_warmup={critic_warmup} with {type(objective).__name__}, which has no critic: nothing would "
                "learn meanwhile; set critic_warmup=0, or take a method with a critic, such as method=ppo"
            )
        self.objective = objective
        self._earned = objective.rewards  # also while Entropulse has put another objective in its place
        self.warmup_steps = warmup_steps
        self.decay = decay
        self.minibatches = minibatches
        self.epochs = epochs
        self.temperature = temperature
        self.replayed_old_logprobs: OldLogprobs = replayed_old_logprobs
        self.critic_rate = critic_rate
        self.critic_warmup = critic_warmup
        self.make_critic = critic
        self.critic: torch.nn.Module | None = None
        self.seed = seed

    @override
    def rewards(self, group: Group) -> Tensor:
        return self._earned(group)

    # --- one iteration, as in the paper's algorithm box -------------------------------------------------------------

    @override
    def on_train_batch_start(self, batch: RolloutBatch, batch_idx: int) -> None:
        if self.global_rank == 0:
            announce(self.trainer, self, batch)

    @override
    def training_step(self, batch: RolloutBatch, batch_idx: int) -> None:
        started = time.monotonic()
        work = self._begin(batch)
        with self._pictures(work.screenshots):
            if self.objective.needs.scores:
                work = self._scored(work, batch.groups)
            for place, (minibatch, old) in enumerate(self._before(work)):
                self._schedule(place)
                self.update(work, minibatch, old)
            if self.measures_after:
                self._measure_after(work)
        self.policy_version += 1
        self._schedule(0)
        seconds, meter = time.monotonic() - started, work.meter.over_ranks()
        metrics = meter.compute() | {"time/update": seconds, "policy/version": float(self.policy_version)}
        metrics["train/learning_rate"] = self.learning_rate
        self.log_dict(metrics, on_step=False, on_epoch=True, batch_size=1)
        self.last_update = meter.record(batch, work.credits) if self.global_rank == 0 else None

    def _begin(self, batch: RolloutBatch) -> UpdateWork:
        """Return the update that a batch asks for, which rank 0 plans and deals out."""
        meter, plan = UpdateMeter(), None
        credits: list[list[Credit]] = []
        if self.global_rank == 0:
            if not self.objective.needs.scores:
                credits = self._credits(batch.groups, meter)
            plan = self.plan(samples_of(batch.groups, self.policy.chat, credits or None), batch.iteration)
        minibatches, screenshots = scatter(plan)
        return UpdateWork(minibatches, screenshots, meter, credits=credits)

    def _credits(
        self, groups: Sequence[Group], meter: UpdateMeter, scores: Scores | None = None
    ) -> list[list[Credit]]:
        """Return the credits that the method gives a batch, on rank 0."""
        credits = self.objective.checked_credits(groups, scores)
        for name, number in self.objective.measure(groups, credits).items():
            meter.averages.mean(name, number)
        if self.policy_version == 0:
            tokens = sum(trajectory.action_tokens for group in groups for trajectory in group.trajectories)
            if complaint := self.objective.complaint(tokens):
                log.warning("%s", complaint)
        return credits

    def _scored(self, work: UpdateWork, groups: Sequence[Group]) -> UpdateWork:
        """Return the update with the credits that the method makes of the scores of each token.

        The forward that asks a critic gives the old log-probabilities too. The groups are those of rank 0; on other
        ranks there are none.
        """
        for minibatch in (*work.minibatches[1:], *work.minibatches[:1]):  # as screenshots are decoded
            self.old_logprobs(work, minibatch)
        names = [each.name for each in fields(TokenScores) if work.cache[each.name]]
        kept = UpdateMeter()
        for minibatch in work.minibatches:
            for name in names:
                kept.note(minibatch.samples, **{name: [work.cache[name][each.key] for each in minibatch.samples]})
        kept = kept.over_ranks()
        credits: list[list[Credit]] = []
        if self.global_rank == 0:
            rows = {name: kept.by_trajectory(name) for name in names}
            scores = [
                [
                    TokenScores(**{name: found[number, member] for name, found in rows.items()})
                    for member in range(len(group.trajectories))
                ]
                for number, group in enumerate(groups)
            ]
            credits = self._credits(groups, work.meter, scores)
            self._measure_critic(work.meter, scores, credits)
        credits = broadcast(credits)
        minibatches = [each.credited(credits, work.cache["teacher"]) for each in work.minibatches]
        return replace(work, minibatches=minibatches, credits=credits)

    def _measure_critic(self, meter: UpdateMeter, scores: Scores, credits: Sequence[Sequence[Credit]]) -> None:
        """Measure how much of its targets the critic predicted already, over all tokens of the batch."""
        pairs = [
            (self.objective.predicted_returns(before.values), credit.returns)
            for row, learned in zip(scores, credits, strict=True)
            for before, credit in zip(row, learned, strict=True)
            if before.values is not None and credit.returns is not None
        ]
        if not pairs:
            return
        explained = explained_variance(*(torch.cat(numbers) for numbers in zip(*pairs, strict=True)))
        if explained is not None:
            meter.averages.mean("critic/explained_variance", explained)

    def plan(self, groups: Sequence[Sequence[Sample]], iteration: int) -> list[Minibatch]:
        """Return the minibatches of this iteration in order, without samples that have nothing to teach."""
        planned = [
            minibatch
            for epoch in range(self.epochs)
            for minibatch in split(groups, self.minibatches, derive_seed(self.seed, "minibatches", iteration, epoch))
        ]
        needs = self.objective.needs
        if needs.reference or needs.entropy or needs.scores:  # every sample teaches something, or may do so
            return planned
        if self.objective.high_entropy_steps is not None:  # all steps of a group are compared
            return [without_flat_groups(minibatch) for minibatch in planned]
        return [without_zero_advantage(minibatch) for minibatch in planned]

    def _before(self, work: UpdateWork) -> list[tuple[Minibatch, list[Tensor] | None]]:
        """Return each minibatch with its old log-probabilities, and with its steps selected where that is wanted.

        No update comes before the first minibatch: its old log-probabilities are those of its own forward, None here.
        A selection by entropy cannot wait for that forward. A sequence of which no step is selected is not computed
        again, unless it teaches a critic.
        """
        minibatches, keep_fraction = work.minibatches, self.objective.high_entropy_steps
        later = [self.old_logprobs(work, minibatch) for minibatch in minibatches[1:]]
        if keep_fraction is None:
            return list(zip(minibatches, [None, *later], strict=False))
        for minibatch in minibatches[:1]:
            self.old_logprobs(work, minibatch)
        chosen = [select_steps(each, work.cache["entropies"], keep_fraction=keep_fraction) for each in minibatches]
        for sample in (sample for minibatch in chosen for sample in minibatch.samples if not sample.filler):
            work.meter.averages.mean("policy/trained_steps", fmean(sample.trained or ()), len(sample.trained or ()))
        trained = chosen if self.objective.needs.values else [without_untrained(minibatch) for minibatch in chosen]
        return [(each, [work.cache["logprobs"][sample.key] for sample in each.samples]) for each in trained]

    @torch.no_grad()
    def old_logprobs(self, work: UpdateWork, minibatch: Minibatch) -> list[Tensor]:
        """Return log-probabilities from before the first update of this iteration, one tensor [actions] a sample.

        They stay in the cache of the update, with the other scores that the method needs: a later epoch computes
        nothing again.
        """
        needs, cache = self.objective.needs, work.cache
        new = [place for place, sample in enumerate(minibatch.samples) if sample.key not in cache["logprobs"]]
        for _, samples in self._micro_batches(minibatch, new):
            output = self._forward(work, samples)
            scores = {"values": output.values}
            tokens = [sample.tokens for sample in samples]
            if needs.scores and needs.reference:
                scores["reference"] = self.reference_logprobs(tokens, work.screenshots).logprobs
            for teacher in self.teachers if needs.teacher else ():
                scores["teacher"] = self.action_logprobs(tokens, work.screenshots, policy=teacher).logprobs
            for name, rows in ((name, rows) for name, rows in scores.items() if rows is not None):
                pairs = zip(samples, rows, strict=True)
                cache[name] |= {sample.key: row[: sample.action_tokens] for sample, row in pairs}
            for row, (sample, old) in enumerate(zip(samples, self._old(work, samples, output), strict=True)):
                cache["logprobs"][sample.key] = old
                if output.entropy is not None and self.objective.high_entropy_steps is not None:
                    cache["entropies"][sample.key] = output.entropy[row, : len(old)]
        return [cache["logprobs"][sample.key] for sample in minibatch.samples]

    def _old(self, work: UpdateWork, samples: Sequence[Sample], output: ActionLogprobs) -> list[Tensor]:
        """Return old log-probabilities from a forward that no update preceded, and compare them with the sampler's."""
        rows = output.logprobs.detach()
        trainer = [row[: sample.action_tokens] for sample, row in zip(samples, rows, strict=True)]
        sampler = [to_device(sample.tokens.sampler_logprobs, self.device) for sample in samples]
        fresh = [row for row, sample in enumerate(samples) if not sample.replayed]
        work.meter.note(samples, old_entropy=output.entropy)
        work.meter.note(
            [samples[row] for row in fresh],
            trainer=[trainer[row] for row in fresh],
            sampler=[sampler[row] for row in fresh],
        )
        if self.replayed_old_logprobs == "recompute":
            return trainer
        return [
            stored if sample.replayed else own for sample, own, stored in zip(samples, trainer, sampler, strict=True)
        ]

    def update(self, work: UpdateWork, minibatch: Minibatch, old: list[Tensor] | None) -> None:
        """Take one optimizer step; `old` is None where no step came before, so that old and new are the same."""
        averages = work.meter.averages
        if not minibatch.samples:
            averages.total("train/skipped_minibatches", 1.0)
            return
        for places, samples in self._micro_batches(minibatch):
            before = [old[place] for place in places] if old is not None and places else None
            self._accumulate(work, minibatch, samples, before)
        if self.policy_version < self.critic_warmup:
            for parameter in self.trainable_parameters():  # those of the policy: without a gradient, not even decay
                parameter.grad = None
        norm = self.take_step()
        if norm is None:
            averages.total("train/refused_gradients", 1.0)
        else:
            averages.mean("train/grad_norm", norm)

    def _accumulate(
        self, work: UpdateWork, minibatch: Minibatch, samples: list[Sample], old: list[Tensor] | None
    ) -> None:
        """Add the gradient of one micro-batch."""
        method, output = self.objective, self._forward(work, samples)
        tokens = [sample.tokens for sample in samples]
        before = pad_sequence(self._old(work, samples, output) if old is None else old, batch_first=True)
        mask = output.mask & to_device(torch.tensor([[not sample.filler] for sample in samples]), self.device)
        ranks, count = self.trainer.world_size, len(work.minibatches)  # ranks average their gradients
        counts = (minibatch.sequences, minibatch.action_tokens, minibatch.episodes, self.epochs / count)
        average = method.average(*(number / ranks for number in counts))
        episode_tokens = to_device(torch.tensor([float(sample.episode_tokens) for sample in samples]), self.device)
        selects = method.high_entropy_steps is not None
        selected = self._padded([sample.selected() for sample in samples]) if selects else None
        correction, fresh = self._correction(samples, before, mask)
        weights = selected
        if correction is not None:
            weights = correction.weights if selected is None else correction.weights * selected
        terms = TokenTerms(
            output.logprobs,
            before,
            self._padded([sample.advantages for sample in samples]),
            mask,
            weights,
            output.values,
            self._optional([sample.returns for sample in samples]),
            output.entropy,
            self.reference_logprobs(tokens, work.screenshots).logprobs if method.needs.reference else None,
            self._optional([sample.teacher for sample in samples]),
        )
        result = method.loss(terms)
        loss = average(result.losses, mask, episode_tokens)
        penalty: Tensor | float = 0.0  # whatever the advantages are
        for name, (coefficient, numbers) in method.penalties(terms).items():
            part = average(numbers if selected is None else numbers * selected, mask, episode_tokens)
            work.meter.averages.total(f"train/{name}", part.detach() / count)
            penalty = penalty + coefficient * part
        loss = loss + penalty
        self.manual_backward(loss)
        work.meter.averages.total("train/loss", loss.detach() / count)
        work.meter.add(result, output, mask, correction, fresh)
        work.meter.note(
            samples, old_logprobs=before, logprobs=output.logprobs, entropy=output.entropy, weights=weights
        )

    def _correction(
        self, samples: Sequence[Sample], before: Tensor, mask: Tensor
    ) -> tuple[CorrectionWeights | None, Tensor]:
        """Return the correction of each token's policy term and what it is measured on, each [batch, actions]."""
        sampler = self._padded([sample.tokens.sampler_logprobs for sample in samples])
        replayed = to_device(torch.tensor([sample.replayed for sample in samples]), self.device)
        return self.objective.weights(before, sampler, mask, replayed), mask & ~replayed[:, None]

    @torch.no_grad()
    def _measure_after(self, work: UpdateWork) -> None:
        """Record log-probabilities and entropies of the updated policy for one epoch's samples, which all have."""
        for minibatch in work.minibatches[: len(work.minibatches) // self.epochs]:
            for _, samples in self._micro_batches(minibatch):
                output = self._forward(work, samples)
                work.meter.note(samples, after_logprobs=output.logprobs, after_entropy=output.entropy)

    def _padded(self, rows: Sequence[Tensor]) -> Tensor:
        """Return one tensor of the rows of a micro-batch, on the device, [batch, actions]."""
        return to_device(pad_sequence(list(rows), batch_first=True), self.device)

    def _optional(self, rows: Sequence[Tensor | None]) -> Tensor | None:
        """Return the same of rows that all are there; None where none is."""
        there = [row for row in rows if row is not None]
        return self._padded(there) if there else None

    # --- the policy -------------------------------------------------------------------------------------------------

    @contextmanager
    def _pictures(self, screenshots: Mapping[str, bytes]) -> Iterator[None]:
        """Decode the screenshots of an update ahead; a frozen vision tower sees them now, and not again."""
        images = self.policy.images
        cores = len(sched_getaffinity(0)) // self.trainer.num_devices
        images.prepare(screenshots, max(1, min(MOST_PROCESSES, cores)))
        try:
            for policies in by_tower([self.policy, *self.frozen]):
                features = self._seen(policies[0], screenshots)
                for policy in policies:
                    policy.features = features
            yield
        finally:
            for policy in (self.policy, *self.frozen):
                policy.features = None
            images.forget()

    def _seen(self, policy: Policy, screenshots: Mapping[str, bytes]) -> dict[str, Tensor] | None:
        """Return the visual tokens of screenshots, by as many forwards on every rank; None if they are too large."""
        tokens, nbytes = visual_sizes(screenshots, policy)
        if self._most(nbytes) > MOST_FEATURE_BYTES:
            return None
        forwards, keys = chunk_by_tokens(tokens, self.micro_batch_tokens), list(screenshots)
        features: dict[str, Tensor] = {}
        images = self.policy.images
        for forward in forwards + (forwards[-1:] or [[]]) * (self._most(len(forwards)) - len(forwards)):
            pictures = {keys[index]: images.packed(keys[index], screenshots[keys[index]]) for index in forward}
            pictures = pictures or {"": images.blank}  # only texts on this rank
            features |= zip(pictures, policy.visual_tokens([*pictures.values()]), strict=True)
        return features

    def _most(self, count: int) -> int:
        """Return the largest count of all ranks."""
        if self.trainer.world_size == 1:
            return count
        return int(self.trainer.strategy.reduce(torch.tensor(count, device=self.device), reduce_op="max"))

    def _micro_batches(
        self, minibatch: Minibatch, among: Sequence[int] | None = None
    ) -> Iterator[tuple[list[int], list[Sample]]]:
        """Yield the samples of a minibatch, or those `among` some places, by micro-batches, and their places in it.

        On several ranks there are equally many on each: one that runs out of samples gets a filler, at no place.
        """
        samples = minibatch.samples
        among = range(len(samples)) if among is None else among
        if not samples:
            return
        chunks = micro_batches([samples[place].length for place in among], self.micro_batch_tokens)
        for chunk in chunks + [[]] * (self._most(len(chunks)) - len(chunks)):
            places = [among[index] for index in chunk]
            yield places, [samples[place] for place in places] or [replace(samples[0], filler=True)]

    def _forward(self, work: UpdateWork, samples: Sequence[Sample]) -> ActionLogprobs:
        tokens = [sample.tokens for sample in samples]
        return self.action_logprobs(tokens, work.screenshots, with_entropy=True, critic=self.critic)

    # --- Lightning --------------------------------------------------------------------------------------------------

    @override
    def configure_model(self) -> None:
        super().configure_model()
        self.policy.entropy_gradient = self.objective.needs.entropy
        if not self.objective.needs.values or self.critic is not None:
            return
        if self.device_mesh is not None:
            raise ConfigError("a critic is not cut into shards: take trainer=ddp, or a method that needs no values")
        self.critic = self.make_critic(self.policy.model.get_input_embeddings().embedding_dim)

    @override
    def clipped_together(self) -> list[list[torch.nn.Parameter]]:
        return [*super().clipped_together(), *([] if self.critic is None else [list(self.critic.parameters())])]

    @override
    def on_fit_end(self) -> None:
        self.policy.images.close()

    @override
    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = self.make_optimizer(self.named_trainable_parameters())
        if self.critic is not None:
            names = "param_names" in optimizer.param_groups[0]  # torch wants them of all parameters or of none
            critic = list(self.critic.named_parameters() if names else self.critic.parameters())
            optimizer.add_param_group({"params": critic, "lr": self.critic_rate, "weight_decay": 0.0})
        decay_steps = None
        if self.decay:
            iterations = self.trainer.max_epochs
            if iterations is None or iterations < 1:
                raise ConfigError(
                    "module.decay lets the rate fall until the last iteration: set iterations, or decay=false"
                )
            decay_steps = iterations * self.minibatches * self.epochs
        rate = PlannedRate(optimizer, warmup_steps=self.warmup_steps, decay_steps=decay_steps)
        return {"optimizer": optimizer, "lr_scheduler": rate}

    def _schedule(self, place: int) -> None:
        """Set the learning rate to that of a step of the iteration, by its place."""
        schedule = self.lr_schedulers()
        assert isinstance(schedule, PlannedRate), "configure_optimizers returns one schedule"
        schedule.move_to(self.policy_version * self.minibatches * self.epochs + place)


def visual_sizes(screenshots: Mapping[str, bytes], policy: Policy) -> tuple[list[int], int]:
    """Return the visual tokens that a policy's vision tower makes of each screenshot, and the bytes of all."""
    merged = policy.images.merge_size**2
    tokens = [prod(policy.images.grid(key, png)) // merged for key, png in screenshots.items()]
    width = policy.family.visual_width(policy.model.config)
    return tokens, sum(tokens) * width * next(policy.vision.parameters()).element_size()
