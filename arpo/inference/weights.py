"""The check that a weight update is exactly the checkpoint's tensors: every name once, no other, shapes equal."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch import Tensor

from arpo.errors import ConfigError, WeightSyncError
from arpo.models.names import checkpoint_name

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
"""In a checkpoint only where the model does not share it with the embedding."""


def checkpoint_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor in a checkpoint (directory or hub name) without reading the tensors.

    Raises:
        ConfigError: If the directory has no safetensors file.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    directory = Path(path) if Path(path).is_dir() else Path(snapshot_download(str(path)))
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                shapes[checkpoint_name(name)] = tuple(tensors.get_slice(name).get_shape())
    if not shapes:
        raise ConfigError(f"no *.safetensors in '{directory}'; point model.path at a from_pretrained directory")
    return shapes


def checked(
    tensors: Iterable[tuple[str, Tensor]], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, Tensor]]:
    """Pass tensors on one by one, by checkpoint name, and make sure in the end that all were there.

    Raises:
        WeightSyncError: At a name the checkpoint does not have or has with another shape, or at the end when a tensor
            is missing.
    """
    left = set(shapes)
    for given, tensor in tensors:
        name = checkpoint_name(given)
        if name == HEAD and HEAD not in shapes:
            continue
        if name not in shapes:
            raise WeightSyncError(f"the model has no tensor '{given}'; its names are like '{min(shapes)}'")
        if tuple(tensor.shape) != shapes[name]:
            raise WeightSyncError(f"tensor '{given}' is {tuple(tensor.shape)}, the model's is {shapes[name]}")
        left.discard(name)
        yield name, tensor.detach()
    if left:
        some = ", ".join(sorted(left)[:3])
        raise WeightSyncError(f"{len(left)} of {len(shapes)} tensors are missing from the update: {some}, ...")
