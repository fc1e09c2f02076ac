"""Real faults of a fleet's processes: what they were asked is answered elsewhere, once, and another one comes."""

import asyncio
import os
import signal
from functools import partial

import pytest

from arpo.errors import EngineError, EngineGoneError
from arpo.inference.fleet import FleetEngine
from tests.inference.gated import DIES, KILLS, WEDGES, Gated, ask, asked, events, seen, weights, whole
from tests.inference.loop import run

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("one_ray")]


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    directory = tmp_path_factory.mktemp("fleet")
    # Fifteen seconds are long enough for a process that a busy machine holds up.
    fleet = FleetEngine(partial(Gated, directory), replicas=2, sync="rolling", stall_s=15)
    yield fleet, directory
    run(fleet.close())


@pytest.fixture
def directory(started):
    return started[1]


@pytest.fixture
def fleet(started):
    """Two replicas that serve version 1, and an empty directory."""
    fleet, directory = started
    run(whole(fleet))
    run(fleet.update_weights(weights(1.0), 1))
    run(answers(fleet))
    for file in directory.iterdir():
        file.unlink()
    return fleet


async def answers(fleet):
    """Have every replica answer, so that its losses so far count no more."""
    await fleet.wait_until_idle()
    await asyncio.gather(*(fleet.generate(ask(number)) for number in range(4)))


def grown(fleet, before, name):
    return fleet.counters()[name] - before.get(name, 0)


@pytest.mark.parametrize(
    "fault",
    [pytest.param(signal.SIGKILL, id="killed"), pytest.param(signal.SIGSTOP, id="stopped", marks=pytest.mark.long)],
)
async def test_requests_of_a_replica_that_dies_or_stands_still_are_answered_elsewhere_once(fleet, directory, fault):
    before = fleet.counters()
    request, pid = await asked(fleet, directory)
    os.kill(pid, fault)
    again = await seen(directory, "asked 1", count=2)
    assert again[1][1] != pid
    assert not request.done()
    (directory / "open_7").touch()
    response = await request
    assert response.token_ids == (again[1][1],)
    assert response.policy_version == 1
    await whole(fleet)
    assert len(events(directory, "answered 1 ")) == 1
    assert sum(grown(fleet, before, f"engine/replica_{n}/requests") for n in range(2)) == 1
    assert grown(fleet, before, "engine/moved_requests") == 1
    assert grown(fleet, before, "engine/restarts") == 1


@pytest.mark.long
@pytest.mark.parametrize("prompt", [WEDGES, DIES], ids=["wedged", "out of memory"])
async def test_an_engine_that_is_dead_in_a_process_that_lives_is_replaced_too(fleet, directory, prompt):
    before = fleet.counters()
    request, pid = await asked(fleet, directory)
    breaks = asyncio.create_task(fleet.generate(ask(2, prompt, conversation="a")))
    again = await seen(directory, "asked 1", count=2)
    assert again[1][1] != pid
    (directory / "open_7").touch()
    assert (await request).token_ids == (await breaks).token_ids == (again[1][1],)
    await whole(fleet)
    assert len(events(directory, "answered 1 ")) == 1
    assert grown(fleet, before, "engine/restarts") == 1


async def test_a_replica_that_was_restarted_gets_the_current_weights_before_its_first_request(fleet, directory):
    """The engine that comes back loads its checkpoint, which is version 0: slime's went on with it (miles 1724)."""
    await fleet.update_weights(weights(3.0), 5)
    await fleet.wait_until_idle()
    request, pid = await asked(fleet, directory)
    os.kill(pid, signal.SIGKILL)
    (directory / "open_7").touch()
    assert (await request).policy_version == 5
    await whole(fleet)
    served = {(await fleet.generate(ask(seed, conversation=str(seed)))).token_ids[0] for seed in range(10, 30)}
    (new,) = (process for _, process, _ in events(directory, "starts"))
    assert new in served
    of_new = [event for _, process, event in events(directory) if process == new]
    assert of_new[:3] == ["starts", "loads 5", "loaded 5"]
    assert not [event for event in of_new if event.startswith("answered") and not event.endswith(" by 5")]


