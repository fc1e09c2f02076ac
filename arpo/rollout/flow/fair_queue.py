"""The order in which training and evaluations get the environments: in fair shares, turn by turn."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager


class FairQueue:
    """A number of turns for which lanes queue: first come, first served in a lane, and lane after lane between them.

    So an evaluation that asks for a thousand episodes at once gets every second environment that becomes free, and
    training the others. An episode keeps its turn when the infrastructure loses it and it is made again.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._lanes: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, lane: str) -> AsyncIterator[None]:
        """Wait for a turn and hold it."""
        await self._take(lane)
        try:
            yield
        finally:
            self._pass_on()

    def queued(self) -> dict[str, int]:
        """Return how many wait in each lane; allowed from any thread."""
        return {lane: sum(not future.done() for future in list(queue)) for lane, queue in list(self._lanes.items())}

    async def _take(self, lane: str) -> None:
        if self._free:
            self._free -= 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lanes.setdefault(lane, deque()).append(future)
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # it had its turn already
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        for future in self._in_fair_order():
            if not future.done():  # else whoever waited was cancelled
                future.set_result(None)
                return
        self._free += 1

    def _in_fair_order(self) -> Iterator[asyncio.Future[None]]:
        while self._lanes:
            lane, queue = next(iter(self._lanes.items()))
            self._lanes.move_to_end(lane)
            future = queue.popleft()
            if not queue:
                del self._lanes[lane]
            yield future
