"""The failures that decoupled training is known for, each of them as a test of the collector.

The sources are issues of other systems: NeMo-RL 3238 (straggler) and 3488 (dead collector), slime 2339 (evaluation
during asynchronous training), verl 6780 (an on-policy mode that is not the synchronous run). That finished groups
survive a resume (SkyRL) stands with the data module, whose checkpoint it is.
"""

import asyncio
import concurrent.futures
import threading
import time
from dataclasses import replace

import pytest

from arpo.envs.fake import FakeDesktop
from arpo.errors import ArpoError, EngineError, RolloutError
from arpo.evaluation.evaluate import evaluate_tasks
from arpo.evaluation.settings import EvaluationSettings
from arpo.host import threads
from arpo.inference.engine import GenerateRequest, Sampling
from arpo.rollout.episode import EpisodeSpec, Meter, Responder, run_episode
from arpo.rollout.sampler import ShuffledTasks, TaskStatistics, derive_seed
from arpo.rollout.stream import ResumeState
from tests.inference.scripted import ScriptedEngine
from tests.rollout.conftest import COMPACT
from tests.rollout.support import TASKS, DirectEnv, ListedTasks, moody_clicker, red_clicker


def until(condition):
    for _ in range(4000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it never came true")


def numbers(batch):
    """The places, among all of a run of two groups an iteration, of the groups in a batch."""
    ids = [group.trajectories[0].id.split("/") for group in batch.groups]
    return [2 * int(iteration) + int(place) for iteration, place, _ in ids]


# --- a straggler


class StragglingEngine(ScriptedEngine):
    """Answers some episodes only after it was told to."""

    def __init__(self, chat, slow):
        super().__init__(chat, red_clicker(chat))
        self.slow = slow
        self.told = asyncio.Event()

    async def tell(self):
        self.told.set()

    async def generate(self, request):
        if request.conversation in self.slow:
            await self.told.wait()
        return await super().generate(request)


def learn(collector, iteration):
    """Take an iteration's groups, and update."""
    batch = collector.take(iteration, iteration)
    collector.runtime.update_weights([], iteration + 1)
    return batch


def test_a_straggler_delays_no_other_group_beyond_the_lag_bound(chat, make_collector):
    engine = StragglingEngine(chat, {"0/0/0"})
    collector = make_collector(engine=engine, size=5, group_size=2, max_policy_lag=2, order="finished")
    collector.submit(0, TASKS[:2], iterations=6)
    first = [learn(collector, iteration) for iteration in range(2)]  # go on without it
    assert 0 not in [number for batch in first for number in numbers(batch)]
    third = []
    thread = threading.Thread(target=lambda: third.append(learn(collector, 2)))
    thread.start()
    others = lambda: [group for group in collector.stream.waiting() if group.asked.number != 0]  # noqa: E731
    until(lambda: len(others()) == 5 and all(group.ended_as is not None for group in others()))
    assert not third  # (2 + 1) iterations of 2 groups are here, and all but one have ended: it waits for that one
    collector.runtime.run(engine.tell())
    thread.join()
    (batch,) = third
    assert 0 in numbers(batch)  # rather than throwing it away
    assert (batch.metrics["rollout/stale_groups"], batch.metrics["rollout/lag_max"]) == (0, 2)


def test_in_the_order_of_submission_an_iteration_waits_for_its_straggler(chat, make_collector):
    engine = StragglingEngine(chat, {"0/0/0"})
    collector = make_collector(engine=engine, size=5, group_size=2, max_policy_lag=2)
    collector.submit(0, TASKS[:2], iterations=6)
    first = []
    thread = threading.Thread(target=lambda: first.append(collector.take(0, 0)))
    thread.start()
    until(lambda: sum(group.ended_as is not None for group in collector.stream.waiting()) == 5)
    assert not first  # of (2 + 1) iterations of 2 groups all but one have ended, and one of them is of this iteration
    collector.runtime.run(engine.tell())
    thread.join()
    assert numbers(first[0]) == [0, 1]


# --- a collector that is dead or stands still


class DeadlyEngine(ScriptedEngine):
    """Ends the loop on which it is asked."""

    async def generate(self, request):
        asyncio.get_running_loop().stop()
        await asyncio.Event().wait()


def test_a_dead_loop_is_an_error_at_once_and_leaves_nothing_running(chat, make_collector):
    before = set(threading.enumerate())
    engine = DeadlyEngine(chat, red_clicker(chat))
    collector = make_collector(engine=engine)
    started = time.monotonic()
    collector.submit(0, TASKS)
    with pytest.raises(RolloutError, match=r"waits for iteration 0; .* the event loop of the rollouts has ended"):
        collector.take(0, 0)
    assert time.monotonic() - started < 10
    collector.close()
    until(lambda: set(threading.enumerate()) <= before)
    with pytest.raises(EngineError, match="closed"):
        asyncio.run(ScriptedEngine.generate(engine, GenerateRequest((1,), (), Sampling())))


class SilentEngine(ScriptedEngine):
    async def generate(self, request):
        await asyncio.Event().wait()


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


class BlockingEngine(ScriptedEngine):
    """Blocks the loop, as a coroutine does that calls what is not one."""

    def __init__(self, chat):
        super().__init__(chat, red_clicker(chat))
        self.go_on = threading.Event()

    async def generate(self, request):
        self.go_on.wait(60)
        return await super().generate(request)


class HangingDesktop(FakeDesktop):
    go_on = threading.Event()

    def step(self, action):
        self.go_on.wait(60)
        return super().step(action)


def test_an_engine_that_does_not_answer_is_named(chat, make_collector):
    collector = make_collector(engine=SilentEngine(chat, red_clicker(chat)), stall_s=0.5)
    with pytest.raises(RolloutError) as caught:
        collector.collect(TASKS, 0, 0)
    said = str(caught.value)
    assert "the trainer waits for iteration 0; 0 of 1 groups have ended" in said
    assert "3 engine requests are pending" in said
    assert "Environments: {'busy': 3}, 0 calls in flight" in said
    assert "episodes queued: {'train': 2}" in said  # of the four of the first group, and the group behind it


def test_environments_that_do_not_return_are_named(chat, make_collector):
    HangingDesktop.go_on.clear()
    collector = make_collector(
        engine=ScriptedEngine(chat, red_clicker(chat)), make_env=HangingDesktop, stall_s=0.5, step_timeout_s=60.0
    )
    with pytest.raises(RolloutError, match="3 calls to environments do not return"):
        collector.collect(TASKS, 0, 0)
    HangingDesktop.go_on.set()


def test_a_blocked_loop_is_named(chat, make_collector, monkeypatch):
    monkeypatch.setattr(threads, "ANSWER_S", 0.2)
    engine = BlockingEngine(chat)
    collector = make_collector(engine=engine, stall_s=0.5)
    with pytest.raises(RolloutError, match="does not answer, because something blocks its thread"):
        collector.collect(TASKS, 0, 0)
    started = time.monotonic()
    collector.close()  # and the run can end
    assert time.monotonic() - started < 10
    engine.go_on.set()
    until(lambda: "rollout" not in {thread.name for thread in threading.enumerate()})


def test_a_version_that_never_comes_is_named(chat, make_collector):
    collector = make_collector(
        engine=ScriptedEngine(chat, red_clicker(chat)), group_size=2, max_policy_lag=1, stall_s=3.0
    )
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

    collector = make_collector(engine=ScriptedEngine(chat, red_clicker(chat)))
    collector.begin(Failing(TASKS), ResumeState(0, 0, len(TASKS), last=1))
    with pytest.raises(ArpoError, match="no task is left"):
        collector.take(0, 0)


# --- evaluation during asynchronous training


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
    assert {step.policy_version for trajectory in result.trajectories for step in trajectory.steps} == {1}
    during = begun[begun.index(True) : len(begun) - begun[::-1].index(True)]
    # They take turns. One of five of the training's goes to asking for the next group of four: 16 · 4 / 5 = 12.8.
    # How many it is exactly depends on the clock.
    assert during.count(True) == 16
    assert 6 <= during.count(False) <= 20
    assert numbers(collector.take(1, 1))  # and the training is none the worse for it


# --- a fleet whose replicas are updated one after the other


class RollingEngine(ScriptedEngine):
    """Two replicas, the second one always a version behind the first; whoever lets it answer is answered by it."""

    @property
    def oldest_version(self):
        return max(self.policy_version - 1, 0)

    async def generate(self, request):
        response = await super().generate(request)
        assert request.least_version <= self.policy_version
        return replace(response, policy_version=max(self.policy_version - 1, request.least_version, 0))


@pytest.mark.parametrize("order", ["submitted", "finished"])
@pytest.mark.parametrize("lag", [0, 1, 2])
def test_no_group_is_begun_by_a_replica_that_would_make_it_stale(chat, make_collector, lag, order):
    collector = make_collector(
        engine=RollingEngine(chat, moody_clicker(chat)), size=5, group_size=2, max_policy_lag=lag, order=order
    )
    collector.submit(0, TASKS[:2], iterations=6)
    batches = [learn(collector, iteration) for iteration in range(6)]
    assert sorted(number for batch in batches for number in numbers(batch)) == list(range(12))
    assert all(batch.metrics["rollout/stale_episodes"] == 0 for batch in batches)
    assert max(batch.metrics["rollout/lag_max"] for batch in batches) == lag


def test_an_evaluation_is_of_the_newest_policy_alone(chat, make_collector):
    runtime = make_collector(engine=RollingEngine(chat, red_clicker(chat))).runtime
    for version in (1, 2):
        runtime.update_weights([], version)
    result = evaluate_tasks(runtime, TASKS, EvaluationSettings())
    assert {step.policy_version for trajectory in result.trajectories for step in trajectory.steps} == {2}


# --- lag 0 is the synchronous run


def test_without_a_lag_it_is_the_synchronous_run_bit_for_bit(chat, make_collector):
    """The other one is a loop over tasks, members and steps that knows nothing of collectors."""
    engine = ScriptedEngine(chat, moody_clicker(chat))
    collector = make_collector(engine=engine, size=3, seed=5)
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
        assert [dict(t.screenshots) for g in batch.groups for t in g.trajectories] == [
            dict(t.screenshots) for group in groups for t in group
        ]
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
