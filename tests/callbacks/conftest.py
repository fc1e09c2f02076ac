"""The collectors of the rollout tests serve the callbacks too."""

from tests.rollout.conftest import chat, make_collector

__all__ = ["chat", "make_collector"]
