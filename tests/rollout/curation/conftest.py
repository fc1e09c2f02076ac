"""The collectors and the tokenizer of the rollout tests."""

from tests.rollout.conftest import chat, make_collector

__all__ = ["chat", "make_collector"]
