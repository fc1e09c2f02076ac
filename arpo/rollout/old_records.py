"""Stored records of the version before there were exchanges, when a step held what is one now; goes with the next."""

from dataclasses import dataclass
from typing import Any

import msgspec

from arpo.rollout.conversation import Blind, Conversation
from arpo.types import Exchange, Picture


@dataclass(frozen=True, slots=True)
class _OldStep:
    screenshot: str
    width: int
    height: int
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    sampler_logprobs: tuple[float, ...]
    policy_version: int
    patch_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _OldRecord:
    steps: tuple[_OldStep, ...]
    image_window: int | None = None


def in_todays_shape(record: Any, blind: Blind | None = None) -> Any:
    """Return a record with its exchanges, as JSON has it; one of today's as it is.

    What a response saw in an image window follows from the prompts by the run's own tokenizer. Without that (`blind`)
    such a record has texts alone, like that of a script.
    """
    if not isinstance(record, dict) or "exchanges" in record:
        return record
    old = msgspec.convert(record, _OldRecord)
    conversation = Conversation(old.image_window, blind or tuple)
    exchanges: list[Exchange] = []
    if (old.image_window is None or blind) and any(step.response_ids for step in old.steps):
        for step in old.steps:
            conversation.ask(step.prompt_ids, Picture(step.screenshot, step.width, step.height))
            sampled = Exchange(None, (), (), step.response_ids, step.sampler_logprobs, step.policy_version, finish="")
            exchanges.append(conversation.answer(sampled, step.patch_ids))
    numbers = range(len(exchanges)) if exchanges else [None] * len(old.steps)
    steps = [{**step, "exchange": number} for step, number in zip(record["steps"], numbers, strict=True)]
    return {**record, "steps": steps, "exchanges": msgspec.to_builtins(exchanges)}
