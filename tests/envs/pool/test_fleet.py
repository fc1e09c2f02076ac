"""How broken environments come back: when each is tried again, and what a worker has to do with it."""

import asyncio
import selectors
from contextlib import AsyncExitStack

import pytest

from arpo.errors import EnvError
from tests.envs.pool.support import TASK, fail, make_pool, solve, until, with_pool


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


def now():
    return asyncio.get_running_loop().time()


def jump(coroutine):
    """Run a coroutine on a clock that jumps: seconds of waiting pass at once where nothing but the loop waits."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(coroutine)


LONG_S = 1000.0
BUILD_S = 5.0


class ProcessEndedError(Exception):
    """Raised by a call of a worker that is dead."""


class ScriptedWorkers:
    """A backend without threads: environments fail to build as its script says, and steps hang.

    The script has the errors of an environment's first builds, by its position; None is a build that hangs.
    """

    def __init__(self, script=None, *, for_good=False, build_s=0.0):
        self.script = script or {}
        self.for_good = for_good
        self.build_s = build_s
        self.launches = self.kills = 0
        self.living, self.builds = [], []

    async def open(self):
        pass

    async def launch(self, make_env, count):
        self.launches += 1
        self.living.append(ScriptedWorker(self))
        return self.living[-1]

    async def close(self):
        pass

    def times(self, index):
        return [round(time, 3) for built, time in self.builds if built == index]


class ScriptedWorker:
    failures = (ProcessEndedError,)

    def __init__(self, backend):
        self._backend = backend

    async def call(self, index, method, *arguments):
        backend = self._backend
        if self not in backend.living:
            raise ProcessEndedError("killed")
        error = "none"
        if method == "build":
            backend.builds.append((index, now()))
            await asyncio.sleep(backend.build_s)
            errors = backend.script.get(index)
            error = (errors[0] if backend.for_good else errors.pop(0)) if errors else error
        if method == "step" or error is None:
            await asyncio.Event().wait()
        if isinstance(error, ProcessEndedError):
            raise error
        return None if error == "none" else error

    async def kill(self):
        self._backend.kills += 1
        self._backend.living = [worker for worker in self._backend.living if worker is not self]


def test_a_broken_environment_is_tried_again_after_longer_and_longer_waits_and_then_given_up():
    backend = ScriptedWorkers({1: [EnvError("reset", "no screen")]}, for_good=True)
    pool = make_pool(size=2, envs_per_worker=2, backend=backend, reset_timeout_s=100.0)
    with_pool(pool, lambda pool: until(lambda: pool.states()["lost"] == 1, LONG_S), jump)
    # at the start, and 0, 0.03, 0.12, 0.5 and 1.0 times 100 s later, each after the one before
    assert backend.times(1) == [0, 0, 3, 15, 65, 165]
    assert pool.counters()["env/restart_failures"] == 5
    assert backend.times(0) == [0]


@pytest.mark.parametrize(
    ("error", "workers"), [(EnvError("crash", "it did not come up"), 1), (ProcessEndedError("killed"), 2), (None, 2)]
)
def test_a_build_that_fails_costs_its_worker_only_where_that_is_dead_or_does_not_answer(error, workers):
    backend = ScriptedWorkers({1: [error]})
    pool = make_pool(size=2, envs_per_worker=2, backend=backend)

    async def scenario(pool):
        assert pool.states()["restarting"] == workers
        await until(lambda: pool.states()["idle"] == 2, LONG_S)

    with_pool(pool, scenario, jump)
    assert backend.launches == workers
    assert backend.kills == workers  # those that were replaced, and the last one at the end
    assert pool.counters()["env/restarts"] == workers  # a neighbour comes back only where its worker had to go
    assert len(backend.times(0)) == workers


@pytest.mark.parametrize(("envs_per_worker", "launches"), [(1, 3), (2, 1)])
def test_a_hang_costs_its_worker_only_where_nothing_else_is_in_it(envs_per_worker, launches):
    backend = ScriptedWorkers(build_s=BUILD_S)
    pool = make_pool(size=2, envs_per_worker=envs_per_worker, backend=backend, step_timeout_s=30.0)

    async def scenario(pool):
        async with pool.lease(TASK) as neighbour:
            began = now()
            error = await fail(pool)
            assert "step took longer than 30 s" in str(error)
            assert (error.kind, now() - began) == ("timeout", pytest.approx(30.0))
            await until(lambda: pool.states()["idle"] == 1)
            await neighbour.reset(TASK)
        return backend.launches

    assert with_pool(pool, scenario, jump) == launches
    assert pool.counters()["env/restarts"] == 1
    assert backend.living == []


@pytest.mark.parametrize("calls_again", [False, True])
def test_who_plays_in_a_worker_that_was_replaced_is_built_again_and_leaves_the_new_one_alone(calls_again):
    backend = ScriptedWorkers(build_s=BUILD_S)
    pool = make_pool(size=3, envs_per_worker=3, backend=backend)

    async def scenario(pool):
        async with pool.lease(TASK) as late:
            backend.living.clear()
            assert "killed" in str(await fail(pool))
            await until(lambda: pool.states()["idle"] == 2)
            if calls_again:
                with pytest.raises(EnvError, match="killed"):
                    await late.reset(TASK)
        await until(lambda: pool.states()["idle"] == 3)

    with_pool(pool, scenario, jump)
    assert (backend.launches, backend.kills) == (2, 2)
    assert pool.counters()["env/restarts"] == 3
    assert pool.counters()["env/fault_crash"] == 1 + calls_again


@pytest.mark.parametrize("free", [0, 3], ids=["asked for before", "asked for after"])
def test_free_environments_whose_worker_died_are_lent_when_they_are_built_again_and_each_to_one(free):
    backend = ScriptedWorkers(build_s=BUILD_S)
    pool = make_pool(size=3, envs_per_worker=3, backend=backend)

    async def scenario(pool):
        backend.living.clear()
        assert "killed" in str(await fail(pool))
        assert pool.states()["restarting"] == 3
        await until(lambda: pool.states()["idle"] >= free)
        async with AsyncExitStack() as leases:
            envs = [await leases.enter_async_context(pool.lease(TASK)) for _ in range(3)]
            for env in envs:
                await env.reset(TASK)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(solve(pool), timeout=100 * BUILD_S)
        return [env.name for env in envs]

    assert sorted(with_pool(pool, scenario, jump)) == ["1/3", "2/3", "3/3"]
    assert pool.counters()["env/restarts"] == 3
