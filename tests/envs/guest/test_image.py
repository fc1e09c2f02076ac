"""The container of a desktop image: what its first process is told, and where it answers."""

from arpo.envs.guest.image import GUEST_PORT, container_of


def container(**options):
    numbers = {"memory_mb": 512, "disk_mb": 64, "cpus": 2.0}
    return container_of("desktop", (640, 480), network="closed", **numbers, **options)


def test_a_desktop_answers_on_the_port_of_the_guest_server_alone_or_beside_it_on_those_of_programs():
    closed = {"ARPO_SCREEN": "640x480x24", "ARPO_NETWORK": "closed"}
    alone, beside = container(), container(answers=(9222, 8080))
    assert (alone.ports, alone.environment) == ((GUEST_PORT,), closed)
    assert (beside.ports, beside.environment) == ((GUEST_PORT, 9222, 8080), {**closed, "ARPO_ANSWERS": "9222, 8080"})
