"""What tests need that drive a real browser."""

import pytest

from arpo.envs.web import find_chromium
from arpo.errors import ConfigError


def chromium_is_missing() -> bool:
    """Return whether this machine has no Chromium that tests could start."""
    try:
        find_chromium()
    except ConfigError:
        return True
    return False


needs_chromium = pytest.mark.skipif(chromium_is_missing(), reason="no Chromium in PATH and no ARPO_CHROMIUM")
"""The mark of a test that starts Chromium."""
