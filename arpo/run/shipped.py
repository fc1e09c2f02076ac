"""Policies of warm starts that come with the code (`experiments/warmstarts/`), so that training begins at once.

Their weights are rounded to float16, in half the space; a run gets them in float32.
"""

import hashlib
import json
import logging
import shutil
from pathlib import Path

from arpo.errors import ConfigError
from arpo.host.files import atomically

log = logging.getLogger(__name__)

SHIPPED = Path(__file__).parent.parent.parent / "experiments" / "warmstarts"
MADE = "made.json"
"""Beside each policy: the command, commit and machine that made it, and the SHA-256 of its weights."""
WEIGHTS = "model.safetensors"


def unpack(warmstart: str, directory: Path) -> bool:
    """Write the policy that comes with the code for this warm start to a directory; return whether there is one.

    Raises:
        ConfigError: When its weights are not those that were made.
    """
    shipped = SHIPPED / warmstart
    if not (shipped / MADE).is_file():
        return False
    from safetensors.torch import load, save_file  # torch takes seconds

    made = json.loads((shipped / MADE).read_text(encoding="utf-8"))
    weights = (shipped / WEIGHTS).read_bytes()
    if hashlib.sha256(weights).hexdigest() != made["sha256"]:
        raise ConfigError(
            f"{shipped / WEIGHTS} is damaged: its SHA-256 is not that of {MADE} beside it. Check it out again, or "
            f"make it again, which takes some minutes: python train.py experiment={warmstart}"
        )
    with atomically(directory) as partial:
        shutil.copytree(shipped, partial)
        save_file(
            {name: tensor.float() for name, tensor in load(weights).items()}, partial / WEIGHTS, {"format": "pt"}
        )
    log.info("starting from the policy in %s; %s makes it again", shipped, f"python train.py experiment={warmstart}")
    return True
