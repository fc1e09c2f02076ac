"""The tiny tokenizers with the templates of tools and thoughts, and the table of the harnesses that were tried."""

import pytest

from tests.endpoint.conftest import chats  # noqa: F401 - a fixture
from tests.harnesses.make import CACHE


@pytest.fixture(scope="session")
def table():
    """Collect the cells of each agent's row by title; the table is written beside the environments."""
    rows = {}
    yield rows
    titles = list(max(rows.values(), key=len, default={}))
    lines = [titles, ["---"] * len(titles), *([row.get(title, "–") for title in titles] for row in rows.values())]
    if rows:
        (CACHE / "table.md").write_text("".join(f"| {' | '.join(line)} |\n" for line in lines), encoding="utf-8")
