"""Items that one thread makes while another one uses the first of them."""

import threading
from collections.abc import Generator
from concurrent.futures import Future, wait
from contextlib import closing
from typing import Generic, TypeVar

from arpo.host.threads import DaemonThread

_T = TypeVar("_T")


class PrefetchBuffer(Generic[_T]):
    """A growing list; a daemon thread takes its items from an iterator until the end, an error or `close`.

    Args:
        source: Makes the items, and is closed, in the thread.
        name: Of the thread.
    """

    def __init__(self, source: Generator[_T], name: str) -> None:
        self._source = source
        self._items: list[_T] = []
        self._closed = threading.Event()
        self._changed = threading.Condition()
        self._thread = DaemonThread(name)
        self._end = self._thread.submit(self._take_all)
        self._end.add_done_callback(self._wake)

    def first(self, count: int | None = None) -> list[_T]:
        """Wait for the first items and return them; fewer where there are fewer, and all of them for None."""
        with self._changed:
            self._changed.wait_for(lambda: self._end.done() or (count is not None and len(self._items) >= count))
            if count is None or len(self._items) < count:
                self._end.result()
            return self._items[:count]

    def close(self) -> None:
        """Take nothing more, and wait until the source is closed; idempotent."""
        self._closed.set()
        wait([self._end])
        self._thread.stop()

    def _take_all(self) -> None:
        with closing(self._source) as source:
            for item in source:
                with self._changed:
                    self._items.append(item)
                    self._changed.notify_all()
                if self._closed.is_set():
                    break

    def _wake(self, _: Future[object]) -> None:
        with self._changed:
            self._changed.notify_all()
