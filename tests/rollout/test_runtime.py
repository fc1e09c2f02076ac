"""The runtime: its event loop, the queue for environments, and the fingerprints of stored episodes."""

import asyncio
import threading
import time

import pytest

from arpo.agent.prompt import Prompt
from arpo.envs.pool.pool import EnvPool
from arpo.errors import ArpoError, ConfigError, EngineError, EnvError
from arpo.host.threads import BackgroundLoop
from arpo.inference.engine import GenerateRequest, Sampling
from arpo.rollout.episode import EpisodeSpec
from arpo.rollout.runtime import BLOCK, PLACES, FairQueue, ServedVersions, model_fingerprint, sampling_fingerprint
from arpo.rollout.settings import RolloutSettings
from arpo.types import Task
from tests.inference.scripted import ScriptedEngine
from tests.rollout.support import TASKS, interrupted, moody_clicker, red_clicker


async def thread_name():
    return threading.current_thread().name


def test_a_loop_runs_coroutines_in_its_thread_cancels_them_when_it_is_closed_and_starts_again():
    loop, ended = BackgroundLoop("test"), []
    with pytest.raises(ArpoError, match=r"call start\(\) first"):
        loop.run(asyncio.sleep(0))

    async def work():
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.05)
            ended.append(True)

    for _ in range(2):
        loop.start()
        assert loop.run(thread_name()) == "test"
        future = loop.submit(work())
        loop.run(asyncio.sleep(0))
        loop.close()
        loop.close()
        assert future.cancelled()
        assert "test" not in {thread.name for thread in threading.enumerate()}
    assert ended == [True, True]


def test_ctrl_c_interrupts_waiting_at_once():
    loop = BackgroundLoop("test")
    loop.start()
    started = time.monotonic()
    with interrupted():
        loop.run(asyncio.sleep(60))
    assert time.monotonic() - started < 20
    assert loop.run(thread_name()) == "test"  # and the loop lives
    loop.close()


def test_weights_and_requests_reach_the_engine(chat, make_collector):
    engine = ScriptedEngine(chat, lambda request: "hello")
    runtime = make_collector(engine=engine).runtime
    runtime.update_weights(iter([]), version=3)
    assert (engine.policy_version, engine.updates, runtime.served) == (3, 1, ServedVersions(3, 3))
    response = runtime.run(runtime.engine.generate(GenerateRequest((1, 2), (), Sampling())))
    assert (chat.decode(response.token_ids), response.policy_version) == ("hello", 3)


def test_the_status_can_be_read_from_another_thread(chat, make_collector):
    collector = make_collector(engine=ScriptedEngine(chat, moody_clicker(chat), latency_s=0.01), start=False)
    assert collector.runtime.status().name == ""
    collector.runtime.start()
    seen, busy, stop = [], [], threading.Event()

    def watch():
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


def is_closed(engine):
    try:
        asyncio.run(engine.generate(GenerateRequest((1,), (), Sampling())))
    except EngineError:
        return True
    return False


class ReluctantPool(EnvPool):
    async def close(self):
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


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


class Queue:
    """Episodes that hold their turn until `end`."""

    def __init__(self, count):
        self.turns = FairQueue(count)
        self.begun = []
        self.tasks = {}

    def ask(self, lane, *names):
        for name in names:
            self.tasks[name] = asyncio.create_task(self._play(lane, name))

    async def _play(self, lane, name):
        async with self.turns.turn(lane):
            self.begun.append(name)
            await asyncio.Event().wait()

    async def end(self, name):
        self.tasks.pop(name).cancel()
        await settle()


async def test_a_lane_is_served_in_the_order_in_which_it_asked():
    queue = Queue(1)
    queue.ask("train", "a", "b", "c")
    await settle()
    for name in "abc":
        assert queue.begun[-1] == name
        await queue.end(name)


async def test_an_evaluation_gets_every_second_turn_and_training_the_others():
    queue = Queue(2)
    queue.ask("train", *(f"t{n}" for n in range(5)))
    await settle()
    queue.ask("held_out", *(f"e{n}" for n in range(5)))
    await settle()
    assert queue.turns.queued() == {"train": 3, "held_out": 5}
    for name in ("t0", "t1", "t2", "e0"):
        await queue.end(name)
    assert queue.begun == ["t0", "t1", "t2", "e0", "t3", "e1"]


async def test_whoever_was_cancelled_is_passed_over_and_no_turn_is_lost():
    queue = Queue(1)
    queue.ask("train", "a", "b", "c")
    await settle()
    await queue.end("b")
    assert queue.turns.queued() == {"train": 1}
    queue.tasks["a"].cancel()
    await asyncio.sleep(0)
    await queue.end("c")  # perhaps while the turn is on its way to it
    queue.ask("train", "d")
    await settle()
    assert queue.begun[-1] == "d"
    assert queue.turns.queued() == {}


async def test_a_turn_that_comes_with_a_cancellation_goes_on_to_the_next():
    turns = FairQueue(1)

    async def take():
        async with turns.turn("train"):
            pass

    async with turns.turn("train"):
        waiting, behind = (asyncio.create_task(take()) for _ in range(2))
        await settle()
    waiting.cancel()  # the turn is its own now, and it never gets to know
    await asyncio.wait_for(behind, timeout=1)


@pytest.mark.parametrize("changed", [0, 4 * BLOCK * 100, 4 * BLOCK * (PLACES - 1)])
def test_a_change_at_the_beginning_or_far_inside_of_the_weights_is_seen(tmp_path, changed):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(4 * BLOCK * PLACES))  # is read at every fourth block: at 0, 4 · BLOCK, 8 · BLOCK, …
    before = model_fingerprint(tmp_path)
    assert model_fingerprint(tmp_path) == before
    with weights.open("rb+") as file:
        file.seek(changed)
        file.write(b"\x01")
    assert model_fingerprint(tmp_path) != before


def fingerprint(**changes):
    settings = RolloutSettings(group_size=1, max_steps=3, max_tokens=8, max_context=64, min_group_size=1, **changes)
    return sampling_fingerprint(EpisodeSpec("0/0/0", Task("t", "Click."), 0, settings), Prompt.compact(), "m")


def test_an_episode_of_another_window_or_bound_on_actions_stands_for_no_other_and_older_records_stay_good():
    assert fingerprint() == fingerprint(max_actions=15) == "c16bd8c6d219abbd"  # as it was before there was either
    others = ({"image_window": 1}, {"image_window": 2}, {"max_actions": 16})
    assert len({fingerprint(), *(fingerprint(**changes) for changes in others)}) == 4


def test_a_name_that_is_no_directory_stands_for_itself():
    assert model_fingerprint("ByteDance-Seed/UI-TARS-1.5-7B") == "ByteDance-Seed/UI-TARS-1.5-7B"


class BlindPrompt(Prompt):
    """Forgets the picture."""

    def messages(self, instruction):
        return [{"role": "user", "content": instruction}]


def test_an_episode_whose_pictures_have_no_placeholders_is_not_stored(make_collector):
    collector = make_collector(prompt=BlindPrompt.compact())
    with pytest.raises(ValueError, match="exchange 0: 1 pictures but 0 image placeholders in added_ids"):
        collector.collect(TASKS, 0, 2)
    assert collector.runtime.store.iterations() == []
