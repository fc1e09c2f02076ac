from tests.rollout.conftest import chat, make_collector

__all__ = ["chat", "make_collector"]
