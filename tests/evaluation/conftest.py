import pytest

from tests.rollout.conftest import chat, make_collector

__all__ = ["chat", "make_collector"]


@pytest.fixture
def make_runtime(make_collector):
    return lambda **parts: make_collector(**parts).runtime
