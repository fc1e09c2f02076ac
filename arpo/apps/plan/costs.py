"""The sums of a plan that need no simulation: time, links, the engine's memory, host and disk."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from transformers import PreTrainedConfig

from arpo.apps.plan.hardware import GIB, Gpu, HostSpeeds, Layout
from arpo.apps.plan.longest import WorstCaseTrajectory
from arpo.apps.plan.tracker import Category
from arpo.bounds import Positive, checked
from arpo.models.family import family_named
from arpo.modules.grpo import MOST_FEATURE_BYTES
from arpo.rollout.storage import NUMBERS

BFLOAT16 = 2
FLOAT32 = 4
MOMENTS = 2 * FLOAT32
"""Bytes that AdamW keeps for a parameter."""
PROCESS_GIB = 3.0
"""Host memory of a training process before it has a model: libraries, and the GPU's driver."""
TOKEN_BYTES = 64
"""Host memory of a sampled token in a record: an id and a log-probability as Python keeps them."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The parameters of a policy, counted."""

    total: int
    trained: int
    language: int
    """Of the language model's blocks."""
    head: int
    """Of the output layer."""
    vision: int
    train_vision: bool
    lora: bool
    shared_bytes: int = 0
    """Of those that an engine of the same process has too, in the same memory."""
    moves: bool = True
    """Whether a sync sends anything: not where all that is trained is the engine's own memory."""


@dataclass(frozen=True, slots=True)
class Offloaded:
    """The bytes that a training process keeps in the host's memory and brings to its GPU when it needs them."""

    optimizer: float = 0
    """Moments, to the GPU and back in each optimizer step."""
    activations: float = 0
    """Inputs of blocks, to the host and back in each micro-batch."""


@dataclass(frozen=True, slots=True)
class Work:
    """An iteration, in trajectories as long as they can be."""

    trajectories: int
    minibatches: int
    """Optimizer steps of one iteration."""
    epochs: int
    iterations: int
    reference: bool
    """Whether a reference policy or a teacher is asked too."""
    environments: int
    """Episodes that run at once."""
    kept_steps: float | None = None
    """Share of the steps that are trained, where they are chosen by entropy; no minibatch is updated before."""
    scores: bool = False
    """Whether a critic or a teacher is asked about every step; no minibatch is updated before."""
    passes_before: float | None = None
    """Forwards of the policy for each trajectory of stored data before an update; None of rollouts."""
    fleet: bool = False
    """Whether engines read weights from Ray's object store."""
    sleeps: bool = False
    recorded: bool = True
    """Whether `UpdateLog` writes down what each update did."""


@dataclass(frozen=True, slots=True)
class Case:
    """A run as its costs see it."""

    shape: PreTrainedConfig
    weights: Weights
    longest: WorstCaseTrajectory
    work: Work
    layout: Layout
    gpu: Gpu

    @property
    def in_a_row(self) -> int:
        """Sequences of a minibatch that the busiest rank gets."""
        sequences = self.work.trajectories * len(self.longest.lengths)
        return ceil(sequences / self.work.minibatches / self.layout.trainers)

    @property
    def trained_share(self) -> float:
        """The share of the sequences of a trajectory that are trained."""
        kept = self.work.kept_steps
        return 1.0 if kept is None or self.longest.image_window is None else kept

    @property
    def sync_bytes(self) -> int:
        """Bytes of one weight sync, in bfloat16: all weights, or the adapters; none where all weights are shared."""
        if not self.weights.moves:
            return 0
        return (self.weights.trained if self.weights.lora else self.weights.total) * BFLOAT16

    @property
    def asleep_bytes(self) -> int:
        """Bytes that an engine keeps on the host while it sleeps: beside adapters its base, which no update brings."""
        return self.weights.total * BFLOAT16 if self.work.sleeps and self.weights.lora else 0


@dataclass(frozen=True, slots=True)
class Flops:
    """The floating-point operations of one forward of a trajectory, over all of its training sequences."""

    language: float
    """Of the language model, its attention left out: two for each parameter and token."""
    attention: float
    """Of its causal attention: 2 · tokens² · width in each layer, half of two products of 2 · tokens² · width each."""
    vision: float
    """Of the vision tower, whose pictures have `spatial_merge_size²` patches for each of their tokens."""

    @property
    def forward(self) -> float:
        """All of them."""
        return self.language + self.attention + self.vision


def forward_flops(shape: PreTrainedConfig, weights: Weights, longest: WorstCaseTrajectory) -> Flops:
    """Return the floating-point operations of one forward of the longest trajectory."""
    text, vision = shape.text_config, shape.vision_config
    language = 2.0 * weights.language * sum(longest.lengths) + 2.0 * weights.head * longest.sampled_tokens
    width = text.num_attention_heads * head_size(text)
    family = family_named(shape.model_type)
    attention = 2.0 * sum(length**2 for length in longest.lengths) * width * family.attention_layers(shape)
    patches = longest.image_tokens * vision.spatial_merge_size**2
    whole = family.picture_layers(shape)
    seen = 2.0 * weights.vision * patches + 4.0 * patches**2 * vision.hidden_size * whole
    return Flops(language, attention, seen * sum(longest.screenshots))


