"""How new weights come to a fleet: one replica after the other, each examined before it serves, nothing lost."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from arpo.errors import EngineGoneError, WeightSyncError
from arpo.inference.fleet import FleetEngine
from tests.inference.gated import Gated, ask, asked, events, seen, weights
from tests.inference.loop import run

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("one_ray")]

Start = Callable[..., tuple[FleetEngine, Path]]


class Fleets:
    """Fleets by their options, of which each is started once: an actor imports torch, which takes seconds."""

    def __init__(self, directory):
        self._directory = directory
        self._fleets: dict[str, FleetEngine] = {}

    async def start(self, **options):
        """A fleet as if it had just been started, and the directory of its engines."""
        name = repr(options)
        directory = self._directory / str(len(self._fleets))
        if name in self._fleets:
            directory = self._directory / str(list(self._fleets).index(name))
            await self._fleets[name].update_weights(weights(0.0), 0)
            await self._fleets[name].wait_until_idle()
            for file in directory.iterdir():
                file.unlink()
        else:
            directory.mkdir(exist_ok=True)
            options = {"replicas": 2, "sync": "rolling"} | options
            self._fleets[name] = FleetEngine(partial(Gated, directory), **options)
        return self._fleets[name], directory

    def close(self):
        for fleet in self._fleets.values():
            run(fleet.close())


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    fleets = Fleets(tmp_path_factory.mktemp("fleets"))
    yield fleets.start
    fleets.close()


async def homes(fleet):
    """The processes that answer for the conversations a and b: one each, if no replica was out the first time."""
    found = [(await fleet.generate(ask(900 + n, conversation=name))).token_ids[0] for n, name in enumerate("ab")]
    assert len(set(found)) == 2
    return found


async def test_requests_are_answered_all_through_a_rolling_update_and_none_is_lost(start):
    """A sync that ends what runs killed verl's rollouts (7611)."""
    fleet, directory = await start()
    await homes(fleet)
    versions = []
    seed = 0
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:  # which ends with the update's error
        group.create_task(fleet.update_weights(weights(2.0), 1))
        while len(events(directory, "loaded")) < 2 or seed <= 50:
            versions.append((await fleet.generate(ask(seed, conversation="ab"[seed % 2]))).policy_version)
            seed += 1
    await fleet.wait_until_idle()
    versions.append((await fleet.generate(ask(seed))).policy_version)
    assert versions[0] == 0
    assert versions[-1] == 1
    answered = Counter(event.split()[1] for _, _, event in events(directory, "answered"))
    assert answered == Counter([*map(str, range(len(versions))), "900", "901"])  # each of them once
    first, last = events(directory, "loads"), events(directory, "loaded")
    assert first[1][0] > last[0][0]  # the second goes out when the first is back


async def test_the_trainer_goes_on_while_a_replica_drains_and_what_it_changes_reaches_nobody(start):
    fleet, directory = await start()
    mine = torch.full((4,), 2.0)
    home, other = await homes(fleet)
    slow, _ = await asked(fleet, directory, conversation="b")
    await fleet.update_weights([("weight", mine)], 1)
    assert [pid for _, pid, _ in events(directory, "loads")] == [home]  # the busy one comes last
    mine.fill_(-100.0)  # the next optimizer step
    assert not slow.done()
    assert fleet.oldest_version == 0
    (directory / "open_7").touch()
    old = await slow
    assert (old.token_ids, old.policy_version) == ((other,), 0)
    await fleet.wait_until_idle()
    assert fleet.oldest_version == 1
    assert (await fleet.generate(ask(2, conversation="b"))).logprobs == (8.0,)
    assert not events(directory, "cancelled")


@pytest.mark.long
async def test_past_the_deadline_a_request_is_asked_again_elsewhere_with_its_seed_and_is_answered_once(start):
    fleet, directory = await start(drain_s=0.1)
    home, other = await homes(fleet)
    slow, _ = await asked(fleet, directory, conversation="b")
    began = time.monotonic()
    await fleet.update_weights(weights(1.0), 1)
    await seen(directory, "cancelled 1")
    assert time.monotonic() - began < 15  # and not the default of 30 s
    assert [pid for _, pid, _ in await seen(directory, "asked 1", count=2)] == [other, home]
    (directory / "open_7").touch()
    response = await slow
    assert (response.token_ids, response.policy_version) == ((home,), 1)
    assert len(events(directory, "answered 1 ")) == 1
    assert fleet.counters()["engine/moved_requests"] == 1
    assert sum(fleet.counters()[f"engine/replica_{n}/requests"] for n in range(2)) == 2 + 1


@pytest.mark.long
async def test_at_most_so_many_replicas_are_out(start):
    fleet, directory = await start(replicas=3, max_unavailable=2)
    (directory / "hold_load").touch()
    update = asyncio.create_task(fleet.update_weights(weights(1.0), 1))
    await seen(directory, "loads", count=2)
    for seed in range(20):
        assert (await fleet.generate(ask(seed))).policy_version == 0
    assert len(events(directory, "loads")) == 2
    (directory / "hold_load").unlink()
    await update
    await fleet.wait_until_idle()
    assert len(events(directory, "loaded 1")) == 3


