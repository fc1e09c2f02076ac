"""How broken environments come back: when each is tried again, and what a worker has to do with it."""

import asyncio
import selectors
from contextlib import AsyncExitStack

import pytest

from arpo.envs.fake import fake_tasks
from arpo.errors import EnvError
from tests.envs.pool.support import fail, make_pool, solve


class JumpingSelector(selectors.DefaultSelector):
    """Adds up the seconds that it is asked to wait, and does not wait."""

    def __init__(self):
        super().__init__()
        self.seconds = 0.0

    def select(self, timeout=None):
        ready = super().select(timeout and 0)
        if not ready and timeout:
            self.seconds += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time begins at 0 and costs none."""

    def __init__(self):
        self._selector_of_ours = JumpingSelector()
        super().__init__(self._selector_of_ours)
        self._clock_resolution = 1e-6

    def time(self):
        return self._selector_of_ours.seconds


def run(coroutine):
    """Run a coroutine on a clock that jumps: seconds of waiting pass at once where nothing but the loop waits."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(coroutine)


class ProcessEndedError(Exception):
    """What a call says when its worker is dead."""


class ScriptedWorkers:
    """A backend and each worker of it in one, without threads: environments fail to build as its script says.

    Args:
        script: From an environment's position in its worker to the errors of its first builds, one after the other;
            the last one again and again where `for_good` says so. None: a build that hangs.
    """

    failures = (ProcessEndedError,)

    def __init__(self, script, for_good=False):
        self._script = {index: list(errors) for index, errors in script.items()}
        self._for_good = for_good
        self.launches = 0
        self.kills = 0
        self.builds = []

    async def open(self):
        pass

    async def launch(self, make_env, count):
        self.launches += 1
        return self

    async def close(self):
        pass

    async def call(self, index, method, *arguments):
        if method == "build":
            self.builds.append((index, asyncio.get_running_loop().time()))
            errors = self._script.get(index, [])
            if errors:
                return await self._fail(errors[0] if self._for_good else errors.pop(0))
        if method == "step":
            await asyncio.Event().wait()
        return None

    async def _fail(self, error):
        if error is None:
            await asyncio.Event().wait()
        if isinstance(error, ProcessEndedError):
            raise error
        return error

    async def kill(self):
        self.kills += 1

    def times(self, index):
        return [round(time, 3) for built, time in self.builds if built == index]


async def while_running(pool, scenario):
    await pool.start()
    try:
        return await scenario()
    finally:
        await pool.close()


async def until(condition):
    async with asyncio.timeout(10_000):
        while not condition():
            await asyncio.sleep(0.5)


def test_a_broken_environment_is_tried_again_after_longer_and_longer_waits_and_then_given_up():
    backend = ScriptedWorkers({1: [EnvError("reset", "no screen")]}, for_good=True)
    pool = make_pool(size=2, envs_per_worker=2, backend=backend, reset_timeout_s=100.0)

    async def scenario():
        await until(lambda: pool.states()["lost"] == 1)
        return pool.counters()

    counters = run(while_running(pool, scenario))
    # at the start, and 0, 0.03, 0.12, 0.5 and 1.0 times 100 s later, each after the one before
    assert backend.times(1) == [0, 0, 3, 15, 65, 165]
    assert counters["env/restart_failures"] == 5
    assert backend.times(0) == [0]


@pytest.mark.parametrize(
    ("error", "workers"), [(EnvError("crash", "it did not come up"), 1), (ProcessEndedError("killed"), 2), (None, 2)]
)
def test_a_build_that_fails_costs_its_worker_only_where_that_is_dead_or_does_not_answer(error, workers):
    backend = ScriptedWorkers({1: [error]})
    pool = make_pool(size=2, envs_per_worker=2, backend=backend)

    async def scenario():
        await until(lambda: pool.states()["idle"] == 2)
        return pool.counters()

    counters = run(while_running(pool, scenario))
    assert backend.launches == workers
    assert backend.kills == workers  # those that were replaced, and the last one at the end
    assert counters["env/restarts"] == workers  # a neighbour comes back only where its worker had to go
    assert len(backend.times(0)) == workers


BUILD_S = 5.0


