"""Fingerprints of how an episode was sampled: a stored episode stands for a new one only where the digests agree."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from arpo.agent.prompt import Prompt
from arpo.rollout.episode import EpisodeSpec
from arpo.rollout.settings import MAX_ACTIONS

BLOCK = 4096
"""Bytes that are read at one place of a file."""
PLACES = 256
"""Places at which a file is read, so that 15 GB of weights take no longer than a tokenizer."""


def sampling_fingerprint(spec: EpisodeSpec, prompt: Prompt, model: str) -> str:
    """Return a digest of everything but task, seed and weights that decides how an episode is sampled.

    Args:
        spec: Its limits, temperature, protocol and window count; its id, task and seed stand in the record themselves.
        prompt: How the task is put to the policy.
        model: What `model_fingerprint` says about the checkpoint that the policy started from.
    """
    limits = ("max_steps", "max_context", "max_tokens", "temperature", "protocol")
    how = {name: getattr(spec, name) for name in limits} | {"prompt": asdict(prompt), "model": model}
    if spec.image_window is not None:  # without one, records from before there were windows stay good
        how["image_window"] = spec.image_window
    if spec.max_actions != MAX_ACTIONS:  # likewise from before there was a bound
        how["max_actions"] = spec.max_actions
    return hashlib.sha256(json.dumps(how, sort_keys=True).encode()).hexdigest()[:16]


def model_fingerprint(path: str | Path) -> str:
    """Return a digest of a checkpoint directory by its content, wherever it lies; a hub name stands for itself.

    Of every file it takes the name, the size and blocks at regular distances. Training changes nearly every weight,
    so it tells two policies apart, though not two files that differ in one byte.
    """
    directory = Path(path)
    if not directory.is_dir():
        return str(path)
    digest = hashlib.sha256()
    for file in sorted(entry for entry in directory.iterdir() if entry.is_file()):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as opened:
            for place in range(0, size, max(BLOCK, size // PLACES)):
                opened.seek(place)
                digest.update(opened.read(BLOCK))
    return digest.hexdigest()[:16]
