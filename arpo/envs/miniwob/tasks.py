"""The pages of MiniWoB++ and tasks from them: a task is a page and a seed."""

import random
from collections.abc import Iterable, Mapping
from functools import cache

from arpo.envs.web import pages_directory
from arpo.errors import ConfigError, TaskFormatError
from arpo.types import Task

LEFT_OUT = frozenset(("button-delay", "chase-circle", "hover-shape", "moving-items", "simon-says"))
"""Pages of the wheel that live on timing."""


@cache
def known_pages() -> tuple[str, ...]:
    """Return the 125 pages that MiniWoB++ registers as environments, flights aside."""
    return tuple(sorted({path.stem for path in pages_directory().glob("*.html")} - LEFT_OUT))


def miniwob_tasks(pages: Iterable[str], seeds: Iterable[int]) -> list[Task]:
    """Return one task for every page and seed, page by page."""
    numbers = list(seeds)
    return [miniwob_task(page, seed) for page in pages for seed in numbers]


def miniwob_shares(pages: Iterable[str], shares: Mapping[str, float], usual: int, first_seed: int) -> list[Task]:
    """Return as many tasks of every page as its share of the usual number says, with seeds from the first one on.

    A page that has no share has 1; there may be shares of other pages, too.
    """
    for page in shares:
        _check_page(page)
    counts = {page: round(usual * shares.get(page, 1.0)) for page in pages}
    if empty := sorted(page for page, count in counts.items() if count < 1):
        raise ConfigError(f"no task is left of {', '.join(empty)}: raise usual={usual} or their shares")
    return [miniwob_task(page, first_seed + number) for page, count in counts.items() for number in range(count)]


def miniwob_sample(pages: Iterable[str], seeds: Iterable[int], per_page: int, seed: int = 0) -> list[Task]:
    """Return one task for every page and each of `per_page` seeds, drawn for each page from all of them."""
    numbers = list(seeds)
    if per_page > len(numbers):
        raise ConfigError(f"per_page={per_page} is more than the {len(numbers)} seeds there are to draw from")
    return [
        miniwob_task(page, number)
        for page in pages
        for number in sorted(random.Random(f"{seed}/{page}").sample(numbers, per_page))
    ]


def miniwob_task(page: str, seed: int) -> Task:
    """Return the task of one page and seed; the page itself gives the instruction when it is reset."""
    _check_page(page)
    return Task(f"miniwob/{page}/{seed}", "", page, {"page": page, "seed": seed})


def _check_page(page: str) -> None:
    if page not in known_pages():
        raise TaskFormatError(f"no MiniWoB++ page {page!r}; the pages are: {', '.join(known_pages())}")
