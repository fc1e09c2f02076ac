"""Real faults of real desktops: each is a typed error within bounded time, never a reward, and the pool recovers."""

import asyncio
import time
from functools import partial

import pytest

from arpo.agent.actions import TypeText
from arpo.envs.desktop.env import DockerDesktop
from arpo.envs.pool.pool import EnvPool
from arpo.errors import EnvError
from tests.envs.desktops import QUICK, editor_task, needs_desktop
from tests.envs.faults import FAULTS, freeze_the_x_server, kill, pause

pytestmark = needs_desktop

BOUND_S = 15.0
"""The deadline of a call is 5 s; a GET is tried once more when its connection breaks."""

RECOVERY_S = 20.0
"""5 s are the aim where this machine has nothing else to do."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_a_typed_error_in_bounded_time_and_a_new_desktop_works(fault):
    env = DockerDesktop(**QUICK)
    try:
        env.reset(editor_task())
        fault(env.machine.container.id)
        began = time.monotonic()
        with pytest.raises(EnvError) as error:
            step_and_evaluate(env)
        assert time.monotonic() - began < BOUND_S
        assert error.value.kind == "guest"
    finally:
        env.close()


def step_and_evaluate(env):
    env.step(TypeText("x"))
    return env.evaluate()


async def play(pool, task, fault=None):
    """One episode, in which a fault may strike; the reward."""
    async with pool.lease(task) as env:
        await env.reset(task)
        if fault is not None:
            await asyncio.to_thread(fault)
        while (action := await env.next_solution()) is not None:
            await env.step(action)
        return await env.evaluate()


@pytest.mark.parametrize("fault", [kill, pause, freeze_the_x_server])
def test_the_pool_replaces_a_desktop_that_broke(fault):
    built = []

    def make():
        built.append(DockerDesktop(**QUICK))
        return built[-1]

    async def run():
        pool = EnvPool(make, size=1, reset_timeout_s=60, step_timeout_s=30, backend="thread")
        await pool.start()
        try:
            with pytest.raises(EnvError):
                await play(pool, editor_task(), partial(fault, built[0].machine.container.id))
            detected = time.monotonic()
            async with pool.lease(editor_task()):
                recovered_s = time.monotonic() - detected
            assert await play(pool, editor_task()) == 1.0
            return pool.counters(), recovered_s
        finally:
            await pool.close()

    counters, recovered_s = asyncio.run(run())
    assert recovered_s < RECOVERY_S
    assert len(built) == 2
    assert counters["env/fault_guest"] == 1
    assert counters["env/restarts"] == 1
