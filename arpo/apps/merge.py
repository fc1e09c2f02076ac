"""The weighted mean of policies' weights: python -m arpo merge A/policy=0.5 B/policy=0.5 --to C (arXiv 2509.02544)."""

import argparse
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from arpo.errors import ConfigError
from arpo.host.files import atomically
from arpo.models.checkpoint import CheckpointWeights, completed_config, write_checkpoint
from arpo.models.processor import image_numbers, load_processor

log = logging.getLogger(__name__)

FILE_BYTES = 2**30
"""Of a file at most, which is also what is in memory beside one tensor of each policy."""
MOST_SHOWN = 5
VOCABULARY = ("tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json")
OF_NO_MODEL = ("_name_or_path", "_from_model_config", "transformers_version", "dtype", "torch_dtype")
"""Keys of a configuration that say nothing of a model; number formats are those of tensors."""


def main(arguments: Sequence[str]) -> int:
    """Write the weighted mean of policies and return the exit status."""
    asked = parser().parse_args(arguments)
    try:
        merge(asked.policies, asked.to)
    except OSError as error:
        raise ConfigError(f"cannot write {asked.to}: {error}; name another folder with --to") from error
    log.info("the mean of %d policies is in %s; evaluate.py takes it as checkpoint=…", len(asked.policies), asked.to)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="python -m arpo merge", description="Write the weighted mean of policies.")
    policies = "the folder of a policy and its weight, such as outputs/a/policy=0.5; weights add up to 1"
    made.add_argument("policies", nargs="+", type=_share, metavar="POLICY=WEIGHT", help=policies)
    made.add_argument("--to", type=Path, required=True, help="the folder to write")
    return made


def _share(word: str) -> tuple[Path, float]:
    path, _, weight = word.rpartition("=")  # a folder may have = in its name
    if not path:
        raise argparse.ArgumentTypeError(f"{word!r} is no POLICY=WEIGHT, such as outputs/a/policy=0.5")
    try:
        return Path(path), float(weight)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{weight!r} is no number, in {word!r}") from None


def merge(shares: Sequence[tuple[Path, float]], directory: Path) -> None:
    """Write θ = Σ α_k θ_k of policies that began as one, whole or not at all.

    It is computed in float32, tensor by tensor, and written in the number format of each. Configuration, tokenizer and
    processor are those of the first policy. A share is the directory of a policy, as `from_pretrained` loads it, or of
    what has that in `policy/`, and its α.
    """
    if len(shares) < 2:
        raise ConfigError(f"name at least two policies, as A=0.5 B=0.5; got {len(shares)}")
    for path, share in shares:
        if not 0 < share < math.inf:
            raise ConfigError(f"the weight of {path} must be above 0, got {share}")
    if not math.isclose(total := sum(share for _, share in shares), 1, abs_tol=1e-6):
        raise ConfigError(f"the weights of policies must add up to 1, and these add up to {total:g}")
    if directory.exists():
        raise ConfigError(f"{directory} exists: name another folder with --to, or delete that one")
    folders = [_policy_in(path) for path, _ in shares]
    first = _described(folders[0])
    for folder in folders[1:]:
        other = _described(folder)
        if found := [key for file in first if file in other for key in _differing(first[file], other[file], file)]:
            more = f" and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
            raise ConfigError(
                f"{folders[0]} and {folder} are no policies of one model: they differ in "
                f"{', '.join(found[:MOST_SHOWN])}{more}"
            )
    config = _read(folders[0] / "config.json")
    with atomically(directory) as partial:
        policies = [CheckpointWeights(folder) for folder in folders]
        means = ((name, _mean(name, policies, [share for _, share in shares])) for name in policies[0].shapes)
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32")
        write_checkpoint(means, dtype, folders[0], partial, FILE_BYTES)


def _policy_in(path: Path) -> Path:
    for folder in (path, path / "policy"):
        if (folder / "config.json").is_file():
            return folder
    raise ConfigError(
        f"{path} holds no policy: name a folder with config.json and *.safetensors, such as evaluate.py writes with "
        "export=DIR"
    )


def _described(folder: Path) -> dict[str, Any]:
    """Return all in which policies of one model are alike, by file."""
    try:
        shapes = CheckpointWeights(folder).shapes
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"a file of {folder} cannot be read: {error}") from error
    vocabulary = {name: json.dumps(_read(folder / name)) for name in VOCABULARY if (folder / name).is_file()}
    sampling = {name: _read(folder / name) for name in ("generation_config.json",) if (folder / name).is_file()}
    # The rules by which screens and words become inputs, as transformers reads them from files of any form.
    processor = load_processor(folder)
    tokenizer = processor.tokenizer
    return {
        "config.json": completed_config(_read(folder / "config.json")),
        "weights": shapes,
        **vocabulary,
        **sampling,
        "images": asdict(replace(image_numbers(processor.image_processor, folder), missing_limits={})),
        "chat template": processor.chat_template or tokenizer.chat_template,
        "special tokens": tokenizer.get_added_vocab() | {"end": tokenizer.eos_token, "padding": tokenizer.pad_token},
    }


def _differing(one: Any, other: Any, key: str) -> Iterator[str]:
    """Yield the keys in which two values differ."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in sorted({*one, *other} - set(OF_NO_MODEL)):
            yield from _differing(one.get(name), other.get(name), f"{key}: {name}")
    elif one != other:
        yield key


def _mean(name: str, policies: Sequence[CheckpointWeights], shares: Sequence[float]) -> Tensor:
    """Return the mean of one weight, of which no more than two policies' are in memory."""
    first = policies[0][name]
    total = first.float() * shares[0]
    for policy, share in zip(policies[1:], shares[1:], strict=True):
        other = policy[name]
        if other.dtype != first.dtype:
            raise ConfigError(
                f"{name} is {first.dtype} in {policies[0].directory} and {other.dtype} in {policy.directory}: export "
                "both alike"
            )
        total.add_(other.float(), alpha=share)
    if not bool(total.isfinite().all()):
        raise ConfigError(f"the mean of {name} is not finite: one of the policies has diverged; evaluate them first")
    return total.to(first.dtype)


def _read(file: Path) -> Any:
    """Return the content of a JSON file, or of a text."""
    try:
        text = file.read_text(encoding="utf-8")
        return json.loads(text) if file.suffix == ".json" else text
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
