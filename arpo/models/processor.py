"""The settings of a checkpoint in the forms that transformers 4 and 5 write: read, or refused by file and key."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from sys import float_info
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoProcessor, __version__
from transformers.image_utils import PILImageResampling

from arpo.errors import ConfigError
from arpo.models.family import FAMILIES, checkpoint_directory, family_of
from arpo.models.vision.tower import PatchSettings

FILES = ("processor_config.json", "preprocessor_config.json")
"""Of transformers 5, with the image processor nested, and of transformers 4; the first that has one counts."""
UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ImportError,
    RecursionError,
    StrictDataclassError,
)
"""Errors of transformers about files that are not as it expects."""
STEPS = ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb")
EDGES = {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}
"""The two names of each limit: in a size, the edges are numbers of pixels."""


@dataclass(frozen=True, slots=True)
class ImageNumbers:
    """The numbers by which a checkpoint's image processor makes patches of a screenshot."""

    sizes: PatchSettings
    frames: int
    """The times that a patch is repeated."""
    rescale_factor: float
    mean: tuple[float, ...]
    """Of red, green and blue, like the deviation."""
    std: tuple[float, ...]
    missing_limits: Mapping[str, int]
    """The limits of images, where a library that reads the checkpoint's file itself would not find them."""


def load_processor(path: str | Path, kind: Any = AutoProcessor) -> Any:
    """Return the processor of a checkpoint, as transformers loads it, or another `kind` of thing by its auto class."""
    try:
        processor = kind.from_pretrained(path)
    except UNREADABLE as error:
        directory, name = Path(path), "config.json" if kind is AutoConfig else FILES[1]
        if isinstance(error, OSError) and not any((directory / file).exists() for file in (name, *FILES)):
            raise ConfigError(
                f"cannot load a processor from {str(path)!r}: give the directory of a checkpoint, for "
                "example one that `make train` wrote or a download of UI-TARS-1.5-7B"
            ) from error
        known = " or ".join(
            f"model_type is {family.model_type}, processor_class {family.processor_class} and image_processor_type "
            f"{family.image_processor_type}"
            for family in FAMILIES.values()
        )
        raise ConfigError(
            f"{directory / name if name not in FILES else _file(path)} cannot be read by transformers {__version__}, "
            f"which says {type(error).__name__}: {' '.join(str(error).split())[:200]}; in what can be trained "
            f"{known}"
        ) from error
    if kind is AutoProcessor and type(processor).__name__ != (wanted := family_of(path).processor_class):
        raise ConfigError(f"{_file(path)}: processor_class must be {wanted}, got {type(processor).__name__}")
    return processor


def is_recurrent(path: str | Path) -> bool:
    """Return whether layers of a model carry a state in the place of attention; False where it is not there yet."""
    return (Path(path) / "config.json").exists() and family_of(path).recurrent


def image_numbers(processor: Any, path: str | Path) -> ImageNumbers:
    """Return the numbers of an image processor that came from a checkpoint."""
    said, file = processor.to_dict(), _file(path)
    for step in STEPS:
        if said.get(step) is not True:
            raise ConfigError(f"{file}: {step} must be true, got {said.get(step)!r}")
    if said.get("resample") != PILImageResampling.BICUBIC:
        raise ConfigError(f"{file}: resample must be 3 (BICUBIC), got {said.get('resample')!r}")
    size = said.get("size")
    edges = size if isinstance(size, Mapping) else {}
    least, most = (_limit(size, edge, file) for edge in EDGES)
    patch, merge, frames = (_whole(said, key, file) for key in ("patch_size", "merge_size", "temporal_patch_size"))
    if most < max(least, (patch * merge) ** 2):
        raise ConfigError(
            f"{file}: max_pixels={most} must not be below min_pixels={least}, nor below {(patch * merge) ** 2}, the "
            "pixels of one token"
        )
    return ImageNumbers(
        PatchSettings(patch, merge, least, most),
        frames,
        rescale_factor=_numbers(said, "rescale_factor", 1, file)[0],
        mean=_numbers(said, "image_mean", 3, file),
        std=_numbers(said, "image_std", 3, file),
        missing_limits={"min_pixels": least, "max_pixels": most} if None in map(edges.get, EDGES) else {},
    )


def _file(path: str | Path) -> Path:
    """Return the file that says how images are processed, for messages."""
    directory = checkpoint_directory(path)
    for name in FILES:
        try:
            content = json.loads((directory / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if name == FILES[1] or (isinstance(content, dict) and "image_processor" in content):
            return directory / name
    return directory / FILES[1]


def _limit(size: object, edge: str, file: Path) -> int:
    if isinstance(size, Mapping):
        size = {key: number for key, number in size.items() if number is not None}
    value = size.get(edge, size.get(EDGES[edge])) if isinstance(size, Mapping) else None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(
            f"{file}: size must hold {edge} or {EDGES[edge]} (or {EDGES[edge]} must stand beside it), a whole number "
            f"of pixels above 0, got {value!r} in size={size}"
        )
    return value


def _whole(said: Mapping[str, object], key: str, file: Path) -> int:
    value = said.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{file}: {key} must be a whole number above 0, got {value!r}")
    return value


def _numbers(said: Mapping[str, object], key: str, count: int, file: Path) -> tuple[float, ...]:
    value, above = said.get(key), -1.0 if key == "image_mean" else 0.0  # pixels are divided by the others
    found = list(value) if isinstance(value, list | tuple) else [value]
    numbers = [each for each in found if isinstance(each, int | float) and not isinstance(each, bool)]
    if not len(numbers) == len(found) == count or not all(above < number <= float_info.max for number in numbers):
        raise ConfigError(f"{file}: {key} must be {count} numbers above {above:g}, got {value!r}")
    return tuple(map(float, numbers))
