"""The life of a container with a guest in it, the same for every kind of desktop."""

import pytest

from arpo.envs.guest.client import Deadlines, Guest
from arpo.envs.guest.image import GUEST_PORT, container_of
from arpo.envs.guest.machine import Machine
from arpo.errors import EnvError
from arpo.host.container_spec import ContainerSpec

SPEC = ContainerSpec("guest", ports=(5000,))


def start(engine, start_s=5.0):
    deadlines = Deadlines(start_s=start_s)
    return Machine(SPEC, server_port=5000, deadlines=deadlines, probe=Guest.screenshot, containers=lambda: engine)


def test_after_a_restart_the_guest_is_asked_on_its_new_port(engine):
    machine = start(engine)
    before = machine.address(5000)
    assert before == engine.guest.address
    machine.restart()
    assert machine.address(5000) == engine.guest.address != before
    machine.guest.execute(["echo", "here"])
    assert engine.guest.executed == [["echo", "here"]]
    assert len(engine.machines) == 1


def test_another_container_takes_the_place_of_the_first_one(engine):
    machine = start(engine)
    assert machine.guest.screenshot()
    machine.replace(SPEC)
    assert engine.removed == engine.machines[:1]
    assert machine.container is engine.machines[1]
    assert machine.guest.screenshot()


def test_one_that_does_not_start_says_what_it_wrote_last_and_leaves_nothing(engine):
    engine.broken = True
    with pytest.raises(EnvError, match=r"no healthy guest within 0\.1 s.*qemu: no memory"):
        start(engine, start_s=0.1)
    assert engine.removed == engine.machines
    assert engine.closed


def test_a_closed_one_is_removed_once_and_answers_nobody(engine):
    machine = start(engine)
    machine.close()
    machine.close()
    assert engine.removed == engine.machines
    for ask in (lambda: machine.guest, lambda: machine.container, machine.restart):
        with pytest.raises(EnvError, match="the environment is closed"):
            ask()


def test_a_desktop_answers_on_the_port_of_the_guest_server_alone_or_beside_it_on_those_of_programs():
    closed = {"ARPO_SCREEN": "640x480x24", "ARPO_NETWORK": "closed"}
    numbers = {"network": "closed", "memory_mb": 512, "disk_mb": 64, "cpus": 2.0}
    alone, beside = (container_of("desktop", (640, 480), **numbers, answers=ports) for ports in ((), (9222, 8080)))
    assert (alone.ports, alone.environment) == ((GUEST_PORT,), closed)
    assert (beside.ports, beside.environment) == ((GUEST_PORT, 9222, 8080), {**closed, "ARPO_ANSWERS": "9222, 8080"})
