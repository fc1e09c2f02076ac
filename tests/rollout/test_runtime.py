import asyncio
import threading
import time

import pytest

from arpo.envs.pool.pool import EnvPool
from arpo.errors import ArpoError, ConfigError, EngineError, EnvError
from arpo.host.threads import BackgroundLoop
from arpo.inference.engine import GenerateRequest, Sampling
from arpo.rollout.stream import ServedVersions
from tests.inference.scripted import ScriptedEngine
from tests.rollout.support import TASKS, interrupted, moody_clicker, red_clicker


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


# --- engine and environments


def test_weights_and_requests_reach_the_engine(chat, make_collector):
    engine = ScriptedEngine(chat, lambda request: "hello")
    runtime = make_collector(engine=engine).runtime
    runtime.update_weights(iter([]), version=3)
    assert (engine.policy_version, engine.updates, runtime.served) == (3, 1, ServedVersions(3, 3))
    response = runtime.run(runtime.engine.generate(GenerateRequest((1, 2), (), Sampling())))
    assert (chat.decode(response.token_ids), response.policy_version) == ("hello", 3)


def test_an_environment_can_be_leased_through_the_runtime(make_collector):
    runtime = make_collector().runtime

    async def demonstrate():
        async with runtime.pool.lease(TASKS[0]) as env:
            await env.reset(TASKS[0])
            while (action := await env.next_solution()) is not None:
                await env.step(action)
            return await env.evaluate()

    assert runtime.run(demonstrate()) == 1.0


def test_the_status_can_be_read_from_another_thread(chat, make_collector):
    collector = make_collector(engine=ScriptedEngine(chat, moody_clicker(chat), latency_s=0.01), start=False)
    assert collector.runtime.status().name == ""
    collector.runtime.start()
    seen = []
    busy = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.005):
            seen.append(collector.runtime.status())
            busy.append(collector.runtime.pool.states()["busy"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    batch = collector.collect(TASKS, 0, 2)
    stop.set()
    watcher.join()
    last = collector.runtime.status()
    trajectories = [trajectory for group in batch.groups for trajectory in group.trajectories]
    assert (last.name, last.episodes_ended, last.total) == ("train", 16, 16)
    assert last.successes == sum(trajectory.task_reward for trajectory in trajectories)
    assert last.steps == sum(len(trajectory.steps) for trajectory in trajectories)
    assert collector.runtime.pool.states()["idle"] == 3
    done = [progress.episodes_ended for progress in seen if progress.name]
    assert done == sorted(done)
    assert any(0 < count < 16 for count in done)
    assert max(busy) == 3


def is_closed(engine: ScriptedEngine) -> bool:
    try:
        asyncio.run(engine.generate(GenerateRequest((1,), (), Sampling())))
    except EngineError:
        return True
    return False


class ReluctantPool(EnvPool):
    async def close(self) -> None:
        await super().close()
        raise EnvError("crash", "the pool does not close")


def test_closing_closes_the_engine_even_where_the_pool_fails(chat, make_collector):
    engine = ScriptedEngine(chat, lambda request: "hello")
    collector = make_collector(engine=engine, make_pool=ReluctantPool)
    assert not is_closed(engine)
    with pytest.raises(EnvError, match="does not close"):
        collector.close()
    assert is_closed(engine)
    assert "rollout" not in {thread.name for thread in threading.enumerate()}


def test_an_engine_that_does_not_start_leaves_nothing_behind(make_collector):
    def fail():
        raise ConfigError("no such engine")

    with pytest.raises(ConfigError, match="no such engine"):
        make_collector(make_engine=fail)
    assert "rollout" not in {thread.name for thread in threading.enumerate()}


def test_a_pool_that_does_not_start_closes_the_engine(chat, make_collector):
    def broken():
        raise EnvError("reset", "no browser")

    engine = ScriptedEngine(chat, red_clicker(chat))
    with pytest.raises(EnvError, match="no browser"):
        make_collector(engine=engine, make_env=broken)
    assert is_closed(engine)
