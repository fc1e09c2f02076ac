"""The marks by which a session finds what belongs to it, and by which its children find the session."""

import os
from pathlib import Path

LABEL_VARIABLE = "ARPO_SESSION"
"""Marks the processes of a session."""
DIRECTORY_VARIABLE = "ARPO_SESSION_DIR"
"""Leads every process of a session to its directory."""
CONTAINERS_MARKER = "containers"
"""A file in the directory of a session that has started containers: without it, nobody asks an engine."""


def session_directory() -> Path | None:
    """Return the directory of the session that this process runs in, None outside of a session."""
    value = os.environ.get(DIRECTORY_VARIABLE)
    return Path(value) if value else None
