"""A signal that something has changed, for coroutines that wait until a condition holds."""

import asyncio
from collections.abc import Callable


class Signal:
    """A signal that wakes everyone who waits, so that each looks at its own condition again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake everyone who waits; call it on their event loop."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds; it is looked at now and after every `notify`."""
        while not condition():
            await self._event.wait()
