"""The far side of the pool: what an environment may answer, and from which thread."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from arpo.envs.fake import FakeDesktop, fake_tasks
from arpo.envs.pool.worker import EnvWorker
from arpo.errors import EnvError
from arpo.types import Observation

REPOSITORY = Path(__file__).parents[3]


class ThreadWitness(FakeDesktop):
    """Notes in which threads it is called, and answers nonsense to `step`."""

    def __init__(self):
        super().__init__()
        self.threads = [threading.get_ident()]
        WITNESSES.append(self)

    def reset(self, task):
        self.threads.append(threading.get_ident())
        return super().reset(task)

    def step(self, action):
        self.threads.append(threading.get_ident())

    def close(self):
        self.threads.append(threading.get_ident())
        raise RuntimeError("the browser is gone")


WITNESSES = []


@pytest.fixture
def witnesses():
    WITNESSES.clear()
    return WITNESSES


def test_an_environment_is_always_called_in_its_own_thread(witnesses):
    (task,) = fake_tasks(1)

    async def scenario():
        worker = EnvWorker(ThreadWitness, count=2)
        for index in (0, 1):
            await worker.call(index, "build")
        await asyncio.gather(*(worker.call(index, "reset", task) for index in (0, 1, 0, 1)))
        for index in (0, 1):
            await worker.call(index, "close")
        await worker.kill()

    asyncio.run(scenario())
    first, second = (set(witness.threads) for witness in witnesses)
    assert len(first) == len(second) == 1
    assert first.isdisjoint(second)
    assert threading.get_ident() not in first | second


@pytest.mark.usefixtures("witnesses")
def test_what_an_environment_does_against_its_protocol_is_an_answer_not_a_hang(caplog):
    async def scenario():
        worker = EnvWorker(ThreadWitness, count=1)
        unbuilt = await worker.call(0, "evaluate")
        await worker.call(0, "build")
        await worker.call(0, "reset", fake_tasks(1)[0])
        nonsense = await worker.call(0, "step", None)
        rebuilt = await worker.call(0, "build")  # although the old one does not close properly
        await worker.kill()
        return unbuilt, nonsense, rebuilt

    unbuilt, nonsense, rebuilt = asyncio.run(scenario())
    assert isinstance(unbuilt, EnvError)
    assert isinstance(nonsense, EnvError)
    assert rebuilt is None
    assert "the browser is gone" in caplog.text


class SlowDesktop(FakeDesktop):
    """Its reset lasts until it may end."""

    def __init__(self, may_end, log):
        super().__init__()
        self._may_end, self._log = may_end, log

    def reset(self, task):
        self._may_end.wait(20)
        self._log.append("late")
        return super().reset(task)

    def close(self):
        self._log.append("closed")


def test_a_build_does_not_wait_for_a_call_that_hangs_and_what_hangs_is_closed_when_it_ends():
    may_end, log = threading.Event(), []

    async def scenario():
        worker = EnvWorker(lambda: SlowDesktop(may_end, log), count=1)
        await worker.call(0, "build")
        hanging = asyncio.create_task(worker.call(0, "reset", fake_tasks(1)[0]))
        await asyncio.sleep(0)  # now it is under way
        async with asyncio.timeout(5):
            built = await worker.call(0, "build")
        before = list(log)
        may_end.set()
        late = await hanging
        async with asyncio.timeout(5):
            while len(log) < 2:
                await asyncio.sleep(0.01)
        observation = await worker.call(0, "reset", fake_tasks(1)[0])
        await worker.kill()
        return built, before, late, observation

    built, before, late, observation = asyncio.run(scenario())
    assert (built, before) == (None, [])
    assert isinstance(late, Observation)
    assert isinstance(observation, Observation)
    assert log[:2] == ["late", "closed"]


def test_the_far_side_imports_nothing_heavy():
    code = "import sys, arpo.envs.pool.worker, arpo.envs.fake; print('torch' in sys.modules, 'ray' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=REPOSITORY).split() == ["False"] * 2
