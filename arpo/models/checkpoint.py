"""The files of a checkpoint: weights, read one by one and written while they arrive, and the settings beside them.

An export has the settings in the forms of transformers 4 and 5 at once: each reads what it knows. Version 5 renames
what version 4 reads and then fills in by its defaults, silently: the base of the rotations, and how they are shared
out among time, row and column.
"""

import json
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig

from arpo.errors import ConfigError
from arpo.models.family import checkpoint_directory, family_of

HEAD = "lm_head.weight"
"""The output layer, which is in a checkpoint only where the model does not share it with the embedding."""

FILE_BYTES = 4 * 2**30
"""Of a file at most, unless a single tensor is larger."""

COMPANIONS = (
    "*token*",
    "*processor_config.json",
    "chat_template*",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
)
"""Files of a checkpoint that training leaves as they are."""

TOKENIZERS = {"TokenizersBackend": "PreTrainedTokenizerFast"}
"""Version 5's names of classes, by which version 4 finds nothing; 5 knows both."""


class CheckpointWeights:
    """The tensors of a checkpoint by their names there or in its model, each read when it is asked for."""

    def __init__(self, path: str | Path) -> None:
        self.directory = checkpoint_directory(path)
        files = sorted(self.directory.glob("*.safetensors"))
        if not files:
            raise ConfigError(f"no *.safetensors in '{self.directory}'; point path at a from_pretrained directory")
        family = family_of(self.directory)
        self.published = family.checkpoint_name
        unused = re.compile("|".join(family.model_class._keys_to_ignore_on_load_unexpected or ["(?!)"]))
        self._places: dict[str, tuple[Path, str]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        """The shape of each by its published name."""
        for file in files:
            with safe_open(file, framework="pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118 - not a mapping
                    if unused.search(key):  # of a head that guesses further tokens, which the model class leaves out
                        continue
                    self._places[self.published(key)] = file, key
                    self.shapes[self.published(key)] = tuple(tensors.get_slice(key).get_shape())

    def __getitem__(self, name: str) -> Tensor:
        name = self.published(name)
        if name not in self._places:
            raise ConfigError(f"'{self.directory}' has no weight {name}: it is not a checkpoint of this model")
        file, key = self._places[name]
        with safe_open(file, framework="pt") as tensors:
            tensor: Tensor = tensors.get_tensor(key)
        return tensor


def update_numbers(path: str | Path, lora_rank: int | None = None) -> int:
    """Return the size of a weight update in numbers: of all weights, or of adapters of the blocks' linear layers."""
    shapes = CheckpointWeights(path).shapes
    if lora_rank is None:
        return sum(math.prod(shape) for shape in shapes.values())
    adapted = (shape for name, shape in shapes.items() if ".layers." in name and len(shape) == 2)
    return sum(lora_rank * sum(shape) for shape in adapted)


def model_without_weights(path: str | Path, attention: str) -> Any:
    """Return the model of a checkpoint with all parameters on the meta device; its buffers are real."""
    kind, config = family_of(path).model_class, AutoConfig.from_pretrained(path)
    with init_empty_weights(include_buffers=False):
        model = kind._from_config(config, attn_implementation=attention, dtype=torch.float32)
    model.tie_weights()  # putting a parameter on the meta device made two of a shared one
    return model


def write_checkpoint(
    tensors: Iterable[tuple[str, Tensor]], dtype: str, base: Path, directory: Path, file_bytes: int = FILE_BYTES
) -> None:
    """Write a checkpoint that vLLM and `from_pretrained` load, of transformers 4 as of 5.

    Tensors are taken one at a time; settings, tokenizer and processor are those of the checkpoint `base`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_config(json.loads((base / "config.json").read_text(encoding="utf-8")), dtype, directory)
    write_weights(tensors, directory, file_bytes)
    mode = (directory / "config.json").stat().st_mode
    for weights in directory.glob("*.safetensors"):
        weights.chmod(mode)  # safetensors writes for the owner alone, whatever the umask says
    for pattern in COMPANIONS:
        for file in base.glob(pattern):
            shutil.copy(file, directory)
    complete_companions(directory)


def write_weights(tensors: Iterable[tuple[str, Tensor]], directory: Path, file_bytes: int = FILE_BYTES) -> None:
    """Write tensors, taken one at a time, as `from_pretrained` and vLLM read them.

    The files are `model*.safetensors` and, with several, their index; one's worth is in memory at a time.
    """
    written: list[tuple[Path, list[str]]] = []
    total = 0
    for content in _files(tensors, file_bytes):
        path = directory / f"{len(written)}.safetensors"
        save_file(content, path, metadata={"format": "pt"})
        written.append((path, list(content)))
        total += sum(tensor.nbytes for tensor in content.values())
    if len(written) == 1:
        written[0][0].rename(directory / "model.safetensors")
        return
    places: dict[str, str] = {}
    for number, (path, names) in enumerate(written, 1):  # how many there are is in every name
        final = path.rename(directory / f"model-{number:05d}-of-{len(written):05d}.safetensors")
        places |= dict.fromkeys(names, final.name)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")


def _files(tensors: Iterable[tuple[str, Tensor]], file_bytes: int) -> Iterator[dict[str, Tensor]]:
    content: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        if content and size + tensor.nbytes > file_bytes:
            yield content
            content.clear()  # its writer holds the same dictionary
            size = 0
        content[name] = tensor.cpu().contiguous()
        size += tensor.nbytes
    yield content


def write_config(base: Mapping[str, Any], dtype: str, directory: Path) -> None:
    """Write `config.json`: that of the base, flat or nested, for weights of another number format, as `bfloat16`."""
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
    """Return the content of a JSON file; nothing where it is missing or damaged, and the base loads without it."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
