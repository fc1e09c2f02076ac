"""The facts that an engine reads of a checkpoint before it loads it: the longest context, the shapes of tensors."""

import json
from math import prod
from pathlib import Path

from transformers import AutoConfig

from arpo.errors import ConfigError
from arpo.models.checkpoint import CheckpointWeights
from arpo.models.family import family_of
from arpo.models.processor import load_processor


def check_context(path: str | Path, max_model_len: int) -> None:
    """Check that a model takes contexts of so many tokens: prompt, images and response together.

    A directory that a warm start has yet to write, or a hub name, is not checked.
    """
    positions = context_of(path)
    if positions is not None and max_model_len > positions:
        raise ConfigError(
            f"max_model_len={max_model_len} is more than the {positions} tokens that the model in '{path}' takes: "
            f"lower it to {positions} or less"
        )


def is_recurrent(path: str | Path) -> bool:
    """Return whether layers of a model carry a state in the place of attention; False where it is not there yet."""
    if not (Path(path) / "config.json").exists():
        return False
    shape = load_processor(path, AutoConfig)
    return family_of(path).attention_layers(shape) < int(shape.text_config.num_hidden_layers)


def context_of(path: str | Path) -> int | None:
    """Return the tokens that a checkpoint was made for; None where there is none, or no number in it."""
    file = Path(path) / "config.json"
    if not file.exists():
        return None
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        # Published files are flat; transformers 5 nests what is the language model's.
        positions = (config.get("text_config") or config).get("max_position_embeddings")
    except (ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{file} is not the configuration of a model: {error}") from error
    if positions is not None and not isinstance(positions, int):
        raise ConfigError(f"{file}: max_position_embeddings must be a whole number, got {positions!r}")
    return positions


def update_numbers(path: str | Path, lora_rank: int | None = None) -> int:
    """Return the size of a weight update of a checkpoint's model in numbers: of all weights, or of the adapters.

    Adapters have a rank, and every linear layer of the language model's blocks has one.
    """
    shapes = CheckpointWeights(path).shapes
    if lora_rank is None:
        return sum(prod(shape) for shape in shapes.values())
    adapted = (shape for name, shape in shapes.items() if ".layers." in name and len(shape) == 2)
    return sum(lora_rank * sum(shape) for shape in adapted)