async def test_an_update_during_which_a_replica_dies_reaches_the_others_and_the_new_one(fleet, directory):
    (directory / "die_in_load").touch()
    await fleet.update_weights(weights(2.0), 2)
    assert (await fleet.generate(ask(1))).policy_version == 2
    await fleet.wait_until_idle()
    await whole(fleet)
    versions = {(await fleet.generate(ask(seed, conversation=str(seed)))).policy_version for seed in range(10, 30)}
    assert versions == {2}
    assert len(events(directory, "starts")) == 1


@pytest.mark.long
async def test_an_update_does_not_wait_for_a_replica_that_is_being_started_which_loads_it_once(fleet, directory):
    request, pid = await asked(fleet, directory)
    (directory / "hold_start").touch()
    (directory / "open_7").touch()
    os.kill(pid, signal.SIGKILL)
    ((_, new, _),) = await seen(directory, "starts")
    await request
    await fleet.update_weights(weights(2.0), 2)
    await fleet.wait_until_idle()
    assert (await fleet.generate(ask(2))).policy_version == 2
    (directory / "hold_start").unlink()
    await whole(fleet)
    of_new = [event for _, process, event in events(directory) if process == new]
    assert of_new == ["starts", "loads 2", "loaded 2"]


@pytest.mark.long
async def test_while_every_replica_is_gone_requests_wait_and_then_go_on(fleet, directory):
    requests = [asyncio.create_task(fleet.generate(ask(n, 1, 7, conversation=str(n)))) for n in range(4)]
    processes = {pid for _, pid, _ in await seen(directory, "asked", count=4)}
    assert len(processes) == 2
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
    await seen(directory, "starts")
    (directory / "open_7").touch()
    assert [(await request).policy_version for request in requests] == [1] * 4
    await whole(fleet)
    assert sorted(event for _, _, event in events(directory, "answered")) == [f"answered {n} by 1" for n in range(4)]


@pytest.mark.long
async def test_a_request_that_kills_every_replica_it_meets_is_refused(fleet, directory):
    with pytest.raises(EngineError, match="3 replicas of the fleet died of one request"):
        await fleet.generate(ask(1, KILLS))
    await whole(fleet)
    assert (await fleet.generate(ask(2))).policy_version == 1


@pytest.mark.long
async def test_a_fleet_that_is_to_sleep_does_not_wait_for_a_replica_that_is_given_up_meanwhile(tmp_path):
    fleet = FleetEngine(partial(Gated, tmp_path), replicas=2, max_restarts=1)
    request, pid = await asked(fleet, tmp_path)
    (tmp_path / "hold_start").touch()
    (tmp_path / "no_more_starts").touch()
    (tmp_path / "open_7").touch()
    os.kill(pid, signal.SIGKILL)
    await seen(tmp_path, "starts", count=3)
    await request
    sleeps = asyncio.create_task(fleet.sleep())
    assert (await asyncio.wait([sleeps], timeout=0.2))[1] == {sleeps}
    (tmp_path / "hold_start").unlink()
    await asyncio.wait_for(sleeps, 60)
    assert len(events(tmp_path, "sleeps")) == 1
    await fleet.close()


@pytest.mark.long
async def test_a_fleet_whose_replicas_do_not_come_back_says_what_to_do(tmp_path):
    fleet = FleetEngine(partial(Gated, tmp_path), max_restarts=2)
    (tmp_path / "no_more_starts").touch()
    with pytest.raises(EngineGoneError, match=r"max_restarts=2 times in a row.*scripted not to start.*resume=auto"):
        await fleet.generate(ask(1, KILLS))
    with pytest.raises(EngineGoneError, match="every engine of the fleet is gone"):
        await fleet.update_weights(weights(1.0), 1)
    assert len(events(tmp_path, "starts")) == 1 + 2
    await fleet.close()


@pytest.mark.long
async def test_a_fleet_that_is_closed_starts_nothing_again(tmp_path, caplog):
    fleet = FleetEngine(partial(Gated, tmp_path))
    request, _ = await asked(fleet, tmp_path)
    await fleet.close()
    request.cancel()
    assert "is started again" not in caplog.text
    assert len(events(tmp_path, "starts")) == 1
