"""The Chromium of this machine; set-up looks for it too, with nothing but the standard library."""

import os
import shutil

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
