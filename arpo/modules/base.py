"""The base of every module: a policy, its optimizer steps and their rate, and its face to callbacks."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import lightning as L
import torch
from jaxtyping import Float
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from typing_extensions import override

from arpo.algorithms.rewards import group_rewards
from arpo.bounds import AtLeastOne, Positive, checked
from arpo.errors import ArpoError, ConfigError
from arpo.models.collate import collate
from arpo.models.placement import full
from arpo.models.policy import ActionLogprobs, Policy, trained_names
from arpo.models.tokenization import TokenizedTrajectory
from arpo.rollout.hooks import engine_weights, runtime_of
from arpo.rollout.storage import UpdateRecord
from arpo.types import Group

log = logging.getLogger(__name__)

NamedParameter = tuple[str, torch.nn.Parameter]
MakeOptimizer = Callable[[Iterator[NamedParameter]], torch.optim.Optimizer]
"""Builds an optimizer from parameters and their names, by which it may treat embeddings apart."""

MAX_BAD_GRADIENTS = 3
"""Updates in a row whose gradient is not finite before the run stops."""


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """Return the loss that the closure of an optimizer's step computes, with gradients; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def rate_factor(step: int, *, warmup_steps: int, decay_steps: int | None = None) -> float:
    """Return the learning-rate multiplier of optimizer step `step` (from 0): linear to 1, then linear towards 0.

    The last of `decay_steps` steps still has a rate, those after it have none; None keeps the full rate.
    """
    risen = min(1.0, (step + 1) / (warmup_steps + 1))
    return risen if decay_steps is None else risen * max(0.0, 1 - step / decay_steps)


