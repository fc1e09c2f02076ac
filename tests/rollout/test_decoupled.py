"""The failures that decoupled training is known for, as tests of the collector, and random schedules at the end.

Issues of other systems: NeMo-RL 3238 (straggler) and 3488 (dead collector), slime 2339 (evaluation meanwhile), verl
6780 (an on-policy mode that is not the synchronous run). SkyRL's, of a resume, stands with the data module.
"""

import asyncio
import concurrent.futures
import random
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest

from arpo.envs.fake import FakeDesktop
from arpo.errors import ArpoError, EngineError, RolloutError
from arpo.evaluation.evaluate import evaluate_tasks
from arpo.evaluation.settings import EvaluationSettings
from arpo.host import threads
from arpo.inference.engine import GenerateRequest, Sampling
from arpo.rollout.episode import EpisodeSpec, Meter, Responder, run_episode
from arpo.rollout.sampler import ShuffledTasks, TaskRequest, TaskStatistics, derive_seed
from arpo.rollout.stream import RequestedGroup, ResumeState
from tests.envs.planned_faults import Fault, Faults, FaultyDesktop
from tests.inference.scripted import ScriptedEngine
from tests.rollout.conftest import COMPACT
from tests.rollout.support import TASKS, DirectEnv, ListedTasks, moody_clicker, red_clicker, solver, until


def numbers(batch):
    """The places, among all of a run of two groups an iteration, of the groups in a batch."""
    ids = [group.trajectories[0].id.split("/") for group in batch.groups]
    return [2 * int(iteration) + int(place) for iteration, place, _ in ids]


def straggling(chat, go_on):
    """An engine that answers the first episode only once it may go on."""

    async def hold(request):
        while request.conversation == "0/0/0" and not go_on.is_set():
            await asyncio.sleep(0.01)

    return ScriptedEngine(chat, red_clicker(chat), hold=hold)


def learn(collector, iteration):
    batch = collector.take(iteration, iteration)
    collector.runtime.update_weights([], iteration + 1)
    return batch


def test_a_straggler_delays_no_other_group_beyond_the_lag_bound(chat, make_collector):
    go_on = threading.Event()
    numbered = {"size": 5, "group_size": 2, "max_policy_lag": 2}
    collector = make_collector(engine=straggling(chat, go_on), order="finished", **numbered)
    collector.submit(0, TASKS[:2], iterations=6)
    first = [learn(collector, iteration) for iteration in range(2)]  # go on without it
    assert 0 not in [number for batch in first for number in numbers(batch)]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        third = pool.submit(learn, collector, 2)
        others = lambda: [group for group in collector.stream.waiting() if group.asked.number != 0]  # noqa: E731
        until(lambda: len(others()) == 5 and all(group.ended_as is not None for group in others()))
        assert not third.done()  # (2 + 1) iterations of 2 groups are here, and all but one have ended: it waits for it
        go_on.set()
    batch = third.result()
    assert 0 in numbers(batch)  # rather than throwing it away
    assert (batch.metrics["rollout/stale_groups"], batch.metrics["rollout/lag_max"]) == (0, 2)


def test_in_the_order_of_submission_an_iteration_waits_for_its_straggler(chat, make_collector):
    go_on = threading.Event()
    collector = make_collector(engine=straggling(chat, go_on), size=5, group_size=2, max_policy_lag=2)
    collector.submit(0, TASKS[:2], iterations=6)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first = pool.submit(collector.take, 0, 0)
        until(lambda: sum(group.ended_as is not None for group in collector.stream.waiting()) == 5)
        assert not first.done()  # of (2 + 1) iterations of 2 groups all but one have ended, and one of these is of it
        go_on.set()
    assert numbers(first.result()) == [0, 1]


async def end_the_loop(request):
    asyncio.get_running_loop().stop()
    await asyncio.Event().wait()


