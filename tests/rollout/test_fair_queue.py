"""Who gets an environment next."""

import asyncio

from arpo.rollout.runner import FairQueue


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
