"""Policies of warm starts that come with the code (`experiments/warmstarts/`), so that training begins at once.

Their weights are rounded to float16, in half the space; a run gets them in float32.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from arpo.errors import ConfigError
from arpo.host.files import atomically, take_lock

log = logging.getLogger(__name__)

SHIPPED = Path(__file__).parent.parent.parent / "experiments" / "warmstarts"
MADE = "made.json"
"""Beside each policy: the command, commit and machine that made it, and the SHA-256 of its files."""
WEIGHTS = "model.safetensors"
LOOK_S = 0.02
"""Between two looks whether another process has unpacked a policy."""


def unpack(warmstart: str, directory: Path) -> bool:
    """Write the policy that comes with the code for this warm start to a directory; return whether there is one.

    Of processes that do so at the same time, one does, and the others wait for it.
    """
    if not comes_with_the_code(warmstart):
        return False
    shipped = SHIPPED / warmstart
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _locked(directory.with_name(f"{directory.name}.lock")):
            if not (directory / "config.json").exists():
                _write(_checked(shipped), directory)
                again = f"python train.py experiment={warmstart}"
                log.info("starting from the policy in %s; %s makes it again", shipped, again)
    except OSError as error:
        raise ConfigError(f"the policy of {shipped} cannot be written to {directory}: {error}") from error
    return True


def comes_with_the_code(warmstart: str | None) -> bool:
    """Return whether the code has the policy of a warm start, though not its demonstrations."""
    return warmstart is not None and (SHIPPED / warmstart).is_dir()


def note_another(warmstart: str, directory: Path) -> None:
    """Warn where a directory holds what an earlier version of the code came with."""
    made, shipped = directory / MADE, SHIPPED / warmstart / MADE
    if made.is_file() and shipped.is_file() and made.read_bytes() != shipped.read_bytes():
        log.warning(
            "%s came with another version of the code; delete it to start from what is in %s now",
            directory,
            shipped.parent,
        )


def hashes(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a policy by its name."""
    files = sorted(path for path in directory.iterdir() if path.name != MADE)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _checked(shipped: Path) -> dict[str, bytes]:
    """Return the files of a policy that comes with the code by name."""
    if damage := _damage(shipped):
        raise ConfigError(
            f"{shipped} is damaged: {damage}. Check it out again, or make the policy again, which takes some minutes: "
            f"python train.py experiment={shipped.name}, with the same paths.output if you set one"
        )
    return {path.name: path.read_bytes() for path in shipped.iterdir()}


def _damage(shipped: Path) -> str:
    """Return what is wrong with a policy that comes with the code; empty where all is as it was made."""
    try:
        expected = json.loads((shipped / MADE).read_text(encoding="utf-8"))["sha256"].items()
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return f"{MADE} has no SHA-256 of its files ({error!r})"
    wrong = {name for name, _ in expected ^ hashes(shipped).items()}
    return f"{', '.join(sorted(wrong))}: not what {MADE} has the SHA-256 of" if wrong else ""


def _write(files: dict[str, bytes], directory: Path) -> None:
    from safetensors.torch import load, save  # torch takes seconds

    files[WEIGHTS] = save({name: tensor.float() for name, tensor in load(files[WEIGHTS]).items()}, {"format": "pt"})
    with atomically(directory) as partial:
        partial.mkdir()
        for name, content in files.items():
            (partial / name).write_bytes(content)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that no other process holds, however long one has to wait."""
    while (lock := take_lock(path)) is None:
        time.sleep(LOOK_S)
    try:
        yield
    finally:
        os.close(lock)
