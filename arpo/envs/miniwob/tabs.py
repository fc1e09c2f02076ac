"""The browser of this process and its tabs: a page that one environment has loaded serves the next that wants it."""

import atexit
import threading
import time
from functools import cache

from arpo.envs.miniwob.chromium import Browser, ChromiumError
from arpo.envs.miniwob.tab import Geometry, Tab
from arpo.errors import EnvError

RELOADED_PAGES = {
    *("book-flight", "book-flight-nodelay", "choose-date", "choose-date-easy", "choose-date-medium"),
    *("hot-cold", "scroll-text", "scroll-text-2", "use-colorwheel", "use-colorwheel-2"),
}
"""Pages that carry traces of an episode into the next one: loaded anew for every episode."""

LOADS = threading.BoundedSemaphore(4)
"""Pages of this process that load at the same time: a browser that loads sixty at once finishes none in time."""


class LoadedTabs:
    """Tabs with a page in them that no episode uses; environments of one kind share them, each in its own thread.

    Restarting a loaded page costs an eighth of loading it. An environment that kept its own tabs would find the page
    of its next task in few of them; all environments together have every page open several times. Their one browser
    is started for the first tab, replaced when it has died, and closed with the last tab.
    """

    def __init__(self, executable: str, geometry: Geometry, renderers: int) -> None:
        self._executable = executable
        self._geometry = geometry
        self._renderers = renderers
        self._lock = threading.Lock()
        self._idle: list[Tab] = []  # the longest unused first
        self._browser: Browser | None = None
        self._open = 0
        self._room = 0
        atexit.register(self._close_browser)

    def join(self, tabs: int) -> None:
        """Make room for so many more tabs, those in use included."""
        with self._lock:
            self._room += tabs

    def leave(self, tabs: int) -> None:
        """Take that room back, and close what is too many."""
        with self._lock:
            self._room -= tabs
            surplus = [self._idle.pop(0) for _ in range(min(len(self._idle), self._open - self._room))]
        for tab in surplus:
            self.close(tab)

    def take(self, page: str, timeout_s: float) -> Tab:
        """Return a tab that shows the page: one where it is loaded, else a new one, else the longest unused.

        It may take `timeout_s` to load; waiting for a turn to load comes on top.
        """
        with self._lock:  # those that share the next browser must not wait for tabs of one that is gone
            dead = [tab for tab in self._idle if not tab.browser.alive]
            self._idle = [tab for tab in self._idle if tab.browser.alive]
            tab = next((tab for tab in reversed(self._idle) if tab.page == page), None)
            if tab is not None:
                self._idle.remove(tab)
        for each in dead:
            self.close(each)
        if tab is not None and page not in RELOADED_PAGES:
            return tab
        with LOADS:
            deadline = time.monotonic() + timeout_s
            if tab is None:
                with self._lock:
                    tab = self._idle.pop(0) if self._idle and self._open >= self._room else None
            tab = tab or self._new(deadline)
            try:
                tab.load(page, deadline)
            except (EnvError, ChromiumError):
                self.close(tab)  # half a page must not be taken for one
                raise
        return tab

    def give(self, tab: Tab) -> None:
        """Take back a tab whose page is as it should be."""
        with self._lock:
            self._idle.append(tab)

    def close(self, tab: Tab) -> None:
        """Close a tab that was taken, and the browser with the last one."""
        tab.close()
        self._count_out()

    def _count_out(self) -> None:
        with self._lock:
            self._open -= 1
            if not self._open:
                self._close_browser()

    def _close_browser(self) -> None:
        if self._browser is not None:
            self._browser.close()
            self._browser = None

    def _new(self, deadline: float) -> Tab:
        with self._lock:
            if self._browser is None or not self._browser.alive:
                self._close_browser()
                self._browser = Browser(self._executable, renderers=self._renderers)
            browser = self._browser
            self._open += 1
        try:
            return Tab(browser, self._geometry, deadline)
        except BaseException:
            self._count_out()
            raise


loaded_tabs = cache(LoadedTabs)
"""The tabs that environments of one kind share in this process."""
