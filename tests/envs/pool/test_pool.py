"""The pool of environments, in threads of this process."""

import asyncio
import threading
from functools import partial

import pytest

from arpo.agent.actions import Click, Wait
from arpo.envs.fake import FakeDesktop, fake_tasks
from arpo.errors import ConfigError, EnvError, TaskFormatError
from arpo.types import Task
from tests.envs.planned_faults import Fault, Faults, FaultyDesktop
from tests.envs.pool.support import (
    HANG,
    UnsolvableDesktop,
    desktop_while,
    fail,
    faulty_desktop,
    make_pool,
    solve,
    until,
    with_pool,
)


def test_many_episodes_share_a_few_environments():
    async def scenario(pool):
        rewards = await asyncio.gather(*(solve(pool, task) for task in fake_tasks(24)))
        return rewards, pool.counters(), pool.states()

    rewards, counters, states = with_pool(make_pool(size=8, envs_per_worker=3), scenario)
    assert rewards == [1.0] * 24
    assert counters["env/episodes"] == counters["env/reset_calls"] == counters["env/evaluate_calls"] == 24
    assert states["idle"] == 8
    assert sum(value for name, value in counters.items() if "fault" in name or "restart" in name) == 0


def test_leases_are_given_in_the_order_of_asking_and_of_environments_the_one_that_was_free_for_longest():
    order, names = [], []

    async def episode(pool, number):
        async with pool.lease(fake_tasks(1)[0]) as env:
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
    (task,) = fake_tasks(1)

    async def scenario(pool):
        async with pool.lease(task):
            waiter = asyncio.create_task(solve(pool, task))
            await asyncio.sleep(0)
        waiter.cancel()  # it was just given the environment, and has not noticed
        await asyncio.gather(waiter, return_exceptions=True)
        return await solve(pool, task)

    assert with_pool(make_pool(), scenario) == 1.0


def test_a_cancelled_call_leaves_no_trace_in_the_next_episode():
    (task,) = fake_tasks(1)
    begun, may_end = threading.Event(), threading.Event()

    class Waiting(FakeDesktop):
        def step(self, action):
            begun.set()
            may_end.wait(60)
            return super().step(action)

    async def scenario(pool):
        episode = asyncio.create_task(solve(pool, task))
        await asyncio.to_thread(begun.wait, 60)
        episode.cancel()
        await asyncio.gather(episode, return_exceptions=True)
        may_end.set()
        return await solve(pool, task), pool.counters()

    reward, counters = with_pool(make_pool(Waiting), scenario)
    assert reward == 1.0
    assert counters["env/restarts"] == 1
    assert counters["env/fault_timeout"] == 0


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault("error", "reset", attempts=1), "reset"),
        (Fault("error", "step", attempts=1), "step"),
        (Fault("error", "evaluate", attempts=1), "evaluate"),
        (Fault("garbage", "reset", attempts=1), "screenshot"),
        (Fault("garbage", "step", attempts=1), "screenshot"),
        (Fault("garbage", "evaluate", attempts=1), "evaluate"),
        (Fault("hang", "reset", attempts=1), "timeout"),
        (Fault("hang", "step", attempts=1), "timeout"),
        (Fault("hang", "evaluate", attempts=1), "timeout"),
    ],
)
def test_every_fault_is_typed_and_counted_and_the_environment_comes_back(fault, kind, tmp_path):
    (task,) = fake_tasks(1)

    async def scenario(pool):
        error = await fail(pool, task)
        return error, await solve(pool, task), pool.counters()

    make_env = faulty_desktop(fault, ledger=tmp_path)
    soon = {f"{fault.call}_timeout_s": 1.0} if fault.kind == "hang" else {}
    pool = make_pool(make_env, **soon)
    error, reward, counters = with_pool(pool, scenario)
    assert error.kind == kind
    assert reward == 1.0
    assert counters[f"env/fault_{kind}"] == 1
    assert (counters["env/restarts"], counters["env/restart_failures"]) == (1, 0)
    assert counters["env/episodes"] == 1


def test_after_a_fault_a_lease_is_of_no_use_and_the_log_says_which_task_broke_which_environment(caplog):
    (task,) = fake_tasks(1)

    async def scenario(pool):
        async with pool.lease(task) as env:
            await env.reset(task)
            with pytest.raises(EnvError, match="planned"):
                await env.step(Wait())
            with pytest.raises(EnvError, match="failed before"):
                await env.evaluate()
        return pool.counters()

    counters = with_pool(make_pool(faulty_desktop(Fault("error", "step"))), scenario)
    assert counters["env/fault_step"] == 1
    assert f"environment 1/1 failed at {task.id}: step: planned fault" in caplog.text


def test_a_hang_costs_its_own_environment_and_its_neighbour_plays_on(tmp_path):
    hanging, healthy = fake_tasks(2, kinds=("click",))
    events = []

    def make_env():
        events.append("built")
        return FaultyDesktop(Faults(plan=[HANG], ledger=str(tmp_path)))

    async def scenario(pool):
        async with pool.lease(healthy) as neighbour:
            await neighbour.reset(healthy)
            error = await fail(pool, hanging)
            states = pool.states()
            await until(lambda: pool.states()["idle"] == 1)  # while the neighbour is in the middle of its episode
            await neighbour.step(Click(0, 0))
            reward = await neighbour.evaluate()
        return error.kind, states, reward, await solve(pool, hanging), pool.counters()

    (tmp_path / healthy.id.replace("/", "_")).write_bytes(b".")  # the healthy task has its first attempt behind it
    pool = make_pool(make_env, size=2, envs_per_worker=2, step_timeout_s=1.0)
    kind, states, reward, again, counters = with_pool(pool, scenario)
    assert kind == "timeout"
    assert (states["busy"], states["restarting"], states["idle"]) == (1, 1, 0)
    assert (reward, again) == (0.0, 1.0)  # the first ended in its own way: with a click on the background
    assert events == ["built"] * 3
    assert counters["env/restarts"] == 1
    assert sum(value for name, value in counters.items() if "fault" in name) == 1


