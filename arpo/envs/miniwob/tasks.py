"""The pages of MiniWoB++ and tasks from them: a task is a page and a seed."""

import importlib.util
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from arpo.errors import ConfigError, TaskFormatError
from arpo.types import Task

SOLVABLE_PAGES = (
    "ascending-numbers",
    "choose-list",
    "click-button",
    "click-button-sequence",
    "click-checkboxes",
    "click-checkboxes-large",
    "click-checkboxes-soft",
    "click-checkboxes-transfer",
    "click-collapsible",
    "click-collapsible-nodelay",
    "click-color",
    "click-dialog",
    "click-dialog-2",
    "click-link",
    "click-option",
    "click-shades",
    "click-tab",
    "click-tab-2",
    "click-tab-2-easy",
    "click-tab-2-hard",
    "click-tab-2-medium",
    "click-test",
    "click-test-2",
    "click-test-transfer",
    "click-widget",
    "copy-paste",
    "drag-box",
    "enter-date",
    "enter-password",
    "enter-text",
    "enter-text-2",
    "enter-text-dynamic",
    "enter-time",
    "find-greatest",
    "find-word",
    "focus-text",
    "focus-text-2",
    "generate-number",
    "grid-coordinate",
    "highlight-text",
    "identify-shape",
    "login-user",
    "odd-or-even",
    "read-table",
    "scroll-text-2",
    "simple-algebra",
    "simple-arithmetic",
    "text-transform",
    "unicode-test",
    "use-autocomplete",
    "use-autocomplete-nodelay",
    "use-slider",
    "use-spinner",
)
"""The pages that solutions.js has a script for."""

PAGES = tuple(
    sorted(
        (
            *SOLVABLE_PAGES,
            "bisect-angle",
            "book-flight",
            "book-flight-nodelay",
            "buy-ticket",
            "choose-date",
            "choose-date-easy",
            "choose-date-medium",
            "choose-date-nodelay",
            "circle-center",
            "click-collapsible-2",
            "click-collapsible-2-nodelay",
            "click-menu",
            "click-menu-2",
            "click-pie",
            "click-pie-nodelay",
            "click-scroll-list",
            "click-shape",
            "copy-paste-2",
            "count-shape",
            "count-sides",
            "daily-calendar",
            "drag-circle",
            "drag-cube",
            "drag-items",
            "drag-items-grid",
            "drag-shapes",
            "drag-shapes-2",
            "drag-single-shape",
            "drag-sort-numbers",
            "draw-circle",
            "draw-line",
            "email-inbox",
            "email-inbox-delete",
            "email-inbox-forward",
            "email-inbox-forward-nl",
            "email-inbox-forward-nl-turk",
            "email-inbox-important",
            "email-inbox-nl-turk",
            "email-inbox-noscroll",
            "email-inbox-reply",
            "email-inbox-star-reply",
            "find-midpoint",
            "form-sequence",
            "form-sequence-2",
            "form-sequence-3",
            "guess-number",
            "highlight-text-2",
            "hot-cold",
            "login-user-popup",
            "multi-layouts",
            "multi-orderings",
            "navigate-tree",
            "number-checkboxes",
            "order-food",
            "phone-book",
            "read-table-2",
            "resize-textarea",
            "right-angle",
            "scroll-text",
            "search-engine",
            "sign-agreement",
            "social-media",
            "social-media-all",
            "social-media-some",
            "stock-market",
            "terminal",
            "text-editor",
            "tic-tac-toe",
            "use-colorwheel",
            "use-colorwheel-2",
            "use-slider-2",
            "visual-addition",
        )
    )
)
"""The 125 pages that MiniWoB++ registers as environments, flights aside. The wheel has five more that live on
timing: button-delay, chase-circle, hover-shape, moving-items and simon-says."""


@cache
def pages_directory() -> Path:
    """Return the directory of the page files in the `miniwob` wheel, without importing the package.

    Raises:
        ConfigError: If the wheel is not installed.
    """
    spec = importlib.util.find_spec("miniwob")  # importing it would pull in gymnasium and selenium
    locations = spec.submodule_search_locations if spec else None
    if not locations:
        raise ConfigError("the MiniWoB++ pages are not installed: `pip install --no-deps miniwob`")
    return Path(next(iter(locations))) / "html" / "miniwob"


def miniwob_tasks(pages: Iterable[str], seeds: Iterable[int]) -> list[Task]:
    """Return one task for every page and seed, page by page.

    Raises:
        TaskFormatError: If a page does not exist.
    """
    numbers = list(seeds)
    return [miniwob_task(page, seed) for page in pages for seed in numbers]


def miniwob_task(page: str, seed: int) -> Task:
    """Return the task of one page and seed; the page itself gives the instruction when it is reset.

    Raises:
        TaskFormatError: If the page does not exist.
    """
    if page not in PAGES:
        raise TaskFormatError(f"no MiniWoB++ page {page!r}; the pages are: {', '.join(PAGES)}")
    config = {"page": page, "seed": seed}
    return Task(id=f"miniwob/{page}/{seed}", instruction="", domain=page, config=config)
