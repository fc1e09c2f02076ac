"""The seam between one family of models and everything else, and the family that a checkpoint is of."""

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Protocol, runtime_checkable

import torch
from huggingface_hub import snapshot_download
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from arpo.agent.actions import CoordinateFrame
from arpo.errors import ConfigError
from arpo.models import families
from arpo.models.tiny import TinyModel
from arpo.models.vision.tower import Grid, ImagePatches


@runtime_checkable
class ModelFamily(Protocol):
    """All that is true of one family of models; it has no state.

    A visual token is one row, whatever its width: that is cached, sent and picked. What a family needs of a picture at
    several layers lies side by side in the row, and `hidden_states` takes it apart.
    """

    model_type: str
    """The name of the family in `config.json`."""
    model_class: Any
    """The class of transformers that loads its checkpoints."""
    processor_class: str
    image_processor_type: str
    resize_factor: int
    """Pixels along the side of a visual token: both sides of a picture become multiples of it."""
    pixels: tuple[int, int]
    """The smallest and the largest picture that the published image processor makes."""
    never_sampled: tuple[str, ...]
    """Special tokens that a response must not hold; a sampled image placeholder breaks the sequence."""
    around_image: int
    """Special tokens on each side of an image placeholder."""
    embedding: str
    """The name of the input embedding's weight in a checkpoint."""
    lora_targets: str
    """The pattern of the modules that LoRA updates: every linear layer of the language model's blocks, no other."""
    recurrent: bool
    """Whether layers carry a state in the place of attention, for which vLLM on a CPU has few kernels."""
    tiny: TinyModel
    """Its tiny model, for two cores."""

    def checkpoint_name(self, name: str) -> str:
        """Return a parameter's name as published checkpoints, and so vLLM, write it; theirs stay as they are."""

    def frame(self, screen: tuple[int, int], seen: tuple[int, int]) -> CoordinateFrame:
        """Return the map between points of a screen and the model's, from widths and heights of both pictures."""

    def position_ids(
        self, image_mask: Bool[Tensor, " tokens"], grids: Sequence[Grid], merge: int
    ) -> Int64[Tensor, "3 tokens"]:
        """Return time, row and column of each token; pictures of these grids have `merge` by `merge` patches each."""

    def blocks(self, model: Any) -> list[nn.Module]:
        """Return the parts of a model that are gathered, computed and let go as one where weights are sharded."""

    def tower(
        self, model: Any, mean: Float[Tensor, "channels 1"], std: Float[Tensor, "channels 1"]
    ) -> Callable[[Tensor, tuple[Grid, ...]], Tensor]:
        """Return the vision tower: from patches as bytes, and grids, to the visual tokens, picture by picture."""

    def hidden_states(
        self,
        model: Any,
        embeddings: Float[Tensor, "batch tokens hidden"],
        visual: Float[Tensor, "placeholders width"],
        places: Int64[Tensor, " placeholders"],
        position_ids: Int64[Tensor, "3 batch tokens"],
    ) -> Float[Tensor, "batch tokens hidden"]:
        """Return the language model's output, with visual tokens at some places of the batch as one row."""

    def generation_inputs(
        self, image_mask: Bool[Tensor, "rows tokens"], pictures: Sequence[ImagePatches], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """Return the inputs of transformers' `generate` beside the ids."""

    def visual_width(self, config: Any) -> int:
        """Return the width of a visual token."""

    def picture_layers(self, config: Any) -> int:
        """Return the number of the vision tower's layers that see whole pictures; windows cost next to nothing."""

    def attention_layers(self, config: Any) -> int:
        """Return the number of the language model's layers that keep keys and values; others carry a state."""


FAMILIES: dict[str, ModelFamily] = {
    name: import_module(f"{families.__name__}.{name}").FAMILY for _, name, _ in iter_modules(families.__path__)
}
"""Every family that has a file, by its name."""


def family_named(model_type: object, where: str = "family") -> ModelFamily:
    """Return the family with a `model_type`."""
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ConfigError(f"{where} must be one of {', '.join(FAMILIES)}, got {model_type!r}")
    return FAMILIES[model_type]


def family_of(path: str | Path) -> ModelFamily:
    """Return the family of a checkpoint, a directory or hub name."""
    file = checkpoint_directory(path) / "config.json"
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} must say by its model_type what a checkpoint is: {error}") from error
    return family_named(said.get("model_type") if isinstance(said, Mapping) else None, f"{file}: model_type")


def checkpoint_directory(path: str | Path) -> Path:
    """Return the directory of a checkpoint; one that has a hub name is downloaded first, unless it is there."""
    return Path(path) if Path(path).is_dir() else Path(snapshot_download(str(path)))
