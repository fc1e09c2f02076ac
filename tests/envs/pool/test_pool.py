"""The pool of environments, in threads of this process."""

import asyncio
import threading

import pytest

from arpo.agent.actions import Wait
from arpo.envs.fake import FakeDesktop, fake_tasks
from arpo.errors import ConfigError, EnvError, TaskFormatError
from arpo.types import Task
from tests.envs.planned_faults import Fault
from tests.envs.pool.support import TASK, fail, faulty_desktop, make_pool, solve, with_pool


def test_many_episodes_share_a_few_environments():
    async def scenario(pool):
        rewards = await asyncio.gather(*(solve(pool, task) for task in fake_tasks(24)))
        assert rewards == [1.0] * 24
        return pool.states()

    pool = make_pool(size=8, envs_per_worker=3)
    states, counters = with_pool(pool, scenario), pool.counters()
    assert counters["env/episodes"] == counters["env/reset_calls"] == counters["env/evaluate_calls"] == 24
    assert states["idle"] == 8
    assert sum(value for name, value in counters.items() if "fault" in name or "restart" in name) == 0


def test_leases_are_given_in_the_order_of_asking_and_of_environments_the_one_that_was_free_for_longest():
    order, names = [], []

    async def episode(pool, number):
        async with pool.lease(TASK) as env:
            order.append(number)
            names.append(env.name)
            await asyncio.sleep(0)

    async def scenario(pool):
        for number in range(4):
            await episode(pool, number)
        await asyncio.gather(*(episode(pool, number) for number in range(4, 12)))

    with_pool(make_pool(size=2), scenario)
    assert order == list(range(12))
    assert len(set(names[:2])) == 2
    assert names[2:4] == names[:2]


def test_a_cancelled_waiter_loses_no_environment():
    async def scenario(pool):
        async with pool.lease(TASK):
            waiter = asyncio.create_task(solve(pool))
            await asyncio.sleep(0)
        waiter.cancel()  # it was just given the environment, and has not noticed
        await asyncio.gather(waiter, return_exceptions=True)
        return await solve(pool)

    assert with_pool(make_pool(), scenario) == 1.0


def test_a_cancelled_call_leaves_no_trace_in_the_next_episode():
    begun, may_end = threading.Event(), threading.Event()

    class Waiting(FakeDesktop):
        def step(self, action):
            begun.set()
            may_end.wait(60)
            return super().step(action)

    async def scenario(pool):
        episode = asyncio.create_task(solve(pool))
        await asyncio.to_thread(begun.wait, 60)
        episode.cancel()
        await asyncio.gather(episode, return_exceptions=True)
        may_end.set()
        return await solve(pool)

    pool = make_pool(Waiting)
    assert with_pool(pool, scenario) == 1.0
    assert pool.counters()["env/restarts"] == 1
    assert pool.counters()["env/fault_timeout"] == 0


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        ("error", {"reset": "reset", "step": "step", "evaluate": "evaluate"}),
        ("garbage", {"reset": "screenshot", "step": "screenshot", "evaluate": "evaluate"}),
        ("hang", dict.fromkeys(("reset", "step", "evaluate"), "timeout")),
    ],
)
@pytest.mark.parametrize("call", ["reset", "step", "evaluate"])
def test_every_fault_is_typed_and_counted_and_the_environment_comes_back(fault, kinds, call, tmp_path):
    async def scenario(pool):
        return await fail(pool), await solve(pool)

    soon = {f"{call}_timeout_s": 1.0} if fault == "hang" else {}
    pool = make_pool(faulty_desktop(Fault(fault, call, attempts=1), ledger=tmp_path), **soon)
    error, reward = with_pool(pool, scenario)
    counters = pool.counters()
    assert error.kind == kinds[call]
    assert reward == 1.0
    assert counters[f"env/fault_{error.kind}"] == 1
    assert (counters["env/restarts"], counters["env/restart_failures"]) == (1, 0)
    assert counters["env/episodes"] == 1


def test_after_a_fault_a_lease_is_of_no_use_and_the_log_says_which_task_broke_which_environment(caplog):
    async def scenario(pool):
        async with pool.lease(TASK) as env:
            await env.reset(TASK)
            with pytest.raises(EnvError, match="planned"):
                await env.step(Wait())
            with pytest.raises(EnvError, match="failed before"):
                await env.evaluate()

    pool = make_pool(faulty_desktop(Fault("error", "step")))
    with_pool(pool, scenario)
    assert pool.counters()["env/fault_step"] == 1
    assert f"environment 1/1 failed at {TASK.id}: step: planned fault" in caplog.text