def backward_flops(flops: Flops, weights: Weights) -> float:
    """Return the floating-point operations of the backward of a forward.

    It costs two forwards: the gradients of the inputs, and those of the weights. Frozen weights need none of the
    second kind, but both inputs of a product in attention need theirs; where all is frozen, as in a vision tower that
    is not trained, there is no backward.
    """
    language = flops.language if weights.lora else 2 * flops.language
    return language + 2 * flops.attention + (2 * flops.vision if weights.train_vision else 0.0)


def update_flops(case: Case) -> float:
    """Return the operations of one trajectory in the updates of one iteration, without what checkpointing repeats."""
    work, flops = case.work, forward_flops(case.shape, case.weights, case.longest)
    # Old log-probabilities: once a trajectory, and of a single epoch the first minibatch needs none.
    all_before = work.scores or work.kept_steps is not None or work.epochs > 1
    online = 1.0 if all_before else (work.minibatches - 1) / work.minibatches
    before = online if work.passes_before is None else work.passes_before
    step = (2 if work.reference else 1) * flops.forward + backward_flops(flops, case.weights)
    return before * flops.forward + work.epochs * case.trained_share * step


def selective_mfu(mfu: float, case: Case) -> float:
    """Return the MFU of updates with selective checkpointing, from that of the same updates with full checkpointing.

    The time gets shorter by the share of attention that is not repeated, as if all operations took equally long.
    """
    flops, needed = forward_flops(case.shape, case.weights, case.longest), update_flops(case)
    blocks = flops.language + flops.attention + (flops.vision if case.weights.train_vision else 0.0)
    again = case.work.epochs * case.trained_share
    return mfu * (needed + again * blocks) / (needed + again * (blocks - flops.attention))


@checked
def update_seconds(flops: float, case: Case, mfu: Positive) -> float:
    """Return the seconds of the updates of an iteration: a rank computes whole sequences, one after the other."""
    sequence = flops / len(case.longest.lengths)
    return sequence * case.in_a_row * case.work.minibatches / (case.gpu.bf16_tflops * 1e12 * mfu)


def offload_seconds(offloaded: Offloaded, case: Case) -> float:
    """Return the seconds in which the updates of one iteration copy between GPU and host and compute nothing."""
    moved = offloaded.optimizer + case.in_a_row * offloaded.activations
    return case.work.epochs * case.work.minibatches * 2 * moved / (case.gpu.host_gb_s * 1e9)


def sync_seconds(case: Case, speeds: HostSpeeds) -> dict[str, float]:
    """Return the seconds of each leg of a sync, one after the other; all engines of a node read at once."""
    layout, gpu = case.layout, case.gpu
    link = gpu.network_gb_s if layout.nodes > 1 else gpu.peer_gb_s
    legs = {"gathered from shards": link if layout.strategy == "fsdp" and layout.trainers > 1 else 0.0}
    if case.work.fleet:
        legs |= {
            "to the host": gpu.host_gb_s,
            "into Ray's object store": speeds.store,
            "to the other nodes": speeds.nodes if layout.nodes > 1 else 0.0,
            "to the engines": speeds.pageable,
        }
    else:  # trainer and engine share a process, and its GPU
        legs["to the engine"] = gpu.peer_gb_s
    return {leg: case.sync_bytes / (speed * 1e9) for leg, speed in legs.items() if speed}


def sleep_seconds(case: Case, speeds: HostSpeeds) -> float:
    """Return the seconds in which engines go to sleep and wake in an iteration, each GPU with its part."""
    kept = case.asleep_bytes / case.layout.gpus_of_engine
    return kept / (speeds.sleep * 1e9) + kept / (speeds.wake * 1e9)


def cache_bytes(peak: Mapping[Category, float], share: float) -> float:
    """Return the bytes that PyTorch's allocator keeps of tensors that are gone, a share of those that come and go."""
    return share * (peak["activations"] + peak["temporaries"] + peak["logits"])


def kv_bytes(shape: PreTrainedConfig) -> int:
    """Return the bytes of keys and values of one token in bfloat16."""
    text = shape.text_config
    layers = family_named(shape.model_type).attention_layers(shape)
    return int(2 * layers * text.num_key_value_heads * head_size(text) * BFLOAT16)