def test_a_dead_loop_is_an_error_at_once_and_leaves_nothing_running(chat, make_collector):
    before = set(threading.enumerate())
    engine = ScriptedEngine(chat, red_clicker(chat), hold=end_the_loop)
    collector = make_collector(engine=engine)
    started = time.monotonic()
    collector.submit(0, TASKS)
    with pytest.raises(RolloutError, match=r"waits for iteration 0; .* the event loop of the rollouts has ended"):
        collector.take(0, 0)
    assert time.monotonic() - started < 10
    collector.close()
    until(lambda: set(threading.enumerate()) <= before)
    with pytest.raises(EngineError, match="closed"):
        asyncio.run(engine.generate(GenerateRequest((1,), (), Sampling())))


def test_who_waits_hears_that_the_runtime_was_closed_meanwhile(make_collector, monkeypatch):
    runtime, wait = make_collector().runtime, concurrent.futures.wait
    future = runtime.submit(asyncio.Event().wait())

    def close_and_wait(*arguments, **options):
        monkeypatch.undo()
        runtime.close()  # as another thread may
        return wait(*arguments, **options)

    monkeypatch.setattr(concurrent.futures, "wait", close_and_wait)
    with pytest.raises(RolloutError, match=r"a test waits, .* the event loop of the rollouts has ended"):
        runtime.watch(future, lambda: "a test waits")


def test_an_engine_that_does_not_answer_is_named(chat, make_collector):
    silent = ScriptedEngine(chat, red_clicker(chat), hold=lambda request: asyncio.Event().wait())
    collector = make_collector(engine=silent, stall_s=0.5)
    with pytest.raises(RolloutError) as caught:
        collector.collect(TASKS, 0, 0)
    said = str(caught.value)
    assert "the trainer waits for iteration 0; 0 of 1 groups have ended" in said
    assert "3 engine requests are pending" in said
    assert "Environments: {'busy': 3}, 0 calls in flight" in said
    assert "episodes queued: {'train': 2}" in said  # of the four of the first group, and the group behind it


def test_environments_that_do_not_return_are_named(chat, make_collector):
    go_on = threading.Event()

    class HangingDesktop(FakeDesktop):
        def step(self, action):
            go_on.wait(60)
            return super().step(action)

    collector = make_collector(engine=solver(chat), make_env=HangingDesktop, stall_s=0.5, step_timeout_s=60.0)
    with pytest.raises(RolloutError, match="3 calls to environments do not return"):
        collector.collect(TASKS, 0, 0)
    go_on.set()


def test_a_blocked_loop_is_named(chat, make_collector, monkeypatch):
    monkeypatch.setattr(threads, "ANSWER_S", 0.2)
    go_on = threading.Event()

    async def block(request):  # as a coroutine does that calls what is not one
        go_on.wait(60)

    collector = make_collector(engine=ScriptedEngine(chat, red_clicker(chat), hold=block), stall_s=0.5)
    with pytest.raises(RolloutError, match="does not answer, because something blocks its thread"):
        collector.collect(TASKS, 0, 0)
    started = time.monotonic()
    collector.close()  # and the run can end
    assert time.monotonic() - started < 10
    go_on.set()
    until(lambda: "rollout" not in {thread.name for thread in threading.enumerate()})


def test_a_version_that_never_comes_is_named(chat, make_collector):
    collector = make_collector(engine=solver(chat), group_size=2, max_policy_lag=1, stall_s=3.0)
    collector.submit(0, TASKS[:2], iterations=6)
    for iteration in range(2):
        collector.take(iteration, iteration)  # and nobody updates the engine
    with pytest.raises(RolloutError, match="3 episodes wait until the engine serves the next policy version"):
        collector.take(2, 2)


def test_a_slow_rollout_is_no_stall(chat, make_collector):
    engine = ScriptedEngine(chat, red_clicker(chat), latency_s=1.0)
    collector = make_collector(engine=engine, stall_s=3.0, size=1, group_size=2)
    assert len(collector.collect(TASKS[:3:2], 0, 0).groups) == 2  # at least four requests of 1 s: more than 3 s


