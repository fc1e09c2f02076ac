"""The end of an event loop in a thread of its own."""

import asyncio
from contextlib import suppress

from arpo.host.threads import BackgroundLoop


def test_a_loop_that_is_stopped_again_and_again_while_it_ends_leaves_no_task():
    """A task that was cancelled and left would belong to a closed loop, where nobody could cancel it any more."""
    tasks = []

    async def play():
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            asyncio.get_running_loop().stop()
        tasks.append(asyncio.create_task(asyncio.Event().wait()))

    async def begin():
        tasks.append(asyncio.create_task(play()))
        await asyncio.sleep(0)

    loop = BackgroundLoop("test")
    loop.start()
    loop.run(begin())
    loop.close()
    assert [task.done() for task in tasks] == [True, True]
