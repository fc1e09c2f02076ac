"""One update of a Qwen2.5-VL with random weights, our way or the plain one; `update_gpu.py` runs it in a process."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate as running_sums
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
import yaml
from gpu_session.screens import desktop
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from arpo.apps.plan.costs import backward_flops, forward_flops
from arpo.apps.plan.fake import WeightlessPolicy, stand_in
from arpo.apps.plan.longest import WorstCaseTrajectory
from arpo.apps.plan.update import attach, count, simulate
from arpo.methods.grpo import GRPO
from arpo.models.checkpoint import model_without_weights
from arpo.models.collate import TokenBatch
from arpo.models.lora import add_lora
from arpo.models.policy import ActionLogprobs, LoraSettings, Policy, checkpoint_blocks, pack_left
from arpo.models.vision.tower import normalized_films
from arpo.modules.grpo import GRPOModule, UpdateWork
from arpo.modules.minibatch import Minibatch, Sample
from arpo.modules.offload import OffloadedAdamW

GIB = 2**30
SCREEN = (1920, 1080)
MIN_PIXELS = 56 * 56
UNUSED = 399
"""Rows of the embedding beyond the tokenizer's words, which are never sampled."""
SPECIAL = 20
"""Ids below are special tokens of the stand-in's tokenizer."""
ADAPTERS = LoraSettings(rank=32, alpha=64.0)
CUDNN = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is measured, and of what."""

    way: str
    """`ours`; `compiled`: ours with compiled decoder layers; `plain`: transformers' own forward with every logit."""
    trained: str
    """`lora` or `all`."""
    tokens: int
    offload: str = "none"
    """`none`, `moments`, or `both`: activations too."""
    checkpointing: str = "full"
    """Of the blocks: `full`, or `selective`, which does not compute attention again."""
    kernel: str = "default"
    """Of attention: torch's own choice, or `cudnn` where it can."""
    micro_batches: int = 2
    """Sequences of an optimizer step."""
    updates: int = 2
    """Optimizer steps that are timed, after one that is not."""
    seed: int = 0
    dtype: str = "bfloat16"
    max_pixels: int = 14 * 14 * 4 * 16384
    """Of what the vision tower sees of a screenshot; this is Qwen2.5-VL's own limit, far above 1080p."""
    max_steps: int = 15
    response: int = 256
    """Sampled tokens of a step."""

    def policy(self) -> dict[str, Any]:
        """Return the arguments of the policy."""
        lora = ADAPTERS if self.trained == "lora" else None
        return {
            "dtype": self.dtype,
            "gradient_checkpointing": self.checkpointing if self.checkpointing == "selective" else True,
            "offload_activations": self.offload == "both",
            "train_vision": lora is None,
            "lora": lora,
        }

    def module(self, make: Any) -> GRPOModule:
        """Return the module that learns with a policy."""
        optimizer = torch.optim.AdamW if self.offload == "none" else OffloadedAdamW
        return GRPOModule(make, partial(optimizer, lr=1e-6), GRPO(), micro_batch_tokens=self.tokens)

    def longest(self, image_tokens: int) -> WorstCaseTrajectory:
        """Return the bounds of its sequences."""
        return WorstCaseTrajectory(self.tokens, self.max_steps, self.response, SCREEN, image_tokens)


class RandomPolicy(Policy):
    """A policy whose weights are not loaded: `fill` makes them up where they are to be."""

    def _load(self, dtype: torch.dtype, attention: str) -> Any:
        return model_without_weights(self.path, attention)


class PlainPolicy(RandomPolicy):
    """The same policy without what `Policy` adds to transformers: all logits exist, and windows are looped over."""

    def __init__(self, path: Path, **settings: Any) -> None:
        super().__init__(path, **settings)
        lora = settings["lora"]
        self.model = model_without_weights(path, "sdpa")
        self.model.requires_grad_(lora is None)
        if lora is not None:
            add_lora(self.model, self.family.lora_targets, lora.rank, lora.alpha)
        self.vision.requires_grad_(settings["train_vision"])
        self._set_formats()
        checkpoint_blocks(self.model, settings["gradient_checkpointing"])

    def action_logprobs(
        self,
        batch: TokenBatch,
        temperature: float = 1.0,
        *,
        with_entropy: bool = False,
        critic: torch.nn.Module | None = None,
    ) -> ActionLogprobs:
        batch = batch.to(self.device)
        mean, std = (numbers.to(self.device) for numbers in (self.images.mean, self.images.std))
        with self._format(), self._offload() if self._offload_activations else nullcontext():
            logits = self.model(
                input_ids=batch.input_ids,
                position_ids=batch.position_ids,
                pixel_values=normalized_films(batch.pixels, mean, std, self.images.frames),
                image_grid_thw=torch.tensor(batch.image_grid, device=self.device),
                use_cache=False,
            ).logits.float()
        logprobs = logits.index_fill_(2, self._forbidden, -torch.inf).div_(temperature).log_softmax(-1)
        chosen = logprobs[:, :-1].gather(-1, batch.input_ids[:, 1:, None]).squeeze(-1)[batch.action_mask[:, 1:]]
        return ActionLogprobs(pack_left(chosen, batch.packed_mask, batch.packed_places), batch.packed_mask, None)