def test_silence_from_before_a_wait_is_no_stall(make_collector):
    runtime = make_collector(stall_s=1.0).runtime
    runtime.runner.activity.last -= 100.0
    assert runtime.run(asyncio.sleep(0.3, 7)) == 7


def test_a_sampler_that_fails_ends_the_wait_with_its_error(chat, make_collector):
    class Failing(ListedTasks):
        def next(self, statistics):
            raise ArpoError("no task is left")

    collector = make_collector(engine=solver(chat))
    collector.begin(Failing(TASKS), ResumeState(0, 0, len(TASKS), last=1))
    with pytest.raises(ArpoError, match="no task is left"):
        collector.take(0, 0)


def lanes(engine):
    """Whether each episode was one of an evaluation, in the order of their first requests."""
    episodes = dict.fromkeys(request.conversation for request in engine.requests)
    return [name.startswith("eval-") for name in episodes]


def test_an_evaluation_and_the_training_that_goes_on_share_the_environments(chat, make_collector):
    engine = ScriptedEngine(chat, red_clicker(chat), latency_s=0.01)
    collector = make_collector(engine=engine, size=2, max_policy_lag=4)
    collector.submit(0, TASKS, iterations=9)
    collector.take(0, 0)
    collector.runtime.update_weights([], 1)
    before = len(lanes(engine))
    result = evaluate_tasks(collector.runtime, TASKS, EvaluationSettings(rollouts_per_task=4), iteration=1)
    begun = lanes(engine)[before:]
    assert result.overall.episodes == 16
    assert {each.policy_version for trajectory in result.trajectories for each in trajectory.exchanges} == {1}
    during = begun[begun.index(True) : len(begun) - begun[::-1].index(True)]
    # They take turns. One of five of the training's goes to asking for the next group of four: 16 · 4 / 5 = 12.8.
    # How many it is exactly depends on the clock.
    assert during.count(True) == 16
    assert 6 <= during.count(False) <= 20
    assert numbers(collector.take(1, 1))  # and the training is none the worse for it


def test_an_evaluation_is_of_the_newest_policy_alone(chat, make_collector):
    engine = RandomEngine(chat, random.Random(0), latency_s=0.0, fault=0.0, deadly=False)
    runtime = make_collector(engine=engine).runtime
    for version in (1, 2):
        runtime.update_weights([], version)
    result = evaluate_tasks(runtime, TASKS, EvaluationSettings())
    assert {each.policy_version for trajectory in result.trajectories for each in trajectory.exchanges} == {2}


def test_without_a_lag_it_is_the_synchronous_run_bit_for_bit(chat, make_collector):
    """The other one is a loop over tasks, members and steps that knows nothing of collectors."""
    collector = make_collector(engine=ScriptedEngine(chat, moody_clicker(chat)), size=3, seed=5)
    sampler = ShuffledTasks(TASKS, tasks_per_iteration=3, seed=2)
    collector.begin(sampler, ResumeState(0, 0, 3, last=4))
    ours = []
    for iteration in range(4):
        ours.append(collector.take(iteration, iteration))
        collector.runtime.update_weights([], iteration + 1)
    theirs = asyncio.run(play_in_turn(chat, collector.settings))
    for batch, groups in zip(ours, theirs, strict=True):
        collected = [[replace(t, sampling="") for t in group.trajectories] for group in batch.groups]
        assert collected == groups
        shown = [dict(trajectory.screenshots) for group in batch.groups for trajectory in group.trajectories]
        assert shown == [dict(trajectory.screenshots) for group in groups for trajectory in group]
        assert (batch.metrics["rollout/lag_mean"], batch.metrics["rollout/lag_max"]) == (0, 0)
        assert batch.metrics["rollout/groups_running"] == 0  # nothing runs ahead


