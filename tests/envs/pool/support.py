"""Environments and scenarios for the tests of the pool."""

import asyncio
from functools import partial

from arpo.agent.actions import Wait
from arpo.envs.fake import FakeDesktop, fake_tasks
from arpo.envs.pool.pool import EnvPool
from arpo.errors import EnvError
from tests.envs.planned_faults import Fault, Faults, FaultyDesktop

HANG = Fault("hang", "step", attempts=1)
(TASK,) = fake_tasks(1)


def faulty_desktop(*faults, ledger=None):
    return partial(FaultyDesktop, Faults(plan=faults, ledger=ledger and str(ledger)))


def make_pool(make_env=FakeDesktop, *, size=1, backend="thread", **settings):
    return EnvPool(make_env, size=size, backend=backend, **{"reset_timeout_s": 20.0, **settings})


def with_pool(pool, scenario, run=asyncio.run):
    """Run a scenario on a started pool and close the pool after it."""

    async def from_start_to_close():
        await pool.start()
        try:
            return await scenario(pool)
        finally:
            await pool.close()

    return run(from_start_to_close())


async def solve(pool, task=TASK):
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


async def fail(pool, task=TASK):
    """Run an episode of a single step until it raises; return the error."""
    try:
        async with pool.lease(task) as env:
            await env.reset(task)
            await env.step(Wait())
            await env.evaluate()
    except EnvError as error:
        return error
    return None