class PlannedRate(LambdaLR):
    """The learning rate by the place of a step in the plan of the run, whether those before it were taken or not."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, warmup_steps: int, decay_steps: int | None) -> None:
        super().__init__(optimizer, partial(rate_factor, warmup_steps=warmup_steps, decay_steps=decay_steps))

    def move_to(self, step: int) -> None:
        """Set the rate to that of a step of the plan, from 0."""
        self.last_epoch = step
        self._last_lr = [base * factor(step) for base, factor in zip(self.base_lrs, self.lr_lambdas, strict=True)]
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate


@checked
class PolicyModule(L.LightningModule):
    """A policy that is built once, forwarded in micro-batches, and counted by its updates.

    Args:
        policy: Builds the policy; called once, when Lightning asks for the model.
        optimizer: Builds the optimizer from the trainable parameters and their names.
        micro_batch_tokens: Padded tokens of one forward; bounds memory, changes no result.
        max_grad_norm: Gradient norm above which the gradient is scaled down.
        reference: Builds the frozen policy that this one is compared with, the one it started from. With LoRA nothing
            is built: the reference is the policy without its adapters.
        teacher: Builds a frozen policy of the same family and vocabulary, which this one learns from.
    """

    policy: Policy
    temperature: float = 1.0
    """The temperature at which the tokens were sampled: log-probabilities are of that distribution."""
    learns_from: ClassVar[str | None] = None
    """Rollouts, or the function of `arpo.datamodules.examples` that makes its examples; None where either may do."""
    least_examples: int = 1
    """The fewest examples that it can learn from offline, equal ones counted once."""
    measures_after: bool = False
    """Whether the next update ends with a forward over its samples, for its record alone."""

    def __init__(
        self,
        policy: Callable[..., Policy],
        optimizer: MakeOptimizer,
        *,
        micro_batch_tokens: AtLeastOne,
        max_grad_norm: Positive,
        reference: Callable[..., Policy] | None = None,
        teacher: Callable[..., Policy] | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.make_policy = policy
        self.make_optimizer = optimizer
        self.make_reference = reference
        self.make_teacher = teacher
        self.references: list[Policy] = []
        self.teachers: list[Policy] = []
        """One of each, where there is one; in a list, because their weights belong in no checkpoint."""
        self.micro_batch_tokens = micro_batch_tokens
        self.max_grad_norm = max_grad_norm
        self.policy_version = 0
        self.last_update: UpdateRecord | None = None
        """The record of the last update from rollouts, on rank 0."""
        self._bad_gradients = 0

    @classmethod
    def of(cls, module: L.LightningModule) -> "PolicyModule":
        """Return a trainer's module under its own type, for callbacks and data modules."""
        if not isinstance(module, cls):
            raise ConfigError(f"expected a module that trains a policy, a PolicyModule, got {type(module).__name__}")
        return module

    def rewards(self, group: Group) -> Float[Tensor, " group"]:
        """Return the reward of each trajectory of a group in the updates of the run, for metrics."""
        return group_rewards(group, format_weight=1.0)

    def trainable_parameters(self) -> list[torch.nn.Parameter]:
        """Return the parameters that an update changes."""
        return [parameter for _, parameter in self.named_trainable_parameters()]

    def named_trainable_parameters(self) -> Iterator[NamedParameter]:
        """Yield the names and parameters that an update changes."""
        return ((name, parameter) for name, parameter in self.policy.named_parameters() if parameter.requires_grad)

    def action_logprobs(
        self,
        tokenized: Sequence[TokenizedTrajectory],
        screenshots: Mapping[str, bytes],
        *,
        policy: Policy | None = None,
        with_entropy: bool = False,
        critic: torch.nn.Module | None = None,
    ) -> ActionLogprobs:
        """Return the log-probabilities of the sampled tokens of some sequences, a row each, from one forward.

        They are those of the module's own policy by default. The screenshots are PNG bytes by SHA-256, at least those
        that the sequences show.
        """
        policy = policy or self.policy
        # Of one image processor, so that a reference finds decoded what the policy has seen.
        batch = collate(tokenized, screenshots, self.policy.images, policy.features).to(self.device)
        return policy.action_logprobs(batch, temperature=self.temperature, with_entropy=with_entropy, critic=critic)

    @torch.no_grad()
    def reference_logprobs(
        self, tokenized: Sequence[TokenizedTrajectory], screenshots: Mapping[str, bytes]
    ) -> ActionLogprobs:
        """Return the log-probabilities under the reference, as `action_logprobs` does."""
        with self.policy.without_adapters():
            return self.action_logprobs(tokenized, screenshots, policy=self.references[0] if self.references else None)

    @property
    def frozen(self) -> list[Policy]:
        """The policies beside the one that is trained."""
        return [*self.references, *self.teachers]

    def clipped_together(self) -> list[list[torch.nn.Parameter]]:
        """Return the parameters that an optimizer step changes, in groups whose gradients have one norm."""
        return [self.trainable_parameters()]

    def take_step(self) -> float | None:
        """Take one optimizer step with the gradient that was accumulated, and clear it; the schedule stays.

        It returns the norm of the policy's gradient before it was clipped, None where one was not finite and the step
        was left out.
        """
        norms: list[float] = []
        for parameters in self.clipped_together():
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            total = torch.nn.utils.get_total_norm(gradients)
            if self.device_mesh is not None:  # gradients are sharded, and so is their norm
                total = full(total)
            torch.nn.utils.clip_grads_with_norm_(parameters, self.max_grad_norm, total)
            norms.append(total.item())
        accepted = self._accepts(sum(norms))  # finite where all are
        if accepted:
            self._optimizer.step()
        self._optimizer.zero_grad()
        return norms[0] if accepted else None

    @property
    def _optimizer(self) -> LightningOptimizer:
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer), "configure_optimizers returns one optimizer"
        return optimizer

    def _accepts(self, norm: float) -> bool:
        """Return whether a gradient is finite; refuse several in a row that are not, of a run that diverged."""
        if math.isfinite(norm):
            self._bad_gradients = 0
            return True
        self._bad_gradients += 1
        log.warning("gradient norm is %s: this update is left out", norm)
        if self._bad_gradients >= MAX_BAD_GRADIENTS:
            raise ArpoError(
                f"the gradient was not finite {MAX_BAD_GRADIENTS} times in a row: training has diverged; "
                "resume from an earlier checkpoint with a smaller learning rate"
            )
        return False

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next optimizer step."""
        return float(self._optimizer.param_groups[0]["lr"])

    @override
    def configure_model(self) -> None:
        if "policy" not in self._modules:
            # Checkpointing of activations works in training mode only.
            self.policy = self._build_policy().train()
        if self.make_reference is not None and not self.policy.has_adapters and not self.references:
            self.references = [self.build(self.make_reference).freeze()]
        if self.make_teacher is not None and not self.teachers:
            self.teachers = [self.build(self.make_teacher).freeze()]
            self.policy.chat.check_teacher(self.teachers[0].chat)

    def _build_policy(self) -> Policy:
        """Build the policy that is trained, of an engine's weights where one of this process has them to share."""
        weights = {} if self._trainer is None else engine_weights(self._trainer)
        if not weights:
            return self.build(self.make_policy)
        runtime = runtime_of(self.trainer)
        in_turn = runtime.settings.max_policy_lag == 0
        policy = self.build(partial(self.make_policy, shared=weights, share_trained=in_turn))
        if policy.shares_trained:  # a checkpoint that is resumed changes them before the first update
            runtime.run(runtime.engine.sleep())
        own, whole = (sum(each.nbytes for each in part) / 2**20 for part in (policy.shared, policy.parameters()))
        log.info("one copy for the policy and the engine: %.1f MiB of the policy's %.1f MiB of weights", own, whole)
        return policy

    @override
    def on_fit_start(self) -> None:
        for policy in self.frozen:
            policy.to(self.device)
        if "policy" in self._modules and self.policy.shared:
            held = {weight.data_ptr() for weight in engine_weights(self.trainer).values()}
            apart = [each for each in self.policy.shared if each.data_ptr() not in held]
            if apart:
                log.warning(
                    "%d weights that the policy shared with its engine are in memory twice, because this fit has "
                    "another engine: to save the memory, start it in a process of its own",
                    len(apart),
                )

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
