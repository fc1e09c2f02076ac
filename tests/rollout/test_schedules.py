"""The collector under schedules that nobody has thought of: whatever happens when, its promises hold."""

import asyncio
import random
import threading
from collections import Counter
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace

import pytest

from arpo.errors import ArpoError, EngineError
from arpo.evaluation.evaluate import evaluate_tasks
from arpo.evaluation.settings import EvaluationSettings
from arpo.rollout.sampler import ShuffledTasks, TaskRequest, TaskStatistics
from arpo.rollout.stream import RequestedGroup, ResumeState
from tests.envs.planned_faults import Fault, Faults, FaultyDesktop
from tests.inference.scripted import ScriptedEngine
from tests.rollout.support import TASKS, moody_clicker

ITERATIONS = 5


@dataclass(frozen=True)
class Schedule:
    """What a seed stands for."""

    seed: int
    order: str

    @property
    def numbers(self):
        rng = random.Random(self.seed)
        return {
            "lag": rng.randint(0, 3),
            "count": rng.randint(1, 3),
            "size": rng.randint(1, 5),
            "latency_s": rng.choice([0.0, 0.002, 0.01]),
            "fault": rng.choice([0.0, 0.1]),
        }


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
            asyncio.get_running_loop().stop()
            await asyncio.Event().wait()
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

    def __init__(self, chat, make_collector, schedule):
        self.chat, self.make_collector, self.schedule = chat, make_collector, schedule
        self.rng = random.Random(schedule.seed + 1000)
        self.numbers = schedule.numbers
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
            order=self.schedule.order,
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
        try:
            future.result(timeout=self.rng.random() * 0.01)
        except TimeoutError:
            future.cancel()
        except CancelledError:  # the loop has just died
            pass


@pytest.mark.parametrize("order", ["submitted", "finished"])
@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_when_nothing_is_stale_lost_or_counted_twice(chat, make_collector, tmp_path, seed, order):
    schedule = Schedule(seed, order)
    trial = Trial(chat, make_collector, schedule)
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
            versions = [step.policy_version for t in group.trajectories for step in t.steps]
            assert iteration - lag <= min(versions) <= max(versions) <= iteration

    sizes = {name: 1 + (number + 1) % 3 for number, name in enumerate(asked)}
    lines = Counter(
        line.split(",")[0]
        for path in (tmp_path / "trajectories" / "train").glob("*.jsonl")
        for line in path.read_text().splitlines()
    )
    assert set(lines.values()) == {1}
    assert len(lines) == sum(sizes.values())
