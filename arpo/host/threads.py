"""Threads that never hold up the end of the process, for functions and for an event loop; a signal on such a loop."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from arpo.errors import ArpoError, env_boundary

log = logging.getLogger(__name__)

_T = TypeVar("_T")

ANSWER_S = 5.0
"""Seconds within which a loop that is not blocked answers."""


class DaemonThread:
    """A thread that runs functions one after the other, and never holds up the end of the process, as executors do."""

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


class BackgroundLoop:
    """One event loop in one daemon thread, for the engine and the pool; waiting for it can be interrupted at once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    @property
    def running(self) -> bool:
        """Whether coroutines are taken: it was started, and nothing has ended it."""
        return self._loop is not None and not self._ended.is_set()

    def start(self) -> None:
        """Start the thread; idempotent."""
        if self._loop is None:
            self._loop, self._ended = asyncio.new_event_loop(), threading.Event()
            # A daemon: a second Ctrl-C must end the process even where an engine hangs in its last call.
            self._thread = threading.Thread(
                target=_serve, args=(self._loop, self._ended), name=self._name, daemon=True
            )
            self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Begin a coroutine and return the future of its result."""
        if self._loop is None or not self.running:
            coroutine.close()
            raise ArpoError(f"{self._name} does not run: call start() first, and nothing after close()")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Wait for a coroutine, and return or raise as it does."""
        return self.submit(coroutine).result()

    def answers(self) -> bool:
        """Return whether the loop runs and turns; a call that is no coroutine may block its thread."""
        if self._loop is None or not self.running:
            return False
        answered = threading.Event()
        with suppress(RuntimeError):  # its last callbacks have run, and its thread is about to end
            self._loop.call_soon_threadsafe(answered.set)
        return answered.wait(ANSWER_S)

    def close(self) -> None:
        """Cancel whatever still runs and end the thread; idempotent. A thread that is blocked is left alone."""
        if self._loop is None or self._thread is None:
            return
        blocked = self.running and not self.answers()
        if self.running:  # else something has stopped it, and it is cancelling its tasks already
            with suppress(RuntimeError):  # it has ended in this moment
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop = None
        if blocked:
            log.error("%s is blocked: what lives on it ends with this process", self._name)
        else:
            self._thread.join()


def _serve(loop: asyncio.AbstractEventLoop, ended: threading.Event) -> None:
    """Run a loop until it is stopped; then cancel its tasks and wait for them, and for its threads."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            runner.get_loop().run_forever()
        finally:
            ended.set()
            while tasks := asyncio.all_tasks(loop):  # some may begin while others end
                for task in tasks:
                    task.cancel()
                with suppress(RuntimeError):  # what stopped the loop has stopped it again
                    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


class Signal:
    """A signal that wakes all waiting tasks, so that each looks at its own condition again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake all waiting tasks; call it on their event loop."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds; it is looked at now and after every `notify`."""
        while not condition():
            await self._event.wait()