class CountedWorkers(ScriptedWorkers):
    """A backend that gives each worker a name; the calls of a dead one raise."""

    def __init__(self):
        super().__init__({})
        self.living = []

    async def launch(self, make_env, count):
        self.launches += 1
        worker = CountedWorker(self)
        self.living.append(worker)
        return worker


class CountedWorker(ScriptedWorkers):
    def __init__(self, backend):
        super().__init__({})
        self._backend = backend

    async def call(self, index, method, *arguments):
        if self not in self._backend.living:
            raise ProcessEndedError("killed")
        if method == "build":
            await asyncio.sleep(BUILD_S)
        return await super().call(index, method, *arguments)

    async def kill(self):
        self._backend.kills += 1
        self._backend.living = [worker for worker in self._backend.living if worker is not self]


@pytest.mark.parametrize(("envs_per_worker", "launches"), [(1, 3), (2, 1)])
def test_a_hang_costs_its_worker_only_where_nothing_else_is_in_it(envs_per_worker, launches):
    backend = CountedWorkers()
    (task,) = fake_tasks(1)
    pool = make_pool(size=2, envs_per_worker=envs_per_worker, backend=backend)

    async def scenario():
        async with pool.lease(task) as neighbour:
            with pytest.raises(EnvError, match="step took longer"):
                async with pool.lease(task) as env:
                    await env.step(None)
            await until(lambda: pool.states()["idle"] == 1)
            await neighbour.reset(task)
        return backend.launches, pool.counters()

    made, counters = run(while_running(pool, scenario))
    assert made == launches
    assert counters["env/restarts"] == 1
    assert backend.living == []


@pytest.mark.parametrize("calls_again", [False, True])
def test_who_plays_in_a_worker_that_was_replaced_is_built_again_and_leaves_the_new_one_alone(calls_again):
    backend = CountedWorkers()
    (task,) = fake_tasks(1)
    pool = make_pool(size=3, envs_per_worker=3, backend=backend)

    async def scenario():
        async with pool.lease(task) as late:
            backend.living.clear()
            assert "killed" in str(await fail(pool, task))
            await until(lambda: pool.states()["idle"] == 2)
            if calls_again:
                with pytest.raises(EnvError, match="killed"):
                    await late.reset(task)
        await until(lambda: pool.states()["idle"] == 3)
        return pool.counters()

    counters = run(while_running(pool, scenario))
    assert (backend.launches, backend.kills) == (2, 2)
    assert counters["env/restarts"] == 3
    assert counters["env/fault_crash"] == 1 + calls_again


@pytest.mark.parametrize("free", [0, 3], ids=["asked for before", "asked for after"])
def test_free_environments_whose_worker_died_are_lent_when_they_are_built_again_and_each_to_one(free):
    backend = CountedWorkers()
    (task,) = fake_tasks(1)
    pool = make_pool(size=3, envs_per_worker=3, backend=backend)

    async def scenario():
        backend.living.clear()
        assert "killed" in str(await fail(pool, task))
        assert pool.states()["restarting"] == 3
        await until(lambda: pool.states()["idle"] >= free)
        async with AsyncExitStack() as leases:
            envs = [await leases.enter_async_context(pool.lease(task)) for _ in range(3)]
            for env in envs:
                await env.reset(task)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(solve(pool, task), timeout=100 * BUILD_S)
        return [env.name for env in envs], pool.counters()

    names, counters = run(while_running(pool, scenario))
    assert sorted(names) == ["1/3", "2/3", "3/3"]
    assert counters["env/restarts"] == 3


def test_a_call_may_take_as_long_as_its_deadline_and_no_longer():
    (task,) = fake_tasks(1)
    pool = make_pool(backend=ScriptedWorkers({}), step_timeout_s=30.0)

    async def scenario():
        began = asyncio.get_running_loop().time()
        with pytest.raises(EnvError, match="step took longer than 30 s") as caught:
            async with pool.lease(task) as env:
                await env.step(None)
        return caught.value.kind, asyncio.get_running_loop().time() - began

    kind, seconds = run(while_running(pool, scenario))
    assert kind == "timeout"
    assert seconds == pytest.approx(30.0)
