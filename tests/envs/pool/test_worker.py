"""The far side of the pool: what an environment may answer, and from which thread."""

import asyncio
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

from arpo.envs.fake import FakeDesktop
from arpo.envs.pool.worker import EnvWorker
from arpo.errors import EnvError
from arpo.types import Observation
from tests.envs.pool.support import TASK, until

REPOSITORY = Path(__file__).parents[3]


class ThreadWitness(FakeDesktop):
    """Notes in which threads it is called, answers nonsense to `step`, and cannot be closed."""

    def __init__(self, witnesses):
        super().__init__()
        self.threads = {threading.get_ident()}
        witnesses.append(self)

    def reset(self, task):
        self.threads.add(threading.get_ident())
        return super().reset(task)

    def step(self, action):
        self.threads.add(threading.get_ident())

    def close(self):
        self.threads.add(threading.get_ident())
        raise RuntimeError("the browser is gone")


def test_an_environment_is_always_called_in_its_own_thread():
    witnesses = []

    async def scenario():
        worker = EnvWorker(partial(ThreadWitness, witnesses), count=2)
        for index in (0, 1):
            await worker.call(index, "build")
        await asyncio.gather(*(worker.call(index, "reset", TASK) for index in (0, 1, 0, 1)))
        for index in (0, 1):
            await worker.call(index, "close")
        await worker.kill()

    asyncio.run(scenario())
    first, second = (witness.threads for witness in witnesses)
    assert len(first) == len(second) == 1
    assert first.isdisjoint(second)
    assert threading.get_ident() not in first | second


def test_what_an_environment_does_against_its_protocol_is_an_answer_not_a_hang(caplog):
    async def scenario():
        worker = EnvWorker(partial(ThreadWitness, []), count=1)
        assert isinstance(await worker.call(0, "evaluate"), EnvError)  # it is not built
        await worker.call(0, "build")
        await worker.call(0, "reset", TASK)
        assert isinstance(await worker.call(0, "step", None), EnvError)
        assert await worker.call(0, "build") is None  # although the old one does not close properly
        await worker.kill()

    asyncio.run(scenario())
    assert "the browser is gone" in caplog.text


def test_a_build_does_not_wait_for_a_call_that_hangs_and_what_hangs_is_closed_when_it_ends():
    may_end, log = threading.Event(), []

    class SlowDesktop(FakeDesktop):
        def reset(self, task):
            may_end.wait(20)
            log.append("late")
            return super().reset(task)

        def interrupt(self):
            log.append("interrupted")

        def close(self):
            log.append("closed")

    async def scenario():
        worker = EnvWorker(SlowDesktop, count=1)
        await worker.call(0, "build")
        hanging = asyncio.create_task(worker.call(0, "reset", TASK))
        await asyncio.sleep(0)  # now it is under way
        async with asyncio.timeout(5):
            assert await worker.call(0, "build") is None
        assert log == ["interrupted"]
        may_end.set()
        assert isinstance(await hanging, Observation)
        await until(lambda: len(log) == 3, timeout_s=5)
        assert isinstance(await worker.call(0, "reset", TASK), Observation)
        await worker.kill()

    asyncio.run(scenario())
    assert log[:3] == ["interrupted", "late", "closed"]


def test_the_far_side_imports_nothing_heavy():
    code = "import sys, arpo.envs.pool.worker, arpo.envs.fake; print('torch' in sys.modules, 'ray' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=REPOSITORY).split() == ["False"] * 2