async def play_in_turn(chat, numbers):
    responder = Responder(ScriptedEngine(chat, moody_clicker(chat)), chat, COMPACT)
    sampler = ShuffledTasks(TASKS, tasks_per_iteration=3, seed=2)
    batches = []
    for iteration in range(4):
        responder.engine.policy_version = iteration
        groups = []
        for place in range(3):
            task = sampler.next(TaskStatistics()).task
            seeds = [derive_seed(5, iteration, task.id, place, member) for member in range(4)]
            specs = [
                EpisodeSpec(f"{iteration}/{place}/{member}", task, seed, numbers) for member, seed in enumerate(seeds)
            ]
            groups.append([await run_episode(spec, DirectEnv(FakeDesktop()), responder, Meter()) for spec in specs])
        batches.append(groups)
    return batches


ITERATIONS = 5


class RandomEngine(ScriptedEngine):
    """Two replicas, one of which may be a version behind; slow or fast, failing now and then, and perhaps deadly."""

    def __init__(self, chat, rng, latency_s, fault, deadly):
        super().__init__(chat, moody_clicker(chat))
        self.rng, self.latency, self.fault = rng, latency_s, fault
        self.left = rng.randint(1, 60) if deadly else 10**6
        """Requests until the loop dies on which it is asked."""

    @property
    def oldest_version(self):
        return max(self.policy_version - 1, 0)

    async def generate(self, request):
        self.left -= 1
        if self.left == 0:
            await end_the_loop(request)
        await asyncio.sleep(self.rng.expovariate(1) * self.latency)
        if self.rng.random() < self.fault:
            raise EngineError("at random")
        assert request.least_version <= self.policy_version
        oldest = max(self.policy_version - 1, request.least_version, 0)
        response = await super().generate(request)
        return replace(response, policy_version=self.rng.randint(oldest, max(oldest, response.policy_version)))


class Watcher(ShuffledTasks):
    """Asks for groups of several sizes, and counts how many are there when it is asked."""

    def __init__(self, count):
        super().__init__(TASKS, count, seed=0)
        self.collector = None
        self.most = 0

    def next(self, statistics):
        self.most = max(self.most, len(self.collector.stream.waiting()) + 1)
        return replace(super().next(statistics), group_size=1 + self._taken % 3)


