"""Check the shapes in the annotations of `arpo.algorithms` at every call, in tests only."""

from collections.abc import Iterator

import jaxtyping
import pytest

jaxtyping.install_import_hook(["arpo.algorithms"], "beartype.beartype")


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switch the annotation checks off, as in production, to see our own messages for wrong names."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
