"""A thread that runs one function after the other and never holds up the end of the process."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from arpo.errors import ArpoError, env_boundary


class DaemonThread:
    """A thread that runs functions one after the other: browser drivers demand to be called from one thread.

    Unlike a thread of an executor it never holds up the end of the process, even when a function does not return.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[object], Callable[[], object]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, function: Callable[[], object]) -> "Future[object]":
        """Queue a function; the future gives what it returns, or the `ArpoError` that it raises."""
        future: Future[object] = Future()
        self._jobs.put((future, function))
        return future

    def stop(self) -> None:
        """End the thread after what is queued."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                with env_boundary("crash", "environment thread"):
                    future.set_result(function())
            except ArpoError as error:
                future.set_exception(error)
