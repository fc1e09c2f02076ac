"""Eight desktops in the threads of one process, real sockets between, and a guest that drips, hangs or lies."""

import asyncio
import sys
import time
from functools import partial

import pytest

from arpo.agent.actions import Click, Fail
from arpo.envs.guest.client import Deadlines
from arpo.envs.osworld import env as osworld
from arpo.envs.pool.pool import EnvPool
from arpo.errors import EnvError
from arpo.host.container_spec import ContainerSpec
from arpo.types import Task
from tests.envs.desktops import needs_cells
from tests.envs.guest.hostile import FLOOD, OF_A_GIGABYTE, WITHOUT_LENGTH, drips, floods, png, says
from tests.envs.pool.support import with_pool

pytestmark = needs_cells  # of a judge

DESKTOPS = 8
CALL_S = 5.0  # that no sound guest misses on a machine with other work

SPEC = ContainerSpec("guest", ports=(5000, 9222, 8080))
TASK = Task("never", "Fly", "os", {"config": [], "evaluator": {"func": "infeasible"}}, infeasible=True)
LIES = {
    "drips an answer": drips(OF_A_GIGABYTE, b"x"),
    "never ends": floods(WITHOUT_LENGTH, FLOOD),
    "shows half a picture": says(png((160, 120), pixels=bytes(3 * 160 * 60))),
}


@pytest.fixture
def pool(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(osworld, "DEADLINES", Deadlines(call_s=CALL_S, program_s=CALL_S, window_s=0.0))
    make = partial(osworld.OSWorldEnv, SPEC, pause_s=0.05, boot_timeout_s=20.0, containers=lambda: engine)
    make_env = partial(make, cache=tmp_path, grader_python=sys.executable)
    return EnvPool(make_env, size=DESKTOPS, envs_per_worker=DESKTOPS, backend="thread")


@pytest.mark.parametrize("lie", LIES)
def test_of_eight_desktops_seven_play_on_and_the_one_whose_guest_lies_is_soon_back(pool, engine, lie):
    async def play(ready, steps):
        """An episode that lasts until a desktop is back; adds when each of its steps began and ended."""
        async with pool.lease(TASK) as env:
            await env.reset(TASK)
            if await ready.wait() == 0:
                engine.machines[3].guest.lies["/screenshot"] = LIES[lie]
            while not pool.counters()["env/restarts"]:
                began = time.monotonic()
                try:
                    await env.step(Click(3, 4))
                finally:
                    steps.append((began, time.monotonic()))
            await env.step(Fail())
            return await env.evaluate()

    async def scenario(pool):
        ready, steps = asyncio.Barrier(DESKTOPS), [[] for _ in range(DESKTOPS)]
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(*(play(ready, each) for each in steps), return_exceptions=True)
        return outcomes, steps, pool.counters(), pool.states()

    outcomes, steps, counters, states = with_pool(pool, scenario)
    (broken,) = (number for number, outcome in enumerate(outcomes) if outcome != 1.0)
    assert isinstance(outcomes[broken], EnvError)
    lied, refused = steps.pop(broken)[-1]
    played = [sum(lied < began < ended < refused for began, ended in each) for each in steps]
    assert refused - lied < CALL_S or min(played) > 1  # nobody waited with it
    assert (counters["env/restarts"], counters["env/restart_failures"]) == (1, 0)
    next_ones = DESKTOPS - 1  # of those that were graded
    assert len(engine.machines) == DESKTOPS + 1 + next_ones  # nothing else was built again
    assert states["idle"] == DESKTOPS
