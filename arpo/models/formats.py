"""The settings beside exported weights, in the forms of transformers 4 and 5 at once: each reads what it knows.

Version 5 renames what version 4 reads and then fills in by its defaults, silently: the base of the rotations, and how
they are shared out among time, row and column.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TOKENIZERS = {"TokenizersBackend": "PreTrainedTokenizerFast"}
"""Version 5's names of classes, by which version 4 finds nothing; 5 knows both."""


def write_config(base: Mapping[str, Any], dtype: str, directory: Path) -> None:
    """Write `config.json`: that of the base, for weights of another number format.

    Args:
        base: Content of the base's own file, flat or nested; training changes no other setting.
        dtype: Number format of the weights beside it, such as `bfloat16`.
        directory: Where the file goes.
    """
    config = completed_config(base) | {"dtype": dtype, "torch_dtype": dtype}
    for name in ("text_config", "vision_config"):
        if isinstance(part := config.get(name), Mapping):
            config[name] = dict(part) | {key: dtype for key in ("dtype", "torch_dtype") if key in part}
    _write(directory / "config.json", config)


def completed_config(base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of `config.json` with its rotations in the forms of both versions."""
    if isinstance(text := base.get("text_config"), Mapping):
        return dict(base) | {"text_config": _with_both_rotations(text)}
    return _with_both_rotations(base)


def complete_companions(directory: Path) -> None:
    """Add to a copy of a base's files what the other version of transformers looks for."""
    nested = _read(directory / "processor_config.json")
    for part, name in (("image_processor", "preprocessor_config"), ("video_processor", "video_preprocessor_config")):
        file = directory / f"{name}.json"
        if isinstance(content := nested.get(part), Mapping) and not _read(file):
            _write(file, dict(content) | {"processor_class": nested.get("processor_class")})
    file = directory / "preprocessor_config.json"
    if images := _read(file):
        _write(file, images | _both_limits(images))
    file = directory / "tokenizer_config.json"
    if tokenizer := _read(file):
        kind = tokenizer.get("tokenizer_class")
        tokenizer["tokenizer_class"] = TOKENIZERS.get(str(kind), kind)
        if isinstance(special := tokenizer.get("extra_special_tokens"), list):  # version 4 expects names of them
            del tokenizer["extra_special_tokens"]
            tokenizer["additional_special_tokens"] = special
        _write(file, tokenizer)


def _both_limits(images: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits of images by all their names: 4.49 reads pixels, 4.57 edges, and 5 either."""
    size = images.get("size")
    size = size if isinstance(size, Mapping) else {}
    least = images.get("min_pixels") or size.get("shortest_edge") or size.get("min_pixels")
    most = images.get("max_pixels") or size.get("longest_edge") or size.get("max_pixels")
    if least is None or most is None:
        return {}
    return {"min_pixels": least, "max_pixels": most, "size": {"shortest_edge": least, "longest_edge": most}}


def _with_both_rotations(text: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a language model with its rotations in both forms, whichever it has."""
    parameters = dict(text.get("rope_parameters") or {})
    theta = parameters.pop("rope_theta", None)
    theta = text.get("rope_theta") or theta
    scaling = text.get("rope_scaling") or parameters
    if not scaling or theta is None:  # a model without sections of time, row and column, or one that says nothing
        return dict(text)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    kind = "default" if kind == "mrope" else kind
    return dict(text) | {
        "rope_theta": theta,
        "rope_scaling": {"type": kind, "rope_type": kind} | scaling,  # what the base says stays
        "rope_parameters": {key: value for key, value in scaling.items() if key != "type"}
        | {"rope_type": kind, "rope_theta": theta},
    }


def _read(file: Path) -> dict[str, Any]:
    """Return what a file says; nothing where it is missing or damaged, and the base loads without it."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
