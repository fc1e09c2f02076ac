"""Real faults of a fleet's processes: what they were asked is answered elsewhere, once, and another one comes."""

import asyncio
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from arpo.errors import EngineError, EngineGoneError
from arpo.inference.engine import Response
from arpo.inference.fleet import FleetEngine
from tests.inference.conftest import run
from tests.inference.gated import DIES, KILLS, WEDGES, Gated, ask, events, seen, weights, whole

pytestmark = [pytest.mark.ray, pytest.mark.slow]

STALL_S = 15
"""Long enough for a process that a busy machine holds up."""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FleetEngine, Path]]:
    directory = tmp_path_factory.mktemp("fleet")
    fleet = FleetEngine(partial(Gated, directory), replicas=2, sync="rolling", stall_s=STALL_S)
    yield fleet, directory
    run(fleet.close())


@pytest.fixture
def directory(started: tuple[FleetEngine, Path]) -> Path:
    return started[1]


@pytest.fixture
def fleet(started: tuple[FleetEngine, Path]) -> FleetEngine:
    """Two replicas that serve version 1, and an empty directory."""
    fleet, directory = started
    run(whole(fleet))
    run(fleet.update_weights(weights(1.0), 1))
    run(answers(fleet))
    for file in directory.iterdir():
        file.unlink()
    return fleet


async def asked(fleet: FleetEngine, directory: Path, seed: int = 1) -> tuple["asyncio.Task[Response]", int]:
    """A request that waits in a replica, and the replica's process."""
    request = asyncio.create_task(fleet.generate(ask(seed, 1, 7, conversation="a")))
    return request, (await seen(directory, f"asked {seed}"))[0][1]


async def answers(fleet: FleetEngine) -> None:
    """Have every replica answer, so that its losses so far count no more."""
    await fleet.wait_until_idle()
    await asyncio.gather(*(fleet.generate(ask(number)) for number in range(4)))


def grown(fleet: FleetEngine, before: dict[str, float], name: str) -> float:
    return fleet.counters()[name] - before.get(name, 0)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGSTOP, id="stopped", marks=pytest.mark.long),
    ],
)
def test_the_requests_of_a_replica_that_dies_or_stands_still_are_answered_elsewhere_and_counted_once(
    fleet: FleetEngine, directory: Path, fault: signal.Signals
) -> None:
    before = fleet.counters()

    async def scene() -> None:
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

    run(scene())
    assert len(events(directory, "answered 1 ")) == 1
    assert sum(grown(fleet, before, f"engine/replica_{n}/requests") for n in range(2)) == 1
    assert grown(fleet, before, "engine/moved_requests") == 1
    assert grown(fleet, before, "engine/restarts") == 1


@pytest.mark.long
@pytest.mark.parametrize("prompt", [WEDGES, DIES], ids=["wedged", "out of memory"])
def test_an_engine_that_is_dead_in_a_process_that_lives_is_replaced_too(
    fleet: FleetEngine, directory: Path, prompt: int
) -> None:
    before = fleet.counters()

    async def scene() -> None:
        request, pid = await asked(fleet, directory)
        breaks = asyncio.create_task(fleet.generate(ask(2, prompt, conversation="a")))
        again = await seen(directory, "asked 1", count=2)
        assert again[1][1] != pid
        (directory / "open_7").touch()
        assert (await request).token_ids == (await breaks).token_ids == (again[1][1],)
        await whole(fleet)

    run(scene())
    assert len(events(directory, "answered 1 ")) == 1
    assert grown(fleet, before, "engine/restarts") == 1


def test_a_replica_that_was_restarted_gets_the_current_weights_before_its_first_request(
    fleet: FleetEngine, directory: Path
) -> None:
    """The engine that comes back loads its checkpoint, which is version 0: slime's went on with it (miles 1724)."""

    async def scene() -> None:
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

    run(scene())


def test_an_update_during_which_a_replica_dies_reaches_the_others_and_the_new_one(
    fleet: FleetEngine, directory: Path
) -> None:
    async def scene() -> None:
        (directory / "die_in_load").touch()
        await fleet.update_weights(weights(2.0), 2)
        assert (await fleet.generate(ask(1))).policy_version == 2
        await fleet.wait_until_idle()
        await whole(fleet)
        versions = {(await fleet.generate(ask(seed, conversation=str(seed)))).policy_version for seed in range(10, 30)}
        assert versions == {2}

    run(scene())
    assert len(events(directory, "starts")) == 1


@pytest.mark.long
def test_an_update_does_not_wait_for_a_replica_that_is_being_started_which_loads_it_once(
    fleet: FleetEngine, directory: Path
) -> None:
    async def scene() -> None:
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
        assert [event for _, process, event in events(directory) if process == new] == [
            "starts",
            "loads 2",
            "loaded 2",
        ]

    run(scene())


@pytest.mark.long
def test_while_every_replica_is_gone_requests_wait_and_then_go_on(fleet: FleetEngine, directory: Path) -> None:
    async def scene() -> None:
        requests = [asyncio.create_task(fleet.generate(ask(n, 1, 7, conversation=str(n)))) for n in range(4)]
        processes = {pid for _, pid, _ in await seen(directory, "asked", count=4)}
        assert len(processes) == 2
        for pid in processes:
            os.kill(pid, signal.SIGKILL)
        await seen(directory, "starts")
        (directory / "open_7").touch()
        assert [(await request).policy_version for request in requests] == [1] * 4
        await whole(fleet)

    run(scene())
    assert sorted(event for _, _, event in events(directory, "answered")) == [f"answered {n} by 1" for n in range(4)]


@pytest.mark.long
def test_a_request_that_kills_every_replica_it_meets_is_refused(fleet: FleetEngine, directory: Path) -> None:
    async def scene() -> None:
        with pytest.raises(EngineError, match="3 replicas of the fleet died of one request"):
            await fleet.generate(ask(1, KILLS))
        await whole(fleet)
        assert (await fleet.generate(ask(2))).policy_version == 1

    run(scene())


@pytest.mark.long
def test_a_fleet_that_is_to_sleep_does_not_wait_for_a_replica_that_is_given_up_meanwhile(tmp_path: Path) -> None:
    fleet = FleetEngine(partial(Gated, tmp_path), replicas=2, max_restarts=1)

    async def scene() -> None:
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

    run(scene())
    assert len(events(tmp_path, "sleeps")) == 1
    run(fleet.close())


@pytest.mark.long
def test_a_fleet_whose_replicas_do_not_come_back_says_what_to_do(tmp_path: Path) -> None:
    fleet = FleetEngine(partial(Gated, tmp_path), max_restarts=2)

    async def scene() -> None:
        (tmp_path / "no_more_starts").touch()
        with pytest.raises(
            EngineGoneError, match=r"max_restarts=2 times in a row.*scripted not to start.*resume=auto"
        ):
            await fleet.generate(ask(1, KILLS))
        with pytest.raises(EngineGoneError, match="every engine of the fleet is gone"):
            await fleet.update_weights(weights(1.0), 1)

    run(scene())
    assert len(events(tmp_path, "starts")) == 1 + 2
    run(fleet.close())


def test_a_fleet_that_is_closed_starts_nothing_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fleet = FleetEngine(partial(Gated, tmp_path))

    async def scene() -> None:
        request, _ = await asked(fleet, tmp_path)
        await fleet.close()
        request.cancel()

    run(scene())
    assert "is started again" not in caplog.text
    assert len(events(tmp_path, "starts")) == 1
