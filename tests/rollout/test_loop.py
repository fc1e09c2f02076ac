import asyncio
import threading
import time

import pytest

from arpo.errors import ArpoError
from arpo.rollout.loop import BackgroundLoop
from tests.rollout.support import interrupted


@pytest.fixture
def loop():
    loop = BackgroundLoop("test")
    loop.start()
    yield loop
    loop.close()


async def thread_name() -> str:
    return threading.current_thread().name


def test_a_coroutine_runs_in_the_loops_thread(loop: BackgroundLoop):
    assert loop.run(thread_name()) == "test"


def test_an_error_comes_back(loop: BackgroundLoop):
    async def fail() -> None:
        raise ArpoError("no")

    with pytest.raises(ArpoError, match="no"):
        loop.run(fail())


def test_ctrl_c_interrupts_waiting_at_once(loop: BackgroundLoop):
    started = time.monotonic()
    with interrupted():
        loop.run(asyncio.sleep(60))
    assert time.monotonic() - started < 20
    assert loop.run(thread_name()) == "test"  # and the loop lives


def test_closing_cancels_what_runs_and_waits_for_its_end():
    loop = BackgroundLoop("test")
    loop.start()
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.05)
            ended.append(True)

    future = loop.submit(work())
    loop.run(asyncio.sleep(0))
    loop.close()
    loop.close()
    assert ended == [True]
    assert future.cancelled()
    assert "test" not in {thread.name for thread in threading.enumerate()}


def test_a_loop_that_does_not_run_says_so():
    loop = BackgroundLoop("test")
    with pytest.raises(ArpoError, match=r"call start\(\) first"):
        loop.run(asyncio.sleep(0))


def test_a_closed_loop_starts_again():
    loop = BackgroundLoop("test")
    for _ in range(2):
        loop.start()
        assert loop.run(thread_name()) == "test"
        loop.close()
