"""The base of every module: a policy, its optimizer step, and its face to callbacks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import lightning as L
import torch
from jaxtyping import Float
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor
from typing_extensions import override

from arpo.algorithms.rewards import group_rewards
from arpo.errors import ConfigError, check_at_least, check_positive
from arpo.models.collate import collate, micro_batches
from arpo.models.names import trained_names
from arpo.models.policy import ActionLogprobs, Policy
from arpo.models.sharding import full
from arpo.models.tokenization import TokenizedTrajectory, tokenize
from arpo.modules.optimizer import GradientGuard, MakeOptimizer, NamedParameter
from arpo.rollout.updates import UpdateRecord
from arpo.types import Group, Trajectory


class PolicyModule(L.LightningModule):
    """A policy that is built once, forwarded in micro-batches, and counted by its updates.

    Args:
        policy: Builds the policy; called once, when Lightning asks for the model.
        optimizer: Builds the optimizer from the trainable parameters and their names.
        micro_batch_tokens: Padded tokens of one forward; bounds memory, changes no result.
        max_grad_norm: Gradient norm above which the gradient is scaled down.
        reference: Builds the frozen policy that this one is compared with, the one it started from. With LoRA nothing
            is built: the reference is the policy without its adapters. None where nothing is compared.
        teacher: Builds a frozen policy of the same family and vocabulary, which this one learns from, or None.
    """

    policy: Policy
    temperature: float = 1.0
    """The temperature at which the tokens were sampled: log-probabilities are of that distribution."""
    least_examples: int = 1
    """The fewest examples that it can learn from offline, counting once what says the same."""
    measures_after: bool = False
    """Whether the next update ends with a forward over what it learned from, for its record and for nothing else."""

    def __init__(
        self,
        policy: Callable[..., Policy],
        optimizer: MakeOptimizer,
        *,
        micro_batch_tokens: int,
        max_grad_norm: float,
        reference: Callable[..., Policy] | None = None,
        teacher: Callable[..., Policy] | None = None,
    ) -> None:
        super().__init__()
        check_at_least(1, micro_batch_tokens=micro_batch_tokens)
        check_positive(max_grad_norm=max_grad_norm)
        self.automatic_optimization = False
        self.make_policy = policy
        self.make_optimizer = optimizer
        self.make_reference = reference
        self.references: list[Policy] = []
        """The reference policy, where there is one; in a list, because its weights belong in no checkpoint."""
        self.make_teacher = teacher
        self.teachers: list[Policy] = []
        """The teacher, likewise."""
        self.micro_batch_tokens = micro_batch_tokens
        self.max_grad_norm = max_grad_norm
        self.policy_version = 0
        self.last_update: UpdateRecord | None = None
        """The record of the last update from rollouts, on rank 0."""
        self._guard = GradientGuard()

    @classmethod
    def of(cls, module: L.LightningModule) -> "PolicyModule":
        """Return a trainer's module under its own type, for callbacks and data modules."""
        if not isinstance(module, cls):
            raise ConfigError(f"expected a module that trains a policy, a PolicyModule, got {type(module).__name__}")
        return module

    def rewards(self, group: Group) -> Float[Tensor, " group"]:
        """Return what each trajectory of a group earns in the updates of the run, for metrics."""
        return group_rewards(group, format_weight=1.0)

    def trainable_parameters(self) -> list[torch.nn.Parameter]:
        """Return the parameters that an update changes."""
        return [parameter for _, parameter in self.named_trainable_parameters()]

    def named_trainable_parameters(self) -> Iterator[NamedParameter]:
        """Yield the names and parameters that an update changes."""
        return ((name, parameter) for name, parameter in self.policy.named_parameters() if parameter.requires_grad)

    @torch.no_grad()
    def sampled_logprobs(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        """Return the trainer's log-probabilities of each trajectory's sampled tokens, to compare with the engine's."""
        sequences = [tokenize(trajectory, self.policy.chat) for trajectory in trajectories]
        tokenized = list(chain.from_iterable(sequences))
        screenshots = {key: png for trajectory in trajectories for key, png in trajectory.screenshots.items()}
        found: list[list[float]] = [[]] * len(tokenized)
        for chunk in micro_batches([len(tokens) for tokens in tokenized], self.micro_batch_tokens):
            output = self.action_logprobs([tokenized[position] for position in chunk], screenshots)
            for position, logprobs, mask in zip(chunk, output.logprobs, output.mask, strict=True):
                found[position] = logprobs[mask].tolist()
        rest = iter(found)
        return [list(chain.from_iterable(islice(rest, len(parts)))) for parts in sequences]

    def action_logprobs(
        self,
        tokenized: Sequence[TokenizedTrajectory],
        screenshots: Mapping[str, bytes],
        *,
        policy: Policy | None = None,
        with_entropy: bool = False,
        critic: torch.nn.Module | None = None,
    ) -> ActionLogprobs:
        """Return the log-probabilities of the sampled tokens of some sequences, from one forward.

        Args:
            tokenized: The sequences, one row each.
            screenshots: PNG bytes by SHA-256, at least those that the sequences show.
            policy: The policy to ask; the module's own by default.
            with_entropy: Whether to compute entropies too.
            critic: What gives the tokens values; None gives none.
        """
        policy = policy or self.policy
        # Of one image processor, so that a reference finds decoded what the policy has seen.
        batch = collate(tokenized, screenshots, self.policy.images, policy.features).to(self.device)
        return policy.action_logprobs(batch, temperature=self.temperature, with_entropy=with_entropy, critic=critic)

    @torch.no_grad()
    def reference_logprobs(
        self, tokenized: Sequence[TokenizedTrajectory], screenshots: Mapping[str, bytes]
    ) -> ActionLogprobs:
        """Return what `action_logprobs` returns of the reference."""
        with self.policy.without_adapters():
            return self.action_logprobs(tokenized, screenshots, policy=self.references[0] if self.references else None)

    @property
    def frozen(self) -> list[Policy]:
        """The policies beside the one that is trained."""
        return [*self.references, *self.teachers]

    def clipped_together(self) -> list[list[torch.nn.Parameter]]:
        """Return what an optimizer step changes, in groups of parameters whose gradients have one norm."""
        return [self.trainable_parameters()]

    def take_step(self) -> float | None:
        """Take one optimizer step with the gradient that was accumulated, and clear it; the schedule stays.

        Returns:
            The norm of the policy's gradient before it was clipped, or None when a gradient was not finite and the
            step was left out.
        """
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer), "configure_optimizers returns one optimizer"
        norms = [self._clip(parameters) for parameters in self.clipped_together()]
        accepted = self._guard.accepts(sum(norms))  # finite where all are
        if accepted:
            optimizer.step()
        optimizer.zero_grad()
        return norms[0] if accepted else None

    def _clip(self, parameters: list[torch.nn.Parameter]) -> float:
        """Bound the gradient of some parameters, and return the norm that it had."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        total = full(torch.nn.utils.get_total_norm(gradients))  # over all ranks, where they are sharded
        torch.nn.utils.clip_grads_with_norm_(parameters, self.max_grad_norm, total)
        return total.item()

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next optimizer step."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer), "configure_optimizers returns one optimizer"
        return float(optimizer.param_groups[0]["lr"])

    @override
    def configure_model(self) -> None:
        if "policy" not in self._modules:
            # Checkpointing of activations works in training mode only.
            self.policy = self.build(self.make_policy).train()
        if self.make_reference is not None and not self.policy.has_adapters and not self.references:
            self.references = [self.build(self.make_reference).freeze()]
        if self.make_teacher is not None and not self.teachers:
            self.teachers = [self.build(self.make_teacher).freeze()]
            self.policy.chat.check_teacher(self.teachers[0].chat)

    @override
    def on_fit_start(self) -> None:
        for policy in self.frozen:
            policy.to(self.device)

    def build(self, make: Callable[..., Policy]) -> Policy:
        """Build a policy, in shards where the strategy has laid out a mesh of ranks."""
        mesh = self.device_mesh
        return make() if mesh is None else make(mesh=mesh["data_parallel"])

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["policy_version"] = self.policy_version
        trained = trained_names(self)
        checkpoint["state_dict"] = {name: value for name, value in checkpoint["state_dict"].items() if name in trained}

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.policy_version = checkpoint["policy_version"]
        trained = trained_names(self)
        checkpoint["state_dict"] |= {name: value for name, value in self.state_dict().items() if name not in trained}
