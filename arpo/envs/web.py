"""The Chromium of this machine and the pages of MiniWoB++; set-up looks too, with the standard library alone."""

import importlib.util
import os
import shutil
from functools import cache
from pathlib import Path

from arpo.errors import ConfigError

EXECUTABLES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""Looked up in PATH, in this order: the headless shell needs half the processor time and half the memory."""


def find_chromium(executable: str | None = None) -> str:
    """Return the path of a Chromium: the argument, `ARPO_CHROMIUM`, or the first one in PATH."""
    asked = executable or os.environ.get("ARPO_CHROMIUM")
    for name in (asked,) if asked else EXECUTABLES:
        if path := shutil.which(name):
            return path
    raise ConfigError(
        f"no Chromium found: looked for {asked or ', '.join(EXECUTABLES)} in PATH; install one "
        "(`apt-get install chromium-headless-shell` or `apt-get install chromium`) or point ARPO_CHROMIUM at it"
    )


@cache
def pages_directory() -> Path:
    """Return the directory of the page files in the `miniwob` wheel, without importing the package."""
    spec = importlib.util.find_spec("miniwob")  # importing it would pull in gymnasium and selenium
    locations = spec.submodule_search_locations if spec else None
    if not locations:
        raise ConfigError("the MiniWoB++ pages are not installed: `pip install --no-deps miniwob`")
    return Path(next(iter(locations))) / "html" / "miniwob"
