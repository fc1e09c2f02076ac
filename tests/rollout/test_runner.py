"""The queue for environments, and the fingerprints by which stored episodes are trusted."""

import asyncio
from dataclasses import replace

import pytest

from arpo.agent.prompt import Prompt
from arpo.rollout.episode import EpisodeSpec
from arpo.rollout.runner import BLOCK, PLACES, FairQueue, model_fingerprint, sampling_fingerprint
from arpo.rollout.settings import RolloutSettings
from arpo.types import Task


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


class Queue:
    """Episodes that hold their turn until they are told to end."""

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


def test_a_lane_is_served_in_the_order_in_which_it_asked():
    async def play():
        queue = Queue(1)
        queue.ask("train", "a", "b", "c")
        await settle()
        for name in "abc":
            assert queue.begun[-1] == name
            await queue.end(name)

    asyncio.run(play())


def test_an_evaluation_gets_every_second_turn_and_training_the_others():
    async def play():
        queue = Queue(2)
        queue.ask("train", *(f"t{n}" for n in range(5)))
        await settle()
        queue.ask("held_out", *(f"e{n}" for n in range(5)))
        await settle()
        assert queue.turns.queued() == {"train": 3, "held_out": 5}
        for name in ("t0", "t1", "t2", "e0"):
            await queue.end(name)
        assert queue.begun == ["t0", "t1", "t2", "e0", "t3", "e1"]

    asyncio.run(play())


def test_whoever_was_cancelled_is_passed_over_and_no_turn_is_lost():
    async def play():
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

    asyncio.run(play())


def test_a_turn_that_comes_with_a_cancellation_goes_on_to_the_next():
    async def play():
        turns = FairQueue(1)

        async def take():
            async with turns.turn("train"):
                pass

        async with turns.turn("train"):
            waiting, behind = (asyncio.create_task(take()) for _ in range(2))
            await settle()
        waiting.cancel()  # the turn is its own now, and it never gets to know
        await asyncio.wait_for(behind, timeout=1)

    asyncio.run(play())


SIZE = 4 * BLOCK * PLACES
"""A file that is read at every fourth block: at 0, 4 · BLOCK, 8 · BLOCK, …"""


@pytest.mark.parametrize("changed", [0, 4 * BLOCK * 100, 4 * BLOCK * (PLACES - 1)])
def test_a_change_at_the_beginning_or_far_inside_of_the_weights_is_seen(tmp_path, changed):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(SIZE))
    before = model_fingerprint(tmp_path)
    assert model_fingerprint(tmp_path) == before
    with weights.open("rb+") as file:
        file.seek(changed)
        file.write(b"\x01")
    assert model_fingerprint(tmp_path) != before


def test_an_episode_of_another_window_of_screenshots_stands_for_no_other():
    task = Task("t", "Click.")
    settings = RolloutSettings(group_size=1, max_steps=3, max_tokens=8, max_context=64, min_group_size=1)
    prints = {
        sampling_fingerprint(
            EpisodeSpec("0/0/0", task, 0, replace(settings, image_window=window)), Prompt.compact(), "m"
        )
        for window in (None, 1, 2)
    }
    assert len(prints) == 3


def test_an_episode_under_another_bound_on_actions_stands_for_no_other_and_records_from_before_it_stay_good():
    task = Task("t", "Click.")
    settings = RolloutSettings(group_size=1, max_steps=3, max_tokens=8, max_context=64, min_group_size=1)
    specs = [EpisodeSpec("0/0/0", task, 0, replace(settings, max_actions=bound)) for bound in (15, 16)]
    usual, other = (sampling_fingerprint(spec, Prompt.compact(), "m") for spec in specs)
    assert usual == "c16bd8c6d219abbd" != other  # as it was before there was a bound


def test_a_name_that_is_no_directory_stands_for_itself():
    assert model_fingerprint("ByteDance-Seed/UI-TARS-1.5-7B") == "ByteDance-Seed/UI-TARS-1.5-7B"