async def test_a_global_update_waits_for_every_replica_and_nobody_serves_meanwhile(start):
    fleet, directory = await start(sync="global")
    (directory / "hold_load").touch()
    begun, go_on = threading.Event(), threading.Event()

    def gathered():
        begun.set()
        go_on.wait()
        yield from weights(1.0)

    update = asyncio.create_task(fleet.update_weights(gathered(), 1))
    await asyncio.to_thread(begun.wait)
    waits = asyncio.create_task(fleet.generate(ask(1)))  # no replica has gone out yet
    await asyncio.sleep(0)
    go_on.set()
    await seen(directory, "loads", count=2)  # both at once
    (directory / "hold_load").unlink()
    await update
    assert (await waits).policy_version == 1
    assert len(events(directory, "loaded 1")) == 2
    assert events(directory, "answered 1")[0][0] > max(at for at, _, _ in events(directory, "loaded"))


async def test_a_replica_with_other_weights_never_serves_and_the_next_request_says_so(start):
    fleet, directory = await start(drain_s=29)
    _, second = await homes(fleet)
    slow, _ = await asked(fleet, directory, conversation="a")
    # The idle one goes first; the other one has not loaded yet.
    (directory / "refuse_load").touch()
    update = asyncio.create_task(fleet.update_weights(weights(1.0), 1))
    with pytest.raises(WeightSyncError, match="engine 1 of the fleet: scripted to hold other weights"):
        await update
    (directory / "open_7").touch()
    assert (await slow).policy_version == 0  # what was asked before is answered
    for again in (fleet.generate(ask(2)), fleet.wait_until_idle(), fleet.update_weights(weights(2.0), 2)):
        with pytest.raises(WeightSyncError, match="engine 1 of the fleet: scripted to hold other weights"):
            await again
    of_second = [event for _, process, event in events(directory, "answered") if process == second]
    assert of_second == ["answered 901 by 0"]


@pytest.mark.long
async def test_a_replica_with_other_weights_stops_the_next_request_while_the_trainer_goes_on(start):
    fleet, directory = await start(drain_s=28)

    async def ask_on():
        async with asyncio.timeout(60):
            while True:
                await fleet.generate(ask(3))

    await homes(fleet)
    slow, _ = await asked(fleet, directory, conversation="b")
    await fleet.update_weights(weights(1.0), 1)  # the other one serves
    (directory / "refuse_load").touch()
    assert (await fleet.generate(ask(2))).policy_version == 1
    (directory / "open_7").touch()
    await slow
    with pytest.raises(WeightSyncError, match="engine 1 of the fleet: scripted to hold other weights"):
        await ask_on()


@pytest.mark.long
async def test_weights_that_break_off_reach_no_replica_and_a_closed_fleet_answers_nothing(start):
    fleet, directory = await start(replicas=1, drain_s=29)

    def broken():
        yield from weights(1.0)
        raise RuntimeError("the trainer has no more memory")

    with pytest.raises(WeightSyncError, match=r"in the middle .*: the trainer has no more memory"):
        await fleet.update_weights(broken(), 1)
    assert not events(directory, "loads")
    assert (await fleet.replicas[0].ask(ask(1))).policy_version == 0
    with pytest.raises(WeightSyncError, match="in the middle"):  # one that is restarted now would find no weights
        await fleet.generate(ask(2))
    await fleet.close()
    with pytest.raises(EngineGoneError, match="closed"):
        await fleet.generate(ask(1))


async def test_a_request_that_is_cancelled_while_no_replica_serves_disturbs_nobody(start):
    """A cancel around a pause killed every rank of prime-rl's engine (2841)."""
    fleet, directory = await start(sync="global")
    (directory / "hold_load").touch()
    update = asyncio.create_task(fleet.update_weights(weights(1.0), 1))
    await seen(directory, "loads", count=2)
    gone, stays = (asyncio.create_task(fleet.generate(ask(seed))) for seed in (1, 2))
    await asyncio.sleep(0)
    gone.cancel()
    (directory / "hold_load").unlink()
    await update
    assert (await stays).policy_version == 1
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert not events(directory, "asked 1")
    assert len(await homes(fleet)) == 2  # both live


async def test_an_update_that_is_cancelled_while_no_replica_serves_leaves_no_request_waiting(start):
    fleet, directory = await start(sync="global")
    (directory / "hold_load").touch()
    update = asyncio.create_task(fleet.update_weights(weights(1.0), 1))
    await seen(directory, "loads", count=2)
    waits = asyncio.create_task(fleet.generate(ask(1)))
    update.cancel()
    with pytest.raises(asyncio.CancelledError):
        await update
    (directory / "hold_load").unlink()
    assert (await asyncio.wait_for(waits, 60)).policy_version == 1  # the replicas were not left in mid-update
    await fleet.wait_until_idle()
    await homes(fleet)


async def test_a_request_whose_caller_has_gone_is_cancelled_in_its_engine(start):
    fleet, directory = await start()
    gone, _ = await asked(fleet, directory)
    gone.cancel()
    await seen(directory, "cancelled 1")


async def test_the_next_update_waits_for_the_roll_before(start):
    fleet, directory = await start()
    await homes(fleet)
    slow, _ = await asked(fleet, directory, conversation="b")
    await fleet.update_weights(weights(1.0), 1)
    later = asyncio.create_task(fleet.update_weights(weights(2.0), 2))
    assert (await asyncio.wait([later], timeout=0.2))[1] == {later}
    (directory / "open_7").touch()
    await later
    await fleet.wait_until_idle()
    assert (await slow).policy_version == 0
    assert [event for _, _, event in events(directory, "loads")] == ["loads 1", "loads 1", "loads 2", "loads 2"]