def test_an_environment_is_rebuilt_after_its_share_of_episodes(tmp_path):
    tasks = fake_tasks(7, kinds=("click",))
    events = tmp_path / "events"

    async def scenario(pool):
        for task in tasks:
            await fail(pool, task)
        return pool.counters()

    counters = with_pool(make_pool(partial(UnsolvableDesktop, events), recycle_after=3), scenario)
    assert counters["env/episodes"] == 7
    assert counters["env/recycled"] == 2  # after episodes 3 and 6
    assert counters["env/restarts"] == 0
    assert events.read_text().split() == ["built", "closed"] * 3


def test_when_every_environment_is_given_up_all_waiters_hear_the_cause(tmp_path):
    machine = tmp_path / "machine"
    machine.touch()
    (task,) = fake_tasks(1)

    async def scenario(pool):
        async with pool.lease(task), pool.lease(task):
            waiters = [asyncio.create_task(solve(pool, task)) for _ in range(3)]
            await asyncio.sleep(0)
            machine.unlink()
        # both were healthy: two waiters get them, break nothing, and the pool recycles them
        outcomes = await asyncio.gather(*waiters, return_exceptions=True)
        late = await asyncio.gather(solve(pool, task), return_exceptions=True)
        return outcomes + late, pool.counters(), pool.states()

    pool = make_pool(partial(desktop_while, machine), size=2, recycle_after=1, reset_timeout_s=0.4)
    outcomes, counters, states = with_pool(pool, scenario)
    assert all(isinstance(outcome, ConfigError) for outcome in outcomes)
    assert "no environment is left" in str(outcomes[0])
    assert "no machine at machine" in str(outcomes[0])
    assert counters["env/lost"] == 2
    assert counters["env/restart_failures"] == 10  # 2 environments, 5 attempts each
    assert states["lost"] == 2


def test_start_fails_at_once_when_nothing_can_be_built_and_says_what_is_wrong_with_a_configuration(tmp_path):
    with pytest.raises(EnvError, match="no machine at nowhere"):
        asyncio.run(make_pool(partial(desktop_while, tmp_path / "nowhere"), size=3).start())
    with pytest.raises(ConfigError, match="at least 64x48"):
        asyncio.run(make_pool(partial(FakeDesktop, width=1)).start())


def test_an_environment_that_does_not_come_up_at_first_joins_later():
    builds = iter([OSError("still booting"), None, None])

    def second_time_lucky():
        if error := next(builds):
            raise error
        return FakeDesktop()

    async def scenario(pool):
        first = pool.states()
        await until(lambda: pool.states()["idle"] == 2)
        return first

    first = with_pool(make_pool(second_time_lucky, size=2), scenario)
    assert (first["idle"], first["restarting"]) == (1, 1)


def test_a_pool_can_be_started_again_on_another_event_loop():
    pool = make_pool()
    (task,) = fake_tasks(1)
    for _ in range(2):
        assert with_pool(pool, lambda pool: solve(pool, task)) == 1.0
    assert pool.counters()["env/episodes"] == 2


def test_a_wrong_task_is_not_a_fault_of_the_environment():
    async def scenario(pool):
        task = Task("osworld/1", "open the file")
        async with pool.lease(task) as env:
            with pytest.raises(TaskFormatError, match="osworld/1"):
                await env.reset(task)
        return pool.counters(), pool.states()

    counters, states = with_pool(make_pool(), scenario)
    assert states["idle"] == 1
    assert counters["env/restarts"] == 0


def test_an_environment_without_a_script_says_so():
    (task,) = fake_tasks(1)
    with pytest.raises(ConfigError, match="UnsolvableDesktop cannot solve"):
        with_pool(make_pool(UnsolvableDesktop), lambda pool: solve(pool, task))


def test_busy_time_grows_while_a_lease_is_held():
    (task,) = fake_tasks(1)

    async def scenario(pool):
        async with pool.lease(task):
            await asyncio.sleep(0.1)
            during = pool.counters()["env/busy_s"]
        after = pool.counters()["env/busy_s"]
        await asyncio.sleep(0.1)
        return during, after, pool.counters()["env/busy_s"]

    during, after, later = with_pool(make_pool(), scenario)
    assert 0.1 <= during <= after == later


def test_leases_need_a_running_pool_and_who_waits_when_it_closes_is_told():
    (task,) = fake_tasks(1)

    async def scenario():
        pool = make_pool()
        with pytest.raises(ConfigError, match="start"):
            await solve(pool, task)
        await pool.start()
        with pytest.raises(ConfigError, match="started already"):
            await pool.start()
        async with pool.lease(task):
            waiter = asyncio.create_task(solve(pool, task))
            await asyncio.sleep(0)
            await pool.close()
        with pytest.raises(ConfigError, match="closed"):
            await waiter
        await pool.close()
        with pytest.raises(ConfigError, match="start"):
            await solve(pool, task)

    asyncio.run(scenario())
