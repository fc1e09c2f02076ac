"""One update of a training process, run without its numbers, and the memory that it takes."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain

import lightning as L
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from transformers import PreTrainedConfig

from arpo.apps.plan.costs import Offloaded, Weights
from arpo.apps.plan.fake import fake_floats, fake_ranks
from arpo.apps.plan.hardware import Strategy
from arpo.apps.plan.longest import BlankScreens, WorstCaseTrajectory
from arpo.apps.plan.tracker import Category, MemoryTracker
from arpo.models.placement import shard
from arpo.models.policy import Policy
from arpo.modules.base import PolicyModule
from arpo.modules.grpo import GRPOModule, UpdateWork
from arpo.modules.offline.base import OfflineModule, Sequences
from arpo.modules.offload import OffloadedAdamW


@dataclass(frozen=True, slots=True)
class Simulated:
    """The figures of one training GPU."""

    peak: Counter[Category]
    """Bytes by category when it holds most."""
    resident: float
    """Bytes that stay between updates: parameters and the optimizer's state."""
    offloaded: Offloaded
    weights: Weights
    shape: PreTrainedConfig
    policy: Policy
    """That of the update, of fake tensors."""


def simulate(
    module: PolicyModule,
    longest: WorstCaseTrajectory,
    *,
    strategy: Strategy,
    ranks: int,
    iterations: int = 1,
    foreach: bool | None = True,
    buckets: bool = True,
) -> Simulated:
    """Return the memory that the largest update takes on one training GPU.

    It runs the code of the module itself, built with a `WeightlessPolicy`, for one micro-batch of the longest
    trajectories, beginning with what the micro-batches and updates before it leave: gradients and the optimizer's
    moments. The optimizer steps for all parameters at once (`foreach`), as on GPUs; `buckets` are those of DDP.
    """
    module.configure_model()
    policies = [module.policy, *module.frozen]
    critics = [module.critic] if isinstance(module, GRPOModule) and module.critic is not None else []
    with fake_floats(), fake_ranks(ranks) if strategy == "fsdp" else nullcontext():
        for policy in policies:
            policy.images = BlankScreens(policy.images, longest.screen)
            materialize(policy)
            if strategy == "fsdp":
                mesh = init_device_mesh("cpu", (ranks,))  # as `Policy` itself does when it has a mesh
                blocks = policy.family.blocks(policy.model)
                shard(policy, blocks, mesh, policy.dtype, lambda _, size: torch.empty(size))
        weights, shape = count(module.policy), module.policy.model.config
        attach(module, iterations)
        (optimizer,) = module.trainer.optimizers
        if isinstance(optimizer, OffloadedAdamW):
            optimizer.host = torch.device("meta")
        with MemoryTracker(shape.text_config.vocab_size) as tracker:
            for each in (*policies, *critics):
                tracker.mark([*each.parameters(), *each.buffers()], "parameters")
            if strategy == "ddp" and buckets:
                bucket = torch.empty(weights.trained)
                tracker.mark([bucket], "gradients")
            step(module, tracker, foreach)
            resident, moments = tracker.now["parameters"] + tracker.now["optimizer"], tracker.now["host"]
            accumulate(module, tracker, longest)
    offloaded = Offloaded(moments, tracker.host_peak - moments)
    return Simulated(tracker.peak, resident, offloaded, weights, shape, module.policy)


def count(policy: Policy) -> Weights:
    """Return the number of parameters of a policy by the part that they belong to, those of other ranks included."""

    def numbers(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    return Weights(
        total=numbers(policy.model),
        trained=sum(parameter.numel() for parameter in trained),
        language=numbers(policy.model.get_decoder().layers),
        head=numbers(policy.model.lm_head),
        vision=numbers(policy.vision),
        train_vision=next(policy.vision.parameters()).requires_grad,
        lora=policy.has_adapters,
    )


def with_shared(weights: Weights, policy: Policy, engine: torch.dtype, *, in_turn: bool) -> Weights:
    """Return the weights of a policy with those that are an engine's too, which holds them in a number format.

    Of what is trained there is one copy where rollouts and updates go in turn; the adapters of LoRA are no weights.
    """
    trained = in_turn and not weights.lora
    all_of_it = list(policy.model.parameters())
    shared = [each for each in all_of_it if each.dtype == engine and (trained or not each.requires_grad)]
    size = sum(parameter.nbytes for parameter in shared)
    return replace(weights, shared_bytes=size, moves=len(shared) < len(all_of_it))


def materialize(policy: nn.Module) -> None:
    """Allocate every parameter; its memory is fake as all floating-point numbers here; shared ones stay shared."""
    fresh: dict[nn.Parameter, nn.Parameter] = {}
    for module in policy.modules():
        for name, old in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if old not in fresh:
                fresh[old] = nn.Parameter(torch.empty(old.shape, dtype=old.dtype), requires_grad=old.requires_grad)
            module.register_parameter(name, fresh[old])


def attach(module: PolicyModule, iterations: int) -> None:
    """Attach the trainer that a module asks for its optimizer, and for the length of the run."""
    trainer = L.Trainer(
        max_epochs=iterations,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.strategy.connect(module)
    module.trainer = trainer
    trainer.strategy.setup_optimizers(trainer)


def step(module: PolicyModule, tracker: MemoryTracker, foreach: bool | None) -> None:
    """Take the first optimizer step: it makes the moments, and takes what every later one takes."""
    (optimizer,) = module.trainer.optimizers
    for group in optimizer.param_groups:
        group["foreach"] = foreach
    fill_gradients(module, tracker)
    module.take_step()
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    tracker.mark(states, "optimizer")


def accumulate(module: PolicyModule, tracker: MemoryTracker, longest: WorstCaseTrajectory) -> None:
    """Add the gradient of one micro-batch to that of another one."""
    fill_gradients(module, tracker)
    minibatch = longest.minibatch(module.policy.chat, module.micro_batch_tokens)
    screenshots = {key: png for sample in minibatch.samples for key, png in sample.screenshots.items()}
    if isinstance(module, GRPOModule):
        samples = [
            replace(
                sample,
                returns=None if module.critic is None else torch.ones(sample.action_tokens),
                teacher=torch.ones(sample.action_tokens) if module.teachers else None,
            )
            for sample in minibatch.samples
        ]
        module._accumulate(UpdateWork([minibatch], screenshots), minibatch, samples, None)
    elif isinstance(module, OfflineModule):
        tokens = tuple(sample.tokens for sample in minibatch.samples)
        data = Sequences(tokens, torch.arange(len(tokens)), screenshots, len(tokens))
        module.descend(data, lambda output, _: -output.logprobs.sum())  # the peak of every offline loss


def fill_gradients(module: PolicyModule, tracker: MemoryTracker) -> None:
    """Fill in the gradients that earlier micro-batches leave."""
    for parameter in chain.from_iterable(module.clipped_together()):
        parameter.grad = torch.zeros_like(parameter)
        tracker.mark([parameter.grad], "gradients")
