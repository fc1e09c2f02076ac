"""The collectors of the rollout tests serve the data modules too."""

from tests.rollout.conftest import chat, make_collector, runtime

__all__ = ["chat", "make_collector", "runtime"]
