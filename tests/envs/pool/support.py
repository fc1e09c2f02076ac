"""Environments and scenarios for the tests of the pool."""

import asyncio
import subprocess
from functools import partial

from arpo.agent.actions import Wait
from arpo.envs.fake import FakeDesktop
from arpo.envs.pool.pool import EnvPool
from arpo.errors import EnvError
from tests.envs.planned_faults import Fault, Faults, FaultyDesktop

HANG = Fault("hang", "step", attempts=1)


class UnsolvableDesktop:
    """A desktop without a script."""

    def __init__(self, counter=None):
        self._desktop = FakeDesktop()
        self._counter = counter
        self._log("built")

    def _log(self, event):
        if self._counter is not None:
            with self._counter.open("a") as log:
                log.write(f"{event}\n")

    def reset(self, task):
        return self._desktop.reset(task)

    def step(self, action):
        return self._desktop.step(action)

    def evaluate(self):
        return self._desktop.evaluate()

    def close(self):
        self._log("closed")


def desktop_while(path):
    """A desktop that can be built as long as a file exists."""
    if not path.exists():
        raise OSError(f"no machine at {path.name}")
    return FakeDesktop()


def desktop_with_browser():
    """A desktop that starts another process, as a browser is one."""
    desktop = FakeDesktop()
    subprocess.Popen(["sleep", "300"], start_new_session=True)  # browser drivers do so too
    return desktop


def faulty_desktop(*faults, ledger=None):
    return partial(FaultyDesktop, Faults(plan=faults, ledger=ledger and str(ledger)))


def make_pool(make_env=FakeDesktop, *, size=1, backend="thread", **settings):
    return EnvPool(make_env, size=size, backend=backend, **{"reset_timeout_s": 20.0, **settings})


def with_pool(pool, scenario):
    """Run a scenario on a started pool and close the pool after it."""

    async def run():
        await pool.start()
        try:
            return await scenario(pool)
        finally:
            await pool.close()

    return asyncio.run(run())


async def solve(pool, task):
    async with pool.lease(task) as env:
        await env.reset(task)
        while (action := await env.next_solution()) is not None:
            if (await env.step(action)).terminated:
                break
        return await env.evaluate()


async def until(condition, timeout_s=20.0):
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


async def fail(pool, task, calls=("reset", "step", "evaluate")):
    """Run an episode of single steps until it raises; return the error."""
    try:
        async with pool.lease(task) as env:
            await env.reset(task)
            if "step" in calls:
                await env.step(Wait())
            if "evaluate" in calls:
                await env.evaluate()
    except EnvError as error:
        return error
    return None
