"""A container engine whose machines are fake guests in threads, for the tests of every desktop in a container."""

import pytest

from tests.envs.osworld.guest import FakeEngine


@pytest.fixture
def engine():
    engine = FakeEngine()
    yield engine
    for machine in engine.machines:
        machine.remove()
