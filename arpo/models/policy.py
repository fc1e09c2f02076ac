"""The policy: a checkpoint that gives log-probabilities of the tokens it acted with."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from transformers import PreTrainedModel
from typing_extensions import override

from arpo.bounds import AtLeastOne, Positive, checked
from arpo.errors import ConfigError
from arpo.host.trial import before_start
from arpo.models.checkpoint import CheckpointWeights, model_without_weights, write_checkpoint
from arpo.models.collate import TokenBatch
from arpo.models.family import checkpoint_directory
from arpo.models.images import ImageProcessor
from arpo.models.lora import (
    adapter_tensors,
    add_lora,
    initial_adapter,
    merged_weights,
    start_adapters,
    update_error,
    weights_by_name,
    without_adapters,
)
from arpo.models.placement import full, load, shard
from arpo.models.tokenization import ChatTokenizer
from arpo.models.vision.tower import PackedPatches, to_device

log = logging.getLogger(__name__)

Checkpointing = bool | Literal["selective"]
"""Whether a block keeps its input alone; `selective` keeps what its attention computed too."""

ATTENTION_KERNELS = [
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
]
"""The kernels of `sdpa` on CUDA and on the CPU.

Where none of them can, torch takes plain products and a softmax, which are computed again.
"""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@checked
@dataclass(frozen=True, slots=True)
class LoraSettings:
    """Low-rank updates of the language model's blocks instead of its weights (arXiv 2106.09685)."""

    rank: AtLeastOne = 32
    alpha: Positive = 64.0
    """The update is scaled by alpha / rank."""


@dataclass(frozen=True, slots=True, eq=False)
class ActionLogprobs:
    """The policy's verdict on the sampled tokens of a batch, each row packed to the left, 0 on padding."""

    logprobs: Float[Tensor, "batch actions"]
    mask: Bool[Tensor, "batch actions"]
    """True where there is a token."""
    entropy: Float[Tensor, "batch actions"] | None
    """Of the distribution each token was sampled from; its gradient is up to `entropy_gradient`."""
    values: Float[Tensor, "batch actions"] | None = None
    """What a critic says before each token, with its gradient."""


