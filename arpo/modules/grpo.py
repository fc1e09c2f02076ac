"""The update of every method that learns from rollouts (`arpo.methods`): GRPO by default (ARPO, arXiv 2505.16282)."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import fmean
from typing import Any, Literal

import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import override

from arpo.algorithms.losses import MinibatchAverage
from arpo.algorithms.returns import explained_variance
from arpo.algorithms.selection import step_entropies
from arpo.errors import ConfigError, check_at_least, check_positive
from arpo.methods.method import Credit, Method, Scores, TokenScores, TokenTerms
from arpo.models.collate import micro_batches
from arpo.models.policy import ActionLogprobs, Policy
from arpo.models.transfer import to_device
from arpo.modules.base import PolicyModule
from arpo.modules.critic import LINEAR, MakeCritic
from arpo.modules.metrics import UpdateMeter
from arpo.modules.minibatch import (
    Minibatch,
    Sample,
    by_sample,
    check_credits,
    inputs,
    pick,
    samples_of,
    scatter,
    split,
    without_flat_groups,
    without_untrained,
    without_zero_advantage,
)
from arpo.modules.optimizer import MakeOptimizer, PlannedRate
from arpo.modules.pictures import (
    MOST_FEATURE_BYTES,
    VisualSizes,
    by_tower,
    chunk_by_tokens,
    decoding_processes,
    wanted_screenshots,
)
from arpo.modules.selection import OldPolicyCache, select_steps
from arpo.rollout.hooks import announce, broadcast
from arpo.rollout.seeds import derive_seed
from arpo.types import Group, RolloutBatch

log = logging.getLogger(__name__)

OldLogprobs = Literal["recompute", "stored"]


class GRPOModule(PolicyModule):
    """A policy whose `training_step` learns from one rollout batch in `minibatches * epochs` optimizer steps.

    Args:
        policy: See `PolicyModule`, as for all that are not below.
        objective: The method: from groups to the credit of each token, and from log-probabilities to its loss.
        warmup_steps: Optimizer steps over which the learning rate rises linearly.
        decay: Let the learning rate fall linearly to 0 over the iterations of the run, in place of keeping it. Rise
            and fall go by iterations, each `minibatches * epochs` steps long: the run's length is known in iterations
            alone, and a minibatch that is skipped or refused takes its share of the schedule with it.
        reference: Builds the frozen policy of the KL term; needed when `kl_coefficient` of the objective is above 0.
            With LoRA nothing is built: the reference is the policy without its adapters.
        teacher: Builds the frozen policy that the method learns from, where it needs one.
        minibatches: Optimizer steps in one pass over a batch; as many as there are groups, where those are fewer.
        epochs: Passes over a batch.
        temperature: The sampling temperature: log-probabilities are of the distribution that was sampled.
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

    def __init__(  # noqa: PLR0913 - one argument a line of the paper's table
        self,
        policy: Callable[..., Policy],
        optimizer: MakeOptimizer,
        objective: Method,
        *,
        warmup_steps: int = 0,
        decay: bool = False,
        reference: Callable[..., Policy] | None = None,
        teacher: Callable[..., Policy] | None = None,
        minibatches: int = 2,
        epochs: int = 1,
        micro_batch_tokens: int = 65536,
        max_grad_norm: float = 1.0,
        temperature: float = 1.0,
        replayed_old_logprobs: OldLogprobs = "recompute",
        critic: MakeCritic = LINEAR,
        critic_rate: float = 1e-3,
        critic_warmup: int = 0,
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
        if replayed_old_logprobs not in ("recompute", "stored"):
            raise ConfigError(f"replayed_old_logprobs must be recompute or stored, got {replayed_old_logprobs!r}")
        check_at_least(1, minibatches=minibatches, epochs=epochs)
        check_at_least(0, warmup_steps=warmup_steps, critic_warmup=critic_warmup)
        check_positive(temperature=temperature, critic_rate=critic_rate)
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
    def training_step(self, batch: RolloutBatch, batch_idx: int) -> None:
        started = time.monotonic()
        work, known = UpdateMeter(), OldPolicyCache()
        plan = None
        if self.global_rank == 0:  # rank 0 collects, injects and deals out
            announce(self.trainer, self, batch)
            groups = samples_of(batch.groups, self.policy.chat)
            if not self.objective.needs.scores:
                groups = self._credited(groups, self._credits(batch.groups, work), work)
            plan = self.plan(groups, batch.iteration)
        minibatches = scatter(plan)
        work.minibatches = len(minibatches)
        with self._pictures(minibatches):
            if self.objective.needs.scores:
                minibatches = self._scored(minibatches, batch.groups, work, known)
            for place, (minibatch, old) in enumerate(self._before(minibatches, work, known)):
                self._schedule(place)
                self.update(minibatch, old, work)
            if self.measures_after:
                self._measure_after(minibatches, work)
        self.policy_version += 1
        self._schedule(0)
        self._report(batch, work, time.monotonic() - started)

    @staticmethod
    def _credited(
        groups: Sequence[Sequence[Sample]], credits: Sequence[Sequence[Credit]], work: UpdateMeter
    ) -> list[list[Sample]]:
        """Return samples with what their tokens are to learn, and record it."""
        found = [[sample.credited(credits[sample.group][sample.member]) for sample in samples] for samples in groups]
        for samples in found:
            work.note(samples, advantages=[sample.advantages for sample in samples])
        return found

    def _credits(self, groups: Sequence[Group], work: UpdateMeter, scores: Scores | None = None) -> list[list[Credit]]:
        """Return what a method makes of a batch, on rank 0."""
        credits = self.objective.credits(groups, scores)
        check_credits(groups, credits)
        for name, number in self.objective.measure(groups, credits).items():
            work.averages.mean(name, number)
        if self.policy_version == 0:
            tokens = sum(trajectory.action_tokens for group in groups for trajectory in group.trajectories)
            if complaint := self.objective.complaint(tokens):
                log.warning("%s", complaint)
        if scores is not None:
            self._measure_critic(scores, credits, work)
        return credits

    def _scored(
        self, minibatches: Sequence[Minibatch], groups: Sequence[Group], work: UpdateMeter, known: OldPolicyCache
    ) -> list[Minibatch]:
        """Return the minibatches with the credit that a method makes of what policies and critic say of each token.

        The forward that asks a critic gives the old log-probabilities too. The groups are those of rank 0; on other
        ranks there are none.
        """
        meter, samples = UpdateMeter(), [minibatch.samples for minibatch in minibatches]
        for minibatch in (*minibatches[1:], *minibatches[:1]):  # as screenshots are decoded
            self.old_logprobs(minibatch, work, known)
        for row in samples:
            meter.note(row, **{name: [numbers[each.key] for each in row] for name, numbers in known.scores().items()})
        meter, credits = meter.over_ranks(), []
        if self.global_rank == 0:
            found = {name: meter.by_trajectory(name) for name in known.scores()}
            scores = [
                [
                    TokenScores(**{name: rows[number, member] for name, rows in found.items()})
                    for member in range(len(group.trajectories))
                ]
                for number, group in enumerate(groups)
            ]
            credits = self._credits(groups, work, scores)
        credited = self._credited(samples, broadcast(credits), work)
        taught = [tuple(replace(each, teacher=known.teacher.get(each.key)) for each in row) for row in credited]
        return [replace(minibatch, samples=row) for minibatch, row in zip(minibatches, taught, strict=True)]

    def _measure_critic(self, scores: Scores, credits: Sequence[Sequence[Credit]], work: UpdateMeter) -> None:
        """Measure how much of what the critic is to learn it said already, over all tokens of the batch."""
        pairs = [
            (self.objective.expected(said.values), credit.returns)
            for row, learned in zip(scores, credits, strict=True)
            for said, credit in zip(row, learned, strict=True)
            if said.values is not None and credit.returns is not None
        ]
        if not pairs:
            return
        explained = explained_variance(*(torch.cat(numbers) for numbers in zip(*pairs, strict=True)))
        if explained is not None:
            work.averages.mean("critic/explained_variance", explained)

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

    def _before(
        self, minibatches: Sequence[Minibatch], work: UpdateMeter, known: OldPolicyCache
    ) -> list[tuple[Minibatch, list[Tensor] | None]]:
        """Return each minibatch with its old log-probabilities, and with its steps selected where that is wanted.

        No update comes before the first minibatch: its old log-probabilities are those of its own forward, None here.
        A selection by entropy cannot wait for that forward, as a group may be spread over micro-batches and ranks.
        A sequence of which no step is selected is not computed again, unless it teaches a critic.
        """
        keep_fraction = self.objective.high_entropy_steps
        later = [self.old_logprobs(minibatch, work, known) for minibatch in minibatches[1:]]
        if keep_fraction is None:
            return list(zip(minibatches, [None, *later], strict=False))
        for minibatch in minibatches[:1]:
            self.old_logprobs(minibatch, work, known)
        chosen = [select_steps(each, known.entropies, keep_fraction=keep_fraction) for each in minibatches]
        for sample in (sample for minibatch in chosen for sample in minibatch.samples if not sample.filler):
            work.averages.mean("policy/trained_steps", fmean(sample.trained or ()), len(sample.trained or ()))
        trained = chosen if self.objective.needs.values else [without_untrained(minibatch) for minibatch in chosen]
        return [(minibatch, [known.logprobs[sample.key] for sample in minibatch.samples]) for minibatch in trained]

    @torch.no_grad()
    def old_logprobs(self, minibatch: Minibatch, work: UpdateMeter, known: OldPolicyCache) -> list[Tensor]:
        """Return log-probabilities from before the first update of this iteration, one tensor [actions] a sample.

        Args:
            minibatch: Samples of one rank.
            work: Is told how far they are from the sampler's.
            known: What is known so far, which is added to: a later epoch computes nothing again.
        """
        needs = self.objective.needs
        new = [index for index, sample in enumerate(minibatch.samples) if sample.key not in known.logprobs]
        for places in self._chunks([minibatch.samples[index].length for index in new]):
            chunk = [new[place] for place in places]
            samples = pick(minibatch, chunk)
            output = self._forward(samples)
            if needs.scores and needs.reference:
                known.reference.update(by_sample(samples, self.reference_logprobs(*inputs(samples)).logprobs))
            for teacher in self.teachers if needs.teacher else ():
                said = self.action_logprobs(*inputs(samples), policy=teacher)
                known.teacher.update(by_sample(samples, said.logprobs))
            work.note(samples, old_entropy=output.entropy)
            for row, (sample, old) in enumerate(zip(samples, self._old(samples, output, work), strict=True)):
                known.logprobs[sample.key] = old
                if output.values is not None:
                    known.values[sample.key] = output.values[row, : len(old)]
                if output.entropy is not None and self.objective.high_entropy_steps is not None:
                    lengths = sample.tokens.step_lengths
                    known.entropies[sample.key] = step_entropies(output.entropy[row, : len(old)], lengths)
        return [known.logprobs[sample.key] for sample in minibatch.samples]

    def update(self, minibatch: Minibatch, old: list[Tensor] | None, work: UpdateMeter) -> None:
        """Take one optimizer step; `old` is None where no step came before, so that old and new are the same."""
        if not minibatch.samples:
            work.averages.total("train/skipped_minibatches", 1.0)
            return
        for chunk in self._chunks([sample.length for sample in minibatch.samples]):
            # A filler, for which a rank without samples has an empty chunk, has no old log-probabilities.
            before = [old[index] for index in chunk] if old is not None and chunk else None
            self._accumulate(minibatch, chunk, before, work)
        if self.policy_version < self.critic_warmup:
            for parameter in self.trainable_parameters():  # those of the policy: without a gradient, not even decay
                parameter.grad = None
        norm = self.take_step()
        if norm is None:
            work.averages.total("train/refused_gradients", 1.0)
        else:
            work.averages.mean("train/grad_norm", norm)

    def _accumulate(self, minibatch: Minibatch, chunk: list[int], old: list[Tensor] | None, work: UpdateMeter) -> None:
        """Add the gradient of one micro-batch."""
        samples = pick(minibatch, chunk)
        output = self._forward(samples)
        before = pad_sequence(self._old(samples, output, work) if old is None else old, batch_first=True)
        mask = output.mask & self._sent([[not sample.filler] for sample in samples])
        ranks = self.trainer.world_size  # which average their gradients
        share = self.epochs / work.minibatches / ranks
        average = self.objective.average(minibatch.sequences / ranks, minibatch.action_tokens / ranks, share)
        selected = self._selected(samples)
        weights = self._weights(samples, before, mask, selected, work)
        terms = TokenTerms(
            output.logprobs,
            before,
            self._padded([sample.advantages for sample in samples]),
            mask,
            weights,
            output.values,
            self._optional([sample.returns for sample in samples]),
            output.entropy,
            self.reference_logprobs(*inputs(samples)).logprobs if self.objective.needs.reference else None,
            self._optional([sample.teacher for sample in samples]),
        )
        result = self.objective.loss(terms)
        loss = average(result.losses, mask) + self._penalty(terms, average, selected, work)
        self.manual_backward(loss)
        work.averages.total("train/loss", loss.detach() / work.minibatches)
        work.add(result, output, mask)
        work.note(samples, old_logprobs=before, logprobs=output.logprobs, entropy=output.entropy)
        work.note(samples, weights=weights, old_entropy=output.entropy if old is None else None)

    @torch.no_grad()
    def _measure_after(self, minibatches: Sequence[Minibatch], work: UpdateMeter) -> None:
        """Record what the updated policy says of the samples of one epoch, which are those of all epochs."""
        for minibatch in minibatches[: len(minibatches) // self.epochs]:
            for chunk in self._chunks([sample.length for sample in minibatch.samples]) if minibatch.samples else ():
                samples = pick(minibatch, chunk)
                output = self._forward(samples)
                work.note(samples, after_logprobs=output.logprobs, after_entropy=output.entropy)

    def _padded(self, rows: Sequence[Tensor]) -> Tensor:
        """Return one tensor of the rows of a micro-batch, on the device, [batch, actions]."""
        return to_device(pad_sequence(list(rows), batch_first=True), self.device)

    def _optional(self, rows: Sequence[Tensor | None]) -> Tensor | None:
        """Return the same of rows that all are there; None where none is."""
        there = [row for row in rows if row is not None]
        return self._padded(there) if there else None

    def _sent(self, values: Sequence[Any]) -> Tensor:
        return to_device(torch.tensor(values), self.device)

    def _weights(
        self, samples: Sequence[Sample], before: Tensor, mask: Tensor, selected: Tensor | None, work: UpdateMeter
    ) -> Tensor | None:
        """Return the factor of each token's policy term, [batch, actions]; None where all are 1."""
        sampler = self._padded([sample.tokens.sampler_logprobs for sample in samples])
        replayed = self._sent([sample.replayed for sample in samples])
        correction = self.objective.weights(before, sampler, mask, replayed)
        if correction is None:
            return selected
        work.correct(correction, mask & ~replayed[:, None])
        return correction.weights if selected is None else correction.weights * selected

    def _selected(self, samples: Sequence[Sample]) -> Tensor | None:
        """Return 1 where a token is trained, else 0, [batch, actions]; None where nothing selects."""
        if self.objective.high_entropy_steps is None:
            return None
        return self._padded([sample.selected() for sample in samples])

    def _penalty(
        self, terms: TokenTerms, average: MinibatchAverage, selected: Tensor | None, work: UpdateMeter
    ) -> Tensor | float:
        """Return what is added to the loss of a micro-batch whatever the advantages are."""
        total: Tensor | float = 0.0
        for name, (coefficient, numbers) in self.objective.penalties(terms).items():
            penalty = average(numbers if selected is None else numbers * selected, terms.mask)
            work.averages.total(f"train/{name}", penalty.detach() / work.minibatches)
            total = total + coefficient * penalty
        return total

    # --- the policy -------------------------------------------------------------------------------------------------

    @contextmanager
    def _pictures(self, minibatches: Sequence[Minibatch]) -> Iterator[None]:
        """Decode the screenshots of an update ahead; a frozen vision tower sees them now, and not again."""
        images, screenshots = self.policy.images, wanted_screenshots(minibatches)
        images.prepare(screenshots, decoding_processes(self.trainer.num_devices))
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
        places = VisualSizes.of(screenshots, policy)
        if self._most(places.nbytes) > MOST_FEATURE_BYTES:
            return None
        forwards = chunk_by_tokens(places.tokens, self.micro_batch_tokens)
        keys = list(screenshots)
        features: dict[str, Tensor] = {}
        for forward in forwards + forwards[-1:] * (self._most(len(forwards)) - len(forwards)):
            names = [keys[index] for index in forward]
            pictures = [self.policy.images.packed(name, screenshots[name]) for name in names]
            features |= zip(names, policy.visual_tokens(pictures), strict=True)
        return features

    def _most(self, count: int) -> int:
        """Return the largest count of all ranks."""
        if self.trainer.world_size == 1:
            return count
        return int(self.trainer.strategy.reduce(torch.tensor(count, device=self.device), reduce_op="max"))

    def _chunks(self, lengths: Sequence[int]) -> list[list[int]]:
        """Return micro-batches as positions in `lengths`; on several ranks, equally many on each."""
        chunks = micro_batches(lengths, self.micro_batch_tokens)
        return chunks + [[]] * (self._most(len(chunks)) - len(chunks))

    def _forward(self, samples: Sequence[Sample]) -> ActionLogprobs:
        return self.action_logprobs(*inputs(samples), with_entropy=True, critic=self.critic)

    def _old(self, samples: Sequence[Sample], output: ActionLogprobs, work: UpdateMeter) -> list[Tensor]:
        """Return old log-probabilities from a forward that no update preceded, and compare them with the sampler's."""
        rows = []
        for sample, row in zip(samples, output.logprobs.detach(), strict=True):
            logprobs = row[: sample.action_tokens]
            sampler = to_device(sample.tokens.sampler_logprobs, self.device)
            stored = sample.replayed and self.replayed_old_logprobs == "stored"
            rows.append(sampler if stored else logprobs)
            if not sample.replayed:
                work.note([sample], trainer=[logprobs], sampler=[sampler])
        return rows

    def _report(self, batch: RolloutBatch, work: UpdateMeter, seconds: float) -> None:
        work = work.over_ranks()
        metrics = work.compute() | {"time/update": seconds, "policy/version": float(self.policy_version)}
        metrics["train/learning_rate"] = self.learning_rate
        self.log_dict(metrics, on_step=False, on_epoch=True, batch_size=1)
        self.last_update = work.record(batch) if self.global_rank == 0 else None

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
        rate = PlannedRate(optimizer, warmup_steps=self.warmup_steps, decay_steps=self._decay_steps())
        return {"optimizer": optimizer, "lr_scheduler": rate}

    def _schedule(self, place: int) -> None:
        """Set the learning rate to that of a step of the iteration, by its place."""
        schedule = self.lr_schedulers()
        assert isinstance(schedule, PlannedRate), "configure_optimizers returns one schedule"
        schedule.move_to(self.policy_version * self.minibatches * self.epochs + place)

    def _decay_steps(self) -> int | None:
        """Return the optimizer steps of the run, None where the rate does not fall."""
        if not self.decay:
            return None
        iterations = self.trainer.max_epochs
        if iterations is None or iterations < 1:
            raise ConfigError(
                "module.decay lets the rate fall until the last iteration: set iterations, or decay=false"
            )
        return iterations * self.minibatches * self.epochs
