"""Real faults of real desktops: each is a typed error, never a reward, and the pool recovers."""

import asyncio

import pytest

from arpo.agent.actions import TypeText
from arpo.envs.desktop.env import DockerDesktop
from arpo.errors import EnvError
from tests.envs.desktops import BREAKS, QUICK, editor_task, kill, needs_desktop
from tests.envs.pool.support import make_pool, solve, with_pool

pytestmark = needs_desktop


@pytest.mark.timeout(60)  # twice the deadlines of a step and an evaluation, and a start
@pytest.mark.parametrize("fault", BREAKS)
def test_a_fault_is_a_typed_error_and_no_hang(fault):
    env = DockerDesktop(**QUICK)
    try:
        env.reset(editor_task())
        fault(env.machine.container.id)
        with pytest.raises(EnvError) as error:
            step_and_evaluate(env)
        assert error.value.kind == "guest"
    finally:
        env.close()


def step_and_evaluate(env):
    env.step(TypeText("x"))
    return env.evaluate()


def test_the_pool_replaces_a_desktop_that_broke():
    built = []

    def make():
        built.append(DockerDesktop(**QUICK))
        return built[-1]

    async def scenario(pool):
        task = editor_task()
        async with pool.lease(task) as env:
            await env.reset(task)
            await asyncio.to_thread(kill, built[0].machine.container.id)
            with pytest.raises(EnvError):
                await env.step(TypeText("x"))
        return await solve(pool, task), pool.counters()

    pool = make_pool(make, reset_timeout_s=60)
    reward, counters = with_pool(pool, scenario)
    assert (reward, len(built)) == (1.0, 2)
    assert (counters["env/fault_guest"], counters["env/restarts"]) == (1, 1)