class CompiledPolicy(RandomPolicy):
    """Our policy with compiled decoder layers.

    What checkpointing computes again is compiled too: the contexts of `selective` see no operation inside of a
    compiled graph, so checkpointing is inside of it. It is in the `__call__` of transformers' layers.
    """

    def __init__(self, path: Path, **settings: Any) -> None:
        super().__init__(path, **settings)
        layers = self.model.model.language_model.layers
        kind = type(layers[0])
        compiled = type(f"Compiled{kind.__name__}", (kind,), {"__call__": torch.compile(kind.__call__)})
        for layer in layers:
            layer.__class__ = compiled


WAYS: Mapping[str, type[Policy]] = {"ours": RandomPolicy, "compiled": CompiledPolicy, "plain": PlainPolicy}


def fill(policy: Policy, device: torch.device, seed: int) -> None:
    """Give every parameter random values on a device, by its name; those that are shared stay shared."""
    fresh: dict[nn.Parameter, nn.Parameter] = {}
    for path, module in policy.named_modules():
        for key, old in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if old not in fresh:
                value = _random(f"{path}.{key}".replace(".base_layer.", "."), old, device, seed)
                fresh[old] = nn.Parameter(value, requires_grad=old.requires_grad)
            module.register_parameter(key, fresh[old])
    rows = policy.model.config.text_config.vocab_size
    unused = torch.arange(rows - min(UNUSED, rows // 4), rows)
    policy.register_buffer("_forbidden", unused, persistent=False)
    policy.to(device)


def _random(name: str, like: Tensor, device: torch.device, seed: int) -> Tensor:
    if like.ndim == 1 or ".lora_B." in name:
        norm = like.ndim == 1 and name.endswith("weight")
        return torch.full(like.shape, 1.0 if norm else 0.0, dtype=like.dtype, device=device)
    generator = torch.Generator(device).manual_seed(seed ^ crc32(name.encode()))
    return torch.empty(like.shape, dtype=like.dtype, device=device).normal_(0.0, 0.02, generator=generator)


def sequences(setting: Setting, policy: Policy) -> Minibatch:
    """Return the sequences of an optimizer step: random text, and drawn desktops, each its own."""
    longest = setting.longest(policy.chat.image_tokens(*SCREEN))
    tokens = longest.tokens(policy.chat)
    words = policy.model.config.text_config.vocab_size - len(policy._forbidden)
    generator = torch.Generator().manual_seed(setting.seed)
    samples = []
    for number in range(setting.micro_batches):
        shots = dict(desktop(longest.steps * number + step, "windows") for step in range(longest.steps))
        text = torch.randint(SPECIAL, words, (setting.tokens,), generator=generator)
        ids = torch.where(tokens.image_mask, tokens.input_ids, text)
        own = replace(tokens, input_ids=ids, screenshots=tuple(shots))
        samples.append(Sample(own, shots, advantages=torch.ones(longest.action_tokens)))
    return Minibatch(tuple(samples), len(samples), len(samples) * longest.action_tokens, len(samples))


@contextmanager
def checkpoint(setting: Setting, architecture: str) -> Iterator[Path]:
    """Yield a directory that describes the model of an architecture, which is a file of YAML."""
    with stand_in(
        yaml.safe_load(Path(architecture).read_text(encoding="utf-8")), MIN_PIXELS, setting.max_pixels
    ) as path:
        yield path


def measure(setting: Setting, architecture: str, device: torch.device) -> dict[str, Any]:
    """Return the seconds of each update, what it had to compute, and the largest memory."""
    torch.manual_seed(setting.seed)
    with checkpoint(setting, architecture) as path:
        policy = WAYS[setting.way](path, **setting.policy())
        fill(policy, device, setting.seed)
        module = setting.module(lambda: policy)
        module.configure_model()
        module.to(device)
        attach(module, iterations=1)
        minibatch = sequences(setting, policy)
        first, seconds = updates(module, minibatch, setting, device)
        weights = sum(parameter.nbytes for parameter in module.parameters())
        longest = setting.longest(policy.chat.image_tokens(*SCREEN))
        flops = forward_flops(policy.model.config, count(policy), longest)
        backward = backward_flops(flops, count(policy))
        again = 3 * flops.attention  # by many counted as if nothing were masked: forward, and twice that backward
        policy.images.close()
    return {
        "seconds": seconds,
        "first_seconds": first["seconds"],
        "first_logprob": first["logprob"],
        "sampled_tokens": longest.action_tokens * setting.micro_batches,
        "pictures": longest.steps * setting.micro_batches,
        "flops": setting.micro_batches * (flops.forward + backward),
        "flops_unmasked": setting.micro_batches * (flops.forward + backward + again),
        **(memory(device) if first["bytes"] is None else {"allocated_gib": (weights + first["bytes"]) / GIB}),
    }


def updates(
    module: GRPOModule, minibatch: Minibatch, setting: Setting, device: torch.device
) -> tuple[dict[str, Any], list[float]]:
    """Take one update that nobody times, then those that count; return the first one's figures, and the seconds.

    On a CPU they are seconds of its cores, whatever else these do, and the first update is watched for memory, unless
    another profiler is at work: there is one at a time.
    """
    cpu = device.type == "cpu"
    clock = time.process_time if cpu else time.perf_counter
    watches = cpu and not torch.autograd._profiler_enabled()
    watched = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    logprobs: list[Tensor] = []
    inner = module.policy.action_logprobs

    def noted(*arguments: Any, **options: Any) -> ActionLogprobs:
        output = inner(*arguments, **options)
        logprobs.append(output.logprobs.detach().sum() / output.mask.sum())
        return output

    module.policy.action_logprobs = noted  # type: ignore[method-assign]
    seconds = []
    for number in range(1 + setting.updates):
        if device.type == "cuda" and number == 1:
            torch.cuda.reset_peak_memory_stats(device)
        finish(device)
        start = clock()
        # What transformers' forward gets is the pictures themselves.
        screenshots = {key: png for sample in minibatch.samples for key, png in sample.screenshots.items()}
        pictures = module._pictures(screenshots) if setting.way != "plain" else nullcontext()
        with attention(setting.kernel), pictures, watched if watches and number == 0 else nullcontext():
            module.update(UpdateWork([minibatch], screenshots), minibatch, None)
        finish(device)
        seconds.append(clock() - start)
    held = largest(watched) if watches else None
    return {"seconds": seconds[0], "logprob": logprobs[0].item(), "bytes": held}, seconds[1:]


def largest(profiler: profile) -> int:
    """Return the largest number of bytes that the allocator of a profiled CPU held above what it held before."""
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    in_order = sorted(events, key=lambda event: event.start_ns())
    return max(running_sums(event.nbytes() for event in in_order), default=0)


def attention(kernel: str) -> AbstractContextManager[Any]:
    """Choose the kernel of attention for a while."""
    return nullcontext() if kernel == "default" else sdpa_kernel(CUDNN, set_priority=True)


def finish(device: torch.device) -> None:
    """Wait until the device has computed everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory(device: torch.device) -> dict[str, float | None]:
    """Return the largest memory of the updates that count, in GiB."""
    if device.type != "cuda":
        return {"allocated_gib": None, "reserved_gib": None}
    return {
        "allocated_gib": torch.cuda.max_memory_allocated(device) / GIB,
        "reserved_gib": torch.cuda.max_memory_reserved(device) / GIB,
    }


def plan(setting: Setting, architecture: str) -> dict[str, Any]:
    """Return the memory that the plan computes for our way, without a GPU, in GiB."""
    with checkpoint(setting, architecture) as path:
        module = setting.module(partial(WeightlessPolicy, path, **setting.policy()))
        module.configure_model()
        longest = setting.longest(module.policy.chat.image_tokens(*SCREEN))
        found = simulate(module, longest, strategy="single", ranks=1)
    host = found.offloaded.optimizer + found.offloaded.activations
    parts = {category: round(size / GIB, 2) for category, size in found.peak.items()}
    return {"plan_gib": sum(found.peak.values()) / GIB, "plan_host_gib": host / GIB, "plan_parts": parts}


def answer(request: str) -> str:
    """Do what a request says, as JSON, and return the figures, as JSON; out of memory is a figure."""
    asked = json.loads(request)
    setting = Setting(**asked["setting"])
    if asked["plan"]:
        return json.dumps(plan(setting, asked["architecture"]))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return json.dumps(measure(setting, asked["architecture"], device))
    except torch.OutOfMemoryError as error:
        return json.dumps(
            {"error": "out of memory", "detail": ". ".join(str(error).split(". ")[:2]), **memory(device)}
        )
