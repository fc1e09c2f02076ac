"""The policy: a Qwen2.5-VL checkpoint that gives log-probabilities of the tokens it acted with."""

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from huggingface_hub import snapshot_download
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen2_5_VLForConditionalGeneration

from arpo.errors import ConfigError
from arpo.host.trial import before_start
from arpo.models.collate import TokenBatch
from arpo.models.images import ImageProcessor
from arpo.models.logprobs import chosen_logprobs, pack_left
from arpo.models.names import checkpoint_name
from arpo.models.tokenization import ChatTokenizer
from arpo.models.transfer import to_device
from arpo.models.vision.patches import PackedPatches
from arpo.models.vision.tower import VisionTower

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

LORA_TARGETS = r".*language_model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"
"""Every linear layer of the language model's blocks, none of the vision tower's."""


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """Low-rank updates of the language model's blocks instead of its weights (arXiv 2106.09685)."""

    rank: int = 32
    alpha: float = 64.0
    """The update is scaled by alpha / rank."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"LoRA rank must be at least 1, got {self.rank}")
        if self.alpha <= 0:
            raise ConfigError(f"LoRA alpha must be positive, got {self.alpha}")


@dataclass(frozen=True, slots=True, eq=False)
class ActionLogprobs:
    """The policy's verdict on the sampled tokens of a batch, each row packed to the left."""

    logprobs: Float[Tensor, "batch actions"]
    """0 on padding."""
    mask: Bool[Tensor, "batch actions"]
    """True where there is a token."""
    entropy: Float[Tensor, "batch actions"] | None
    """Of the distribution each token was sampled from; without gradient; 0 on padding."""


