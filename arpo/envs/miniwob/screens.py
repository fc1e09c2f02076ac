"""First screenshots of tasks, which are the same whenever the same page starts with the same seed."""

import threading
from collections import OrderedDict
from typing import Any


class FirstScreens:
    """First screenshots by page, seed and geometry, the least recently used dropped; shared by a process's tabs.

    A page is a function of its seed, so the members of a group all start from the same pixels.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._screens: OrderedDict[tuple[Any, ...], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[Any, ...]) -> bytes | None:
        """Return the screenshot, if it was kept."""
        with self._lock:
            if key in self._screens:
                self._screens.move_to_end(key)
            return self._screens.get(key)

    def put(self, key: tuple[Any, ...], png: bytes) -> None:
        """Keep a screenshot."""
        with self._lock:
            self._screens[key] = png
            while len(self._screens) > self._capacity:
                self._screens.popitem(last=False)

    def clear(self) -> None:
        """Forget every screenshot."""
        with self._lock:
            self._screens.clear()


FIRST_SCREENS = FirstScreens(capacity=1024)