class Trial:
    """A run of some iterations in one folder, killed at random and resumed from the last checkpoint."""

    def __init__(self, chat, make_collector, seed, order):
        self.chat, self.make_collector, self.order = chat, make_collector, order
        self.rng = random.Random(seed + 1000)
        drawn = random.Random(seed)
        self.numbers = {
            "lag": drawn.randint(0, 3),
            "count": drawn.randint(1, 3),
            "size": drawn.randint(1, 5),
            "latency_s": drawn.choice([0.0, 0.002, 0.01]),
            "fault": drawn.choice([0.0, 0.1]),
        }
        self.batches = {}
        self.deaths = 0
        self.saved = None
        self.iteration = 0

    def play(self):
        while self.iteration < ITERATIONS:
            collector, sampler = self.begin(deadly=self.deaths < 3)
            try:
                self.go_on(collector)
            except ArpoError:
                assert self.engine.left <= 0  # nothing else may end it
                self.deaths += 1
            assert sampler.most <= (self.numbers["lag"] + 1) * self.numbers["count"]
            if self.iteration == ITERATIONS:
                assert collector.runtime.runner.turns._free == self.numbers["size"]
                assert collector.runtime.pool.states()["busy"] == 0
            self.engine.left = 10**6  # not while it is closed
            collector.close()
        return self.batches

    def begin(self, *, deadly):
        numbers = self.numbers
        self.engine = RandomEngine(self.chat, self.rng, numbers["latency_s"], numbers["fault"], deadly)
        faults = Faults(plan=[Fault("error", "step", probability=numbers["fault"], attempts=1000)])
        collector = self.make_collector(
            engine=self.engine,
            make_env=lambda: FaultyDesktop(faults),
            size=numbers["size"],
            max_policy_lag=numbers["lag"],
            order=self.order,
            max_attempts=1000,
            min_group_size=1,
            stall_s=20.0,
        )
        sampler = Watcher(numbers["count"])
        sampler.collector = collector
        pending = []
        self.iteration = 0 if self.saved is None else self.saved["iteration"]
        if self.saved is not None:
            sampler.load_state_dict(self.saved["sampler"])
            collector.statistics.load_state_dict(self.saved["statistics"])
            pending = [
                RequestedGroup(number, TaskRequest(sampler.tasks[task], size, steps))
                for number, task, size, steps in self.saved["pending"]
            ]
        course = ResumeState(self.iteration, self.iteration, numbers["count"], ITERATIONS, pending)
        store = collector.runtime.store
        store.truncate(self.iteration, self.iteration, first_iteration=course.first_iteration)
        self.kept = set(store.finished(course.first_iteration))
        self.engine.policy_version = max(0, self.iteration - 1)  # the other replica loads the first weights later
        collector.runtime.update_weights([], self.iteration)
        collector.begin(sampler, course)
        return collector, sampler

    def go_on(self, collector):
        while self.iteration < ITERATIONS:
            if self.rng.random() < 0.3:
                self.interrupt(collector)
            batch = collector.take(self.iteration, self.iteration)
            threading.Event().wait(self.rng.random() * 4 * self.numbers["latency_s"])  # an update
            self.batches[self.iteration] = batch
            self.iteration += 1
            collector.runtime.update_weights([], self.iteration)
            if self.rng.random() < 0.3:
                evaluate_tasks(collector.runtime, TASKS[:2], EvaluationSettings(), iteration=self.iteration)
            if self.rng.random() < 0.7:
                self.saved = collector.state_dict() | {"iteration": self.iteration}
        played = {request.conversation for request in self.engine.requests}
        assert not self.kept & played  # what had ended is not played again

    def interrupt(self, collector):
        """Give up a wait at some moment, before or after its result has come."""
        future = collector.runtime.submit(collector.stream.complete(self.iteration))
        with suppress(TimeoutError, concurrent.futures.CancelledError):  # the loop may have just died
            future.result(timeout=self.rng.random() * 0.01)
        future.cancel()


@pytest.mark.parametrize("order", ["submitted", "finished"])
@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_when_nothing_is_stale_lost_or_counted_twice(chat, make_collector, tmp_path, seed, order):
    trial = Trial(chat, make_collector, seed, order)
    batches = trial.play()
    lag, count = trial.numbers["lag"], trial.numbers["count"]

    names = {i: [group.trajectories[0].id.rsplit("/", 1)[0] for group in batches[i].groups] for i in batches}
    asked = [f"{iteration}/{place}" for iteration in range(ITERATIONS) for place in range(count)]
    assert sorted(name for some in names.values() for name in some) == asked
    if order == "submitted":
        assert [name for iteration in range(ITERATIONS) for name in names[iteration]] == asked

    sampler = ShuffledTasks(TASKS, count, seed=0)
    tasks = dict(zip(asked, (sampler.next(TaskStatistics()).task.id for _ in asked), strict=True))
    for iteration, batch in batches.items():
        assert batch.metrics["rollout/stale_episodes"] == 0
        for name, group in zip(names[iteration], batch.groups, strict=True):
            assert group.task.id == tasks[name]
            assert [t.id for t in group.trajectories] == [f"{name}/{n}" for n in range(len(group.trajectories))]
            versions = [each.policy_version for t in group.trajectories for each in t.exchanges]
            assert iteration - lag <= min(versions) <= max(versions) <= iteration

    sizes = {name: 1 + (number + 1) % 3 for number, name in enumerate(asked)}
    paths = (tmp_path / "trajectories" / "train").glob("*.jsonl")
    lines = Counter(line.split(",")[0] for path in paths for line in path.read_text().splitlines())
    assert set(lines.values()) == {1}
    assert len(lines) == sum(sizes.values())
