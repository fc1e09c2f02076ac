"""Checkpoint files of any size, written while tensors arrive: at most one file's worth is in memory."""

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

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


def write_weights(tensors: Iterable[tuple[str, Tensor]], directory: Path, file_bytes: int = FILE_BYTES) -> None:
    """Write tensors as `from_pretrained` and vLLM read them: safetensors files and, with several, their index.

    Args:
        tensors: Names and values, taken one at a time.
        directory: Where `model*.safetensors` go; it exists.
        file_bytes: Size of a file at most, unless a single tensor is larger.
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
            content.clear()  # the one who writes it holds the same dictionary
            size = 0
        content[name] = tensor.cpu().contiguous()
        size += tensor.nbytes
    yield content


def copy_companions(base: Path, directory: Path) -> None:
    """Copy what stands beside a checkpoint's weights, and let whoever may read its `config.json` read its weights."""
    mode = (directory / "config.json").stat().st_mode
    for weights in directory.glob("*.safetensors"):
        weights.chmod(mode)  # safetensors writes for the owner alone, whatever the umask says
    for pattern in COMPANIONS:
        for file in base.glob(pattern):
            shutil.copy(file, directory)