def test_an_environment_is_rebuilt_after_its_share_of_episodes_and_one_without_a_script_says_so():
    events = []

    class Scriptless(FakeDesktop):
        solve = None

        def __init__(self):
            super().__init__()
            events.append("built")

        def close(self):
            events.append("closed")

    async def scenario(pool):
        for _ in range(7):
            await fail(pool)
        with pytest.raises(ConfigError, match="Scriptless cannot solve"):
            await solve(pool)

    pool = make_pool(Scriptless, recycle_after=3)
    with_pool(pool, scenario)
    assert pool.counters()["env/episodes"] == 8
    assert pool.counters()["env/recycled"] == 2  # after episodes 3 and 6
    assert pool.counters()["env/restarts"] == 0
    assert events == ["built", "closed"] * 3


def while_there(path):
    """Return a builder of desktops that can be built as long as a file exists."""

    def make_env():
        if not path.exists():
            raise OSError(f"no machine at {path.name}")
        return FakeDesktop()

    return make_env


def test_when_every_environment_is_given_up_all_waiters_hear_the_cause(tmp_path):
    machine = tmp_path / "machine"
    machine.touch()

    async def scenario(pool):
        async with pool.lease(TASK), pool.lease(TASK):
            waiters = [asyncio.create_task(solve(pool)) for _ in range(3)]
            await asyncio.sleep(0)
            machine.unlink()
        # both were healthy: two waiters get them, break nothing, and the pool recycles them
        outcomes = await asyncio.gather(*waiters, return_exceptions=True)
        late = await asyncio.gather(solve(pool), return_exceptions=True)
        return outcomes + late, pool.states()

    pool = make_pool(while_there(machine), size=2, recycle_after=1, reset_timeout_s=0.4)
    outcomes, states = with_pool(pool, scenario)
    assert all(isinstance(outcome, ConfigError) for outcome in outcomes)
    assert "no environment is left" in str(outcomes[0])
    assert "no machine at machine" in str(outcomes[0])
    assert pool.counters()["env/lost"] == 2
    assert pool.counters()["env/restart_failures"] == 10  # 2 environments, 5 attempts each
    assert states["lost"] == 2


def test_start_fails_at_once_when_nothing_can_be_built_and_says_what_is_wrong_with_a_configuration(tmp_path):
    with pytest.raises(EnvError, match="no machine at nowhere"):
        asyncio.run(make_pool(while_there(tmp_path / "nowhere"), size=3).start())
    with pytest.raises(ConfigError, match="at least 64x48"):
        asyncio.run(make_pool(lambda: FakeDesktop(width=1)).start())


def test_a_pool_can_be_started_again_on_another_event_loop():
    pool = make_pool()
    for _ in range(2):
        assert with_pool(pool, solve) == 1.0
    assert pool.counters()["env/episodes"] == 2


def test_a_wrong_task_is_not_a_fault_of_the_environment():
    async def scenario(pool):
        async with pool.lease(TASK) as env:
            with pytest.raises(TaskFormatError, match="osworld/1"):
                await env.reset(Task("osworld/1", "open the file"))
        return pool.states()

    pool = make_pool()
    assert with_pool(pool, scenario)["idle"] == 1
    assert pool.counters()["env/restarts"] == 0


def test_busy_time_grows_while_a_lease_is_held():
    async def scenario(pool):
        async with pool.lease(TASK):
            await asyncio.sleep(0.1)
            during = pool.counters()["env/busy_s"]
        after = pool.counters()["env/busy_s"]
        await asyncio.sleep(0.1)
        return during, after, pool.counters()["env/busy_s"]

    during, after, later = with_pool(make_pool(), scenario)
    assert 0.1 <= during <= after == later


def test_leases_need_a_running_pool_and_who_waits_when_it_closes_is_told():
    async def scenario():
        pool = make_pool()
        with pytest.raises(ConfigError, match="start"):
            await solve(pool)
        await pool.start()
        with pytest.raises(ConfigError, match="started already"):
            await pool.start()
        async with pool.lease(TASK):
            waiter = asyncio.create_task(solve(pool))
            await asyncio.sleep(0)
            await pool.close()
        with pytest.raises(ConfigError, match="closed"):
            await waiter
        await pool.close()
        with pytest.raises(ConfigError, match="start"):
            await solve(pool)

    asyncio.run(scenario())