def head_size(text: PreTrainedConfig) -> int:
    """Return the numbers of one attention head: families give it, or divide the hidden size among the heads."""
    return int(text.to_dict().get("head_dim") or text.hidden_size // text.num_attention_heads)


@dataclass(frozen=True, slots=True)
class Serving:
    """The memory of a GPU while it serves."""

    share_gib: float
    """What the engine takes for everything."""
    beside_gib: float
    """What a trainer takes that rests beside it."""
    weights_gib: float
    workspace_gib: float
    kv_gib: float
    """GiB of the share left for keys and values; negative where even the rest does not fit."""
    contexts: int
    """The longest trajectories that fit into an engine at once."""
    context_gib: float
    """GiB of keys and values of one of them, on each GPU of an engine."""

    def with_share(self, share_gib: float) -> "Serving":
        """Return the memory of the same engine with another share of the GPU."""
        kv = self.kv_gib + share_gib - self.share_gib
        return replace(self, share_gib=share_gib, kv_gib=kv, contexts=max(0, int(kv // self.context_gib)))


def serving(case: Case, *, share: float, beside: float = 0) -> Serving:
    """Return the memory of a GPU that serves, of which the engine takes a share (vLLM's `gpu_memory_utilization`).

    Each GPU of an engine has an equal part of its weights, and of its heads of keys and values. The GiB of a trainer
    that rests `beside` it do not count in the engine's share.
    """
    shape, longest, gpus = case.shape, case.longest, case.layout.gpus_of_engine
    taken = case.gpu.memory_gib * share
    held = case.weights.total * BFLOAT16 / GIB / gpus
    patches = longest.image_tokens * shape.vision_config.spatial_merge_size**2
    # The largest prefill is one of `max_num_batched_tokens` and one screenshot; its widest tensors, and CUDA graphs.
    workspace = 2.0 + 8 * patches * shape.vision_config.hidden_size * BFLOAT16 / GIB
    token = kv_bytes(shape) / min(gpus, shape.text_config.num_key_value_heads)
    context = token * longest.max_context / GIB
    return Serving(0, beside, held, workspace, -held - workspace, 0, context).with_share(taken)


def host_gib(case: Case, offloaded: Offloaded, screenshot_mb: float, asleep: float = 1.0) -> dict[str, float]:
    """Return the host memory of the first node by its use, in GiB; `asleep` for each GiB that sleeps there."""
    weights, longest, work, layout = case.weights, case.longest, case.work, case.layout
    trainers = ceil(layout.trainers / layout.nodes)
    screens = work.trajectories * longest.steps
    processes, engines = ceil(layout.engines / layout.nodes), ceil(layout.replicas / layout.nodes)
    read = max(0, weights.total * BFLOAT16 - weights.shared_bytes)
    loading = 0.0 if layout.strategy == "fsdp" else trainers * read / GIB
    # An engine of several processes reads an update from a file, which a copy of the weights is written to.
    several = work.fleet and processes > engines and not weights.lora
    vision = case.shape.vision_config
    # Bytes of a screenshot as the trainer prepares it; an engine keeps it in bfloat16, and each frame of its film.
    pixels = longest.image_tokens * vision.spatial_merge_size**2 * vision.patch_size**2 * vision.in_channels / GIB
    kept = ceil(work.environments / layout.replicas) * longest.shown * pixels * vision.temporal_patch_size * BFLOAT16
    width = family_named(case.shape.model_type).visual_width(case.shape)
    seen = ceil(screens / layout.trainers) * longest.image_tokens * width * BFLOAT16
    frozen = work.reference or not weights.train_vision
    return {
        "training processes": trainers * PROCESS_GIB,
        "engines and their picture caches": processes * PROCESS_GIB + engines * kept,
        "engines' weights while they sleep": engines * case.asleep_bytes / GIB * asleep,
        "weights while they are loaded": loading,
        "weights in Ray's object store": case.sync_bytes / GIB if work.fleet else 0.0,
        "weights in the files of engines with several GPUs": 2 * engines * case.sync_bytes / GIB if several else 0.0,
        "moments of the optimizer, offloaded": trainers * offloaded.optimizer / GIB,
        "activations, offloaded": trainers * offloaded.activations / GIB,
        "screenshots of a batch": screens * screenshot_mb * 1e6 / GIB,
        "pictures prepared for an update": ceil(screens / layout.nodes) * pixels,
        "visual tokens of an update": trainers * seen / GIB if frozen and seen <= MOST_FEATURE_BYTES else 0.0,
        "records of a batch": work.trajectories * longest.sampled_tokens * TOKEN_BYTES / GIB,
    }


def disk_gib(case: Case, keep: int, screenshot_mb: float) -> dict[str, float]:
    """Return the disk space of a run by its use, in GiB: checkpoints hold what is trained and its moments.

    The record of an update counts all numbers of every token, though most updates leave out those after it.
    """
    work = case.work
    stored = work.trajectories if work.passes_before is None else 0
    tokens = work.iterations * work.trajectories * case.longest.sampled_tokens
    checkpoint = case.weights.trained * (FLOAT32 + MOMENTS)
    return {
        f"checkpoints, {keep} and the one being written": (keep + 1) * checkpoint / GIB,
        "trajectories": work.iterations * stored * case.longest.steps * screenshot_mb * 1e6 / GIB,
        "records of updates": work.recorded * tokens * len(NUMBERS) * FLOAT32 / GIB,
    }