class Policy(nn.Module):
    """Qwen2.5-VL from any directory that `from_pretrained` loads, tiny or real.

    Args:
        path: Directory or hub name.
        dtype: Of the weights and of the computation.
        gradient_checkpointing: Keep only the input of each block for the backward pass.
        train_vision: Train the vision tower; otherwise it is frozen and computed without gradients.
        lora: Train low-rank updates of the language model and freeze the rest of it; None trains all of it.
        attention: Kernel; `flash_attention_2` needs a GPU and the flash-attn package.
        logits_chunk: Tokens whose logits exist at the same time.

    Raises:
        ConfigError: If there is no such checkpoint or an argument is impossible.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        dtype: Literal["float32", "bfloat16"] = "float32",
        gradient_checkpointing: bool = False,
        train_vision: bool = True,
        lora: LoraSettings | None = None,
        attention: Literal["sdpa", "flash_attention_2", "eager"] = "sdpa",
        logits_chunk: int = 1024,
    ) -> None:
        super().__init__()
        torch_dtype = dtype_of(dtype)
        if logits_chunk < 1:
            raise ConfigError(f"logits_chunk must be at least 1, got {logits_chunk}")
        before_start()
        self.path = path
        self.chat = ChatTokenizer(path)
        self.images = ImageProcessor(path)
        self.model = Qwen2_5_VLForConditionalGeneration.from_pretrained(
            path, dtype=torch_dtype, attn_implementation=attention
        )
        vision = self.model.model.visual
        self._vision = VisionTower(vision, self.images)
        self.model.requires_grad_(requires_grad=lora is None)
        if lora is not None:
            _add_lora(self.model, lora)
        vision.requires_grad_(train_vision)
        self._train_vision = train_vision
        if gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self._logits_chunk = logits_chunk
        self.features: Mapping[str, Tensor] | None = None
        """What a frozen vision tower makes of the screenshots of an update by SHA-256, while the update lasts."""
        self._forbidden: Tensor
        forbidden = torch.tensor(self.chat.forbidden_ids, dtype=torch.int64)
        self.register_buffer("_forbidden", forbidden, persistent=False)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._forbidden.device

    def action_logprobs(
        self, batch: TokenBatch, temperature: float = 1.0, *, with_entropy: bool = False
    ) -> ActionLogprobs:
        """Return the log-probability of every sampled token of the batch.

        Hidden states are selected before the output layer, so logits exist only where the policy acted. Ids that
        engines never sample have probability zero here too.

        Args:
            batch: On any device.
            temperature: At which the tokens were sampled.
            with_entropy: Whether to give entropies too, for the metrics.

        Raises:
            ValueError: If the temperature is not positive.
        """
        if temperature <= 0:
            raise ValueError(f"temperature must be positive, got {temperature}; greedy responses are scored at 1")
        batch = batch.to(self.device)
        hidden = self._hidden_states(batch)
        logprobs, entropy = chosen_logprobs(
            # The state at one token predicts the next.
            hidden.flatten(0, 1).index_select(0, batch.action_places - 1),
            batch.input_ids.flatten().index_select(0, batch.action_places),
            self.model.lm_head,
            self._forbidden,
            temperature=temperature,
            chunk=self._logits_chunk,
            with_entropy=with_entropy,
        )
        return ActionLogprobs(
            pack_left(logprobs, batch.packed_mask, batch.packed_places),
            batch.packed_mask,
            None if entropy is None else pack_left(entropy, batch.packed_mask, batch.packed_places),
        )

    @property
    def frozen_vision(self) -> bool:
        """Whether nothing trains the vision tower: what it makes of a screenshot stays the same."""
        return not any(parameter.requires_grad for parameter in self.vision.parameters())

    @property
    def vision(self) -> PreTrainedModel:
        """The vision tower's weights."""
        return self.model.model.visual

    @torch.no_grad()
    def visual_tokens(self, pictures: Sequence[PackedPatches]) -> list[Float[Tensor, "visual hidden"]]:
        """Return what the vision tower makes of each picture, without gradient, on the host: [tokens, hidden]."""
        pixels = torch.cat([picture.pixels for picture in pictures])
        tokens = self._vision(to_device(pixels, self.device), tuple(picture.grid for picture in pictures)).cpu()
        merged = self.images.merge_size**2
        return list(torch.split(tokens, [len(picture.pixels) // merged for picture in pictures]))

    def checkpoint_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight by its name in a Qwen2.5-VL checkpoint file, LoRA merged, a tied output layer left out.

        These are the names that `save_pretrained` writes and that vLLM's `load_weights` takes.
        """
        for name, tensor in _merged_weights(self.model):
            yield checkpoint_name(name), tensor

    def save(self, directory: str | Path) -> None:
        """Write a checkpoint, LoRA merged, that `from_pretrained` and vLLM load."""
        self.model.save_pretrained(directory, state_dict=dict(_merged_weights(self.model)))
        mode = (Path(directory) / "config.json").stat().st_mode
        for weights in Path(directory).glob("*.safetensors"):
            weights.chmod(mode)  # safetensors writes for the owner alone, whatever the umask says
        source = Path(self.path) if Path(self.path).is_dir() else Path(snapshot_download(str(self.path)))
        for pattern in ("*token*", "*processor_config.json", "chat_template*", "vocab.json", "merges.txt"):
            for file in source.glob(pattern):
                shutil.copy(file, directory)

    def _hidden_states(self, batch: TokenBatch) -> Float[Tensor, "batch tokens hidden"]:
        embeddings = self.model.get_input_embeddings()(batch.input_ids)
        visual = batch.visual
        if visual is None:
            assert batch.pixels is not None  # collate makes one of them
            with torch.set_grad_enabled(self._train_vision and torch.is_grad_enabled()):
                visual = self._vision(batch.pixels, batch.image_grid)
        seen = visual.index_select(0, batch.image_index).to(embeddings.dtype)
        rows = embeddings.flatten(0, 1).index_copy(0, batch.image_places, seen)
        hidden: Tensor = self.model.model.language_model(
            inputs_embeds=rows.view_as(embeddings), position_ids=batch.position_ids, use_cache=False
        ).last_hidden_state
        return hidden


def dtype_of(name: str) -> torch.dtype:
    """Return the number format of weights and computation by its name.

    Raises:
        ConfigError: If it is none of `DTYPES`.
    """
    if name not in DTYPES:
        raise ConfigError(f"dtype must be one of {sorted(DTYPES)}, got {name!r}")
    return DTYPES[name]


def _add_lora(model: nn.Module, settings: LoraSettings) -> None:
    """Put low-rank updates into the model in place, without a wrapper that would rename everything."""
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(r=settings.rank, lora_alpha=settings.alpha, lora_dropout=0.0, target_modules=LORA_TARGETS)
    inject_adapter_in_model(config, model)


def _merged_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights by their names without LoRA; where there is an update, base plus update."""
    from peft.tuners.lora import LoraLayer

    updated = {f"{name}.": module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    # named_parameters gives a tied output layer once, as the embedding.
    for name, parameter in model.named_parameters():
        owner, _, own_name = name.partition("base_layer.")
        if owner in updated and own_name == "weight":
            yield owner + own_name, parameter.detach() + updated[owner].get_delta_weight("default").detach()
        elif ".lora_" not in name:
            yield owner + own_name, parameter.detach()
