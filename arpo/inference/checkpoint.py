"""What an engine reads of a checkpoint before it loads it: the shapes of its tensors."""

from pathlib import Path

from huggingface_hub import snapshot_download
from safetensors import safe_open

from arpo.errors import ConfigError
from arpo.models.names import checkpoint_name


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
        raise ConfigError(f"no *.safetensors in '{directory}'; point path at a from_pretrained directory")
    return shapes