@checked
class Policy(nn.Module):
    """A model of a known family from any directory that `from_pretrained` loads, tiny or real.

    Args:
        path: Directory or hub name.
        dtype: Of the computation and of frozen weights. Weights that are trained are float32, whatever it is: in
            bfloat16 half a unit in the last place is far above an update at a rate of 1e-6, and sums of gradients lose
            what they add up.
        gradient_checkpointing: Keep only the input of each block for the backward pass; `selective`: in the language
            model also what attention computed, which takes as much memory again and saves computing it twice.
        offload_activations: Keep those inputs in the host's memory; what attention computed stays on the device.
        train_vision: Train the vision tower; otherwise it is frozen and computed without gradients.
        lora: Train low-rank updates of the language model and freeze the rest of it; None trains all of it.
        attention: Kernel; `flash_attention_2` needs a GPU and the flash-attn package.
        logits_chunk: Tokens whose logits exist at the same time.
        mlp_chunk: Tokens whose widest activations, those inside an MLP of the language model, exist at the same time:
            the backward pass computes each part again. None: all of a batch.
        mesh: Ranks over which the weights are cut (`arpo.models.placement`); None keeps them whole.
        shared: Weights of an engine of this process by their names in the checkpoint: those of the same format are the
            policy's too, the others are read from the checkpoint.
        share_trained: Whether those too that are trained.
    """

    def __init__(  # noqa: PLR0913 - one argument a line of conf/model
        self,
        path: str | Path,
        *,
        dtype: Literal["float32", "bfloat16"] = "float32",
        gradient_checkpointing: Checkpointing = False,
        offload_activations: bool = False,
        train_vision: bool = True,
        lora: LoraSettings | None = None,
        attention: Literal["sdpa", "flash_attention_2", "eager"] = "sdpa",
        logits_chunk: AtLeastOne = 1024,
        mlp_chunk: AtLeastOne | None = None,
        mesh: DeviceMesh | None = None,
        shared: Mapping[str, Tensor] = MappingProxyType({}),
        share_trained: bool = True,
    ) -> None:
        super().__init__()
        torch_dtype = dtype_of(dtype)
        if lora is not None and train_vision:
            raise ConfigError("lora trains the language model's blocks and nothing else: set train_vision=false")
        if gradient_checkpointing == "selective" and attention != "sdpa":
            raise ConfigError(
                f"gradient_checkpointing=selective needs attention=sdpa, got {attention}: set it to true"
            )
        if offload_activations and not gradient_checkpointing:
            raise ConfigError("offload_activations=true needs gradient_checkpointing=true, or there are too many")
        before_start()
        self.path = path
        self.chat = ChatTokenizer(path)
        self.family = self.chat.family
        self.images = ImageProcessor(path)
        # A frozen base, which is nearly everything with LoRA, never exists in float32.
        loaded = torch.float32 if lora is None else torch_dtype
        whole = mesh is None and not shared
        self.model = self._load(loaded, attention) if whole else model_without_weights(path, attention)
        self.model.lm_head = Float32Head(self.model.lm_head, torch_dtype)
        self._vision = self.family.tower(self.model, self.images.mean, self.images.std)
        self.model.requires_grad_(requires_grad=lora is None)
        if lora is not None:
            add_lora(self.model, self.family.lora_targets, lora.rank, lora.alpha)
        self.vision.requires_grad_(train_vision)
        self.dtype = torch_dtype
        """The format of the computation."""
        self._set_formats()
        self._sharded = mesh is not None
        self._train_vision = train_vision
        self._offload_activations = offload_activations
        self._lora = lora
        checkpoint_blocks(self.model, gradient_checkpointing)
        if mlp_chunk is not None:
            divide_mlps(self.model, mlp_chunk)
        self._logits_chunk = logits_chunk
        self.features: Mapping[str, Tensor] | None = None
        """What a frozen vision tower makes of the screenshots of an update by SHA-256, while the update lasts."""
        self.entropy_gradient = False
        """Whether entropies have a gradient, for a loss that holds them."""
        self.shared: list[nn.Parameter] = []
        """The parameters that are views of an engine's."""
        self._forbidden: Tensor
        self.register_buffer("_forbidden", torch.tensor(self.chat.forbidden_ids, dtype=torch.int64), persistent=False)
        if whole:
            start_adapters(self.model)
            return
        weights = CheckpointWeights(path)
        own = self._alike(shared, weights, share_trained=share_trained)
        read = partial(_initial, weights, own)
        if mesh is not None:
            shard(self, self.family.blocks(self.model), mesh, torch_dtype, read)
            return
        load(self, "", read)
        places = {weight.data_ptr() for weight in own.values()}
        self.shared = [parameter for parameter in self.parameters() if parameter.data_ptr() in places]

    def freeze(self) -> "Policy":
        """Train nothing from here on, and hold all weights in the format of the computation; returns the policy.

        Shards stay as they are: they are gathered in that format.
        """
        self.eval().requires_grad_(requires_grad=False)
        if not self._sharded:
            self._set_formats()
        return self

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._forbidden.device

    def action_logprobs(
        self,
        batch: TokenBatch,
        temperature: float = 1.0,
        *,
        with_entropy: bool = False,
        critic: nn.Module | None = None,
    ) -> ActionLogprobs:
        """Return the log-probability of every sampled token of the batch.

        Hidden states are selected before the output layer, so logits exist only where the policy acted. Ids that
        engines never sample have probability zero here too. A critic makes a value [tokens, 1] of the states
        [tokens, hidden] that predict the tokens; its gradient ends there.
        """
        if temperature <= 0:
            raise ValueError(f"temperature must be positive, got {temperature}; greedy responses are scored at 1")
        batch = batch.to(self.device)
        offloads = self._offload_activations and torch.is_grad_enabled()
        with self._format(), self._offload() if offloads else nullcontext():
            hidden = self._hidden_states(batch)
        # The state at one token predicts the next.
        states = hidden.flatten(0, 1).index_select(0, batch.action_places - 1)
        logprobs, entropy = chosen_logprobs(
            states,
            batch.input_ids.flatten().index_select(0, batch.action_places),
            self.model.lm_head,
            self._forbidden,
            temperature=temperature,
            chunk=self._logits_chunk,
            with_entropy=with_entropy,
            entropy_gradient=self.entropy_gradient,
        )
        pack = partial(pack_left, mask=batch.packed_mask, places=batch.packed_places)
        return ActionLogprobs(
            pack(logprobs),
            batch.packed_mask,
            None if entropy is None else pack(entropy),
            None if critic is None else pack(critic(states.detach().float()).squeeze(1)),
        )

    @property
    def frozen_vision(self) -> bool:
        """Whether nothing trains the vision tower: what it makes of a screenshot stays the same."""
        return not any(parameter.requires_grad for parameter in self.vision.parameters())

    @property
    def vision(self) -> PreTrainedModel:
        """The vision tower's weights."""
        return self.model.get_encoder("image")

    @torch.no_grad()
    def visual_tokens(self, pictures: Sequence[PackedPatches]) -> list[Float[Tensor, "visual hidden"]]:
        """Return the vision tower's output for each picture, without gradient, on the host: [tokens, hidden]."""
        pixels = torch.cat([picture.pixels for picture in pictures])
        with self._format():
            tokens = self._vision(to_device(pixels, self.device), tuple(picture.grid for picture in pictures)).cpu()
        merged = self.images.merge_size**2
        return list(torch.split(tokens, [len(picture.pixels) // merged for picture in pictures]))

    @property
    def shares_trained(self) -> bool:
        """Whether an update changes weights that an engine computes with."""
        return any(parameter.requires_grad for parameter in self.shared)

    @property
    def has_adapters(self) -> bool:
        """Whether low-rank updates are trained, and not the weights themselves."""
        return self._lora is not None

    def without_adapters(self) -> AbstractContextManager[None]:
        """Compute as the policy did before its low-rank updates were trained, for a while."""
        return without_adapters(self.model)

    def checkpoint_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what an engine that loaded the same checkpoint needs: every weight, or with LoRA the adapter alone.

        Weights have the names that vLLM's `load_weights` takes, a tied output layer left out; adapters those of
        `arpo.models.lora.adapter_tensors`. All are in the format of the computation. One tensor exists at a time;
        where weights are sharded, each is gathered, so every rank must go through all of them.
        """
        if self._lora is not None:
            tensors = adapter_tensors(self.model)
        else:
            tensors = ((name, weight.detach()) for name, weight in self.model.named_parameters())
        for name, tensor in tensors:
            rounded = tensor.to(self.dtype)  # before it is gathered: half the bytes
            yield self.family.checkpoint_name(name), full(rounded) if self._sharded else rounded

    def update_error(self) -> float | None:
        """Return the share of LoRA's update that is lost on its way to the engine; None where there is none yet."""
        return None if self._lora is None else update_error(self.model, self.dtype)

    def saved_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what `save` writes, one tensor at a time; on every rank where weights are sharded.

        Weights are in the format of the computation; those that LoRA is merged into are in float32.
        """
        for name, tensor in merged_weights(self.model):
            yield self.family.checkpoint_name(name), full(tensor if self._lora is not None else tensor.to(self.dtype))

    def save(self, directory: str | Path) -> None:
        """Write a checkpoint that vLLM and `from_pretrained` load, of transformers 4 as of 5.

        Where weights are sharded, the other ranks must go through `saved_tensors` meanwhile.
        """
        dtype = str(self.dtype).removeprefix("torch.")
        write_checkpoint(self.saved_tensors(), dtype, checkpoint_directory(self.path), Path(directory))

    def _format(self) -> AbstractContextManager[object]:
        """Compute in the format of the computation, where weights are in float32, for a while."""
        return nullcontext() if self.dtype == torch.float32 else torch.autocast(self.device.type, self.dtype)

    def _offload(self) -> AbstractContextManager[object]:
        """Keep what the backward pass needs in the host's memory, for a while."""
        return save_on_cpu(pin_memory=self.device.type == "cuda")

    def _load(self, dtype: torch.dtype, attention: str) -> Any:
        return self.family.model_class.from_pretrained(self.path, dtype=dtype, attn_implementation=attention)

    def _alike(
        self, shared: Mapping[str, Tensor], weights: CheckpointWeights, *, share_trained: bool
    ) -> dict[str, Tensor]:
        """Return those of an engine's weights that have the format of the policy's and the checkpoint's values."""
        formats = {
            self.family.checkpoint_name(name): weight.dtype
            for name, weight in weights_by_name(self.model)
            if share_trained or not weight.requires_grad
        }
        alike = {name: weight for name, weight in shared.items() if weight.dtype == formats.get(name)}
        own = {name: weight for name, weight in alike.items() if torch.equal(weight, weights[name].to(weight))}
        if len(own) < len(alike):
            log.warning(
                "%d weights are not shared, in which the engine holds other values than the checkpoint, %s among "
                "them: there are two copies of these; start again where the checkpoint was replaced meanwhile",
                len(alike) - len(own),
                min(alike.keys() - own.keys()),
            )
        return own

    def _set_formats(self) -> None:
        for parameter in self.model.parameters():  # not `to`, which would round the frequencies of positions too
            parameter.data = parameter.data.to(torch.float32 if parameter.requires_grad else self.dtype)

    def _hidden_states(self, batch: TokenBatch) -> Float[Tensor, "batch tokens hidden"]:
        # From here on every block adds to it in this format, as in the engine.
        embeddings = self.model.get_input_embeddings()(batch.input_ids).to(self.dtype)
        visual = batch.visual
        if visual is None:
            assert batch.pixels is not None  # collate makes one of them
            with torch.set_grad_enabled(self._train_vision and torch.is_grad_enabled()):
                visual = self._vision(batch.pixels, batch.image_grid)
        seen = visual.index_select(0, batch.image_index).to(embeddings.dtype)
        return self.family.hidden_states(self.model, embeddings, seen, batch.image_places, batch.position_ids)


def dtype_of(name: str) -> torch.dtype:
    """Return the number format of weights and computation by its name."""
    if name not in DTYPES:
        raise ConfigError(f"dtype must be one of {sorted(DTYPES)}, got {name!r}")
    return DTYPES[name]


def _initial(weights: CheckpointWeights, shared: Mapping[str, Tensor], name: str, shape: torch.Size) -> Tensor:
    """Return the first value of a policy's parameter: an engine's tensor, that of its checkpoint, or an adapter."""
    name = name.removeprefix("model.")  # the policy's name of transformers' model
    if ".lora_" in name:
        return initial_adapter(name, shape)
    name = name.replace(".base_layer.", ".")
    own = shared.get(weights.published(name))
    return weights[name] if own is None else own


def trained_names(module: nn.Module) -> frozenset[str]:
    """Return the names of the weights that a training's checkpoint holds: all that an update changes.

    A shared weight has each of its names. Frozen weights are where the policy was loaded from.
    """
    everything = module.named_parameters(remove_duplicate=False)
    return frozenset(name for name, parameter in everything if parameter.requires_grad)


def checkpoint_blocks(model: Any, checkpointing: Checkpointing) -> None:
    """Let the blocks of a model be checkpointed while it trains, selectively as in TorchTitan (arXiv 2410.06511).

    The vision tower always keeps its inputs alone: its attention ends with a picture, so there is little to save.
    """
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if checkpointing == "selective":
        kept = partial(create_selective_checkpoint_contexts, ATTENTION_KERNELS)
        model.get_decoder().gradient_checkpointing_enable({"use_reentrant": False, "context_fn": kept})


def divide_mlps(model: Any, tokens: int) -> None:
    """Let the MLPs of a language model take some tokens at a time (ALST's tiled MLP, arXiv 2506.13996)."""
    for block in model.get_decoder().layers:
        block.mlp.forward = partial(_in_parts, block.mlp.forward, tokens)


def _in_parts(
    mlp: Callable[[Tensor], Tensor], tokens: int, hidden: Float[Tensor, "batch tokens width"]
) -> Float[Tensor, "batch tokens width"]:
    parts = torch.split(hidden.flatten(0, 1), tokens)  # of all rows together: short ones are packed into a batch
    done = [checkpoint(mlp, part, use_reentrant=False, preserve_rng_state=False) for part in parts]
    return torch.cat(done).view_as(hidden)


# --- log-probabilities in float32, without the logits of all tokens at once ------------------------------------------


class Float32Head(nn.Module):
    """An output layer whose logits are float32, whatever the model computes in.

    A bfloat16 logit between 16 and 32 is a multiple of 0.125: what an update changes is lost in that, and ratios and
    their clipping with it. The weight is rounded to `dtype`, as the engine's is; it keeps its name, and stays shared
    with the embedding where it was.
    """

    def __init__(self, head: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = head.weight
        self._dtype = dtype

    def forward(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocabulary"]:
        """Return the logits, in float32."""
        if self._dtype == torch.float32:
            return nn.functional.linear(hidden, self.weight)
        weight = self.weight.to(self._dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            if hidden.is_cuda and hidden.dtype == self._dtype:
                product: Tensor = Float32Product.apply(hidden.flatten(0, -2), weight)  # type: ignore[no-untyped-call]
                return product.view(*hidden.shape[:-1], -1)
            return nn.functional.linear(hidden.float(), weight.float())


class Float32Product(torch.autograd.Function):
    """The product hidden @ weight.T in float32, of matrices in one narrower format, as fast as in that format.

    A product of two bfloat16 numbers is exact in float32, in which tensor cores add, so only the order of the sums
    differs from that of float32 matrices. torch has this product on CUDA, and no derivative of it; here that is the
    one of float32 matrices.
    """

    @staticmethod
    @override
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return torch.mm(hidden, weight.T, out_dtype=torch.float32)

    @staticmethod
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hidden, weight = ctx.saved_tensors
        for_hidden, for_weight = ctx.needs_input_grad
        return (
            (gradient @ weight.float()).to(hidden.dtype) if for_hidden else None,
            (gradient.T @ hidden.float()).to(weight.dtype) if for_weight else None,
        )


def chosen_logprobs(
    hidden: Float[Tensor, "tokens hidden"],
    chosen: Int64[Tensor, " tokens"],
    head: Callable[[Tensor], Tensor],
    forbidden: Int64[Tensor, " forbidden"],
    *,
    temperature: float,
    chunk: int,
    with_entropy: bool,
    entropy_gradient: bool = False,
) -> tuple[Float[Tensor, " tokens"], Float[Tensor, " tokens"] | None]:
    """Return log softmax(head(h) / temperature) at the chosen ids, and the entropy if wanted.

    Logits, which are float32, exist for `chunk` tokens at a time only: the backward pass computes them again. Ids that
    are forbidden have probability zero.
    """

    def of_chunk(rows: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        # In place, because vocabularies are large and nothing else holds these logits.
        logits = head(rows).index_fill_(1, forbidden, -torch.inf).div_(temperature)
        logprobs = -torch.nn.functional.cross_entropy(logits, ids, reduction="none")
        if not with_entropy:
            return logprobs, logprobs.new_empty(0)
        return logprobs, entropy_of_logits(logits if entropy_gradient else logits.detach())

    logprobs: list[Tensor] = []
    entropies: list[Tensor] = []
    for rows, ids in zip(torch.split(hidden, chunk), torch.split(chosen, chunk), strict=True):
        part, entropy = checkpoint(of_chunk, rows, ids, use_reentrant=False, preserve_rng_state=False)
        logprobs.append(part)
        entropies.append(entropy)
    return torch.cat(logprobs), torch.cat(entropies) if with_entropy else None


def entropy_of_logits(logits: Float[Tensor, "tokens vocabulary"]) -> Float[Tensor, " tokens"]:
    """Return the entropy of each row's softmax; a logit of minus infinity adds nothing, to the gradient neither."""
    probabilities = logits.softmax(-1)
    if logits.requires_grad:  # the slope of -p log p is infinite at 0
        probabilities = probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny)
    entropy: Tensor = torch.special.entr(probabilities).sum(-1)
    return entropy


def pack_left(
    values: Float[Tensor, " chosen"], mask: Bool[Tensor, "batch actions"], places: Int64[Tensor, " chosen"]
) -> Float[Tensor, "batch actions"]:
    """Return the values row by row, zeros behind them; `places` are those of the mask's True in it as one row."""
    packed: Tensor = values.new_zeros(mask.numel()).index_copy(0, places, values)
    return packed.view(mask.shape).clone()  # FSDP's hooks would be lost with a view
