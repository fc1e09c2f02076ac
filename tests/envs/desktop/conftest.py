"""One desktop for all tests that leave it as they found it, or reset it first."""

import pytest

from arpo.envs.desktop.env import DockerDesktop
from tests.envs.desktops import QUICK


@pytest.fixture(scope="session")
def desktop():
    env = DockerDesktop(**QUICK)
    yield env
    env.close()
