"""Learning by a preference: the gradient of a loss that needs a whole batch's log-probabilities."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from inspect import Signature, signature
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from arpo.methods.preference import Preference
from arpo.models.policy import ActionLogprobs, Policy
from arpo.modules.base import MakeOptimizer
from arpo.modules.offline.base import OfflineModule, Sequences
from arpo.rollout.conversation import with_answers
from arpo.types import Exchange, Trajectory


class PreferenceModule(OfflineModule):
    """A policy that learns by a `Preference`, whose options are arguments of the module beside its own.

    The losses are not sums over tokens, so a micro-batch has no loss of its own. They depend on a trajectory by its
    log-ratio r: first all r of a batch are computed, without gradient; then the gradient of the loss is that of
    Σ (∂L/∂r) · log π(y|x), which any micro-batches add up to.

    Args:
        policy: See `PolicyModule`, as for the optimizer and the reference, the policy that the run starts from.
        options: Of the method, and of `OfflineModule`.
    """

    method: ClassVar[type[Preference]]

    def __init_subclass__(cls) -> None:
        """Show the options by their names in the signature, for the check of a configuration."""
        known = dict(signature(PreferenceModule).parameters)
        del known["options"]
        for constructor in (cls.method, OfflineModule):
            known = {**signature(constructor).parameters, **known}
        order = sorted(known.values(), key=lambda each: each.kind)
        cls.__signature__ = Signature(order)  # type: ignore[attr-defined]  # `inspect` looks for it
        cls.least_examples = cls.method.least_examples

    def __init__(
        self, policy: Callable[..., Policy], optimizer: MakeOptimizer, reference: Callable[..., Policy], **options: Any
    ) -> None:
        chosen = {each.name: options.pop(each.name) for each in fields(self.method) if each.name in options}
        super().__init__(policy, optimizer, reference=reference, **options)
        self.objective = self.method(**chosen)

    @override
    def training_step(self, batch: Sequence[Trajectory], batch_idx: int) -> None:
        data = Sequences.of(batch, self.policy.chat)
        log_ratios = self.log_ratios(data).requires_grad_()
        trajectories = self.objective.extra_trajectories(batch, self._answered)
        extra = self.log_ratios(Sequences.of(trajectories, self.policy.chat)) if trajectories else None
        loss, metrics = self.objective.loss(log_ratios, batch, extra)
        (weights,) = torch.autograd.grad(loss, log_ratios)
        by_sequence = weights[data.owners.to(self.device)]

        def weighted(output: ActionLogprobs, chunk: Sequence[int]) -> Tensor:
            return torch.dot(by_sequence[chunk], output.logprobs.sum(1))  # 0 on padding

        self.descend(data, weighted)
        self.finish({**metrics, "train/loss": loss.item()}, len(batch))

    def _answered(self, trajectory: Trajectory, answers: Sequence[Exchange]) -> Trajectory:
        first, window = trajectory.exchanges[0].added_ids, trajectory.image_window
        return with_answers(trajectory, answers, self.policy.chat, first_prompt=first, image_window=window)

    def log_ratios(self, data: Sequences) -> Float[Tensor, " trajectories"]:
        """Return log π(y|x) - log π_ref(y|x) of each trajectory, summed over its tokens, without gradient."""
        return self.log_likelihoods(data, self.action_logprobs) - self.log_likelihoods(data, self.reference_logprobs)
