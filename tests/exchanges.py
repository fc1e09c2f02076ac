"""Exchanges by hand; imports nothing heavy, so that child processes start at once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from arpo.rollout.conversation import with_answers
from arpo.types import Exchange, Picture, Step, Trajectory


def in_turn(steps: Sequence[Step], *turns: tuple[Any, ...]) -> dict[str, Any]:
    """The steps and exchanges of a trajectory in which each step is an exchange that goes on from the one before.

    A turn is the prompt of one screenshot, what was sampled, its log-probabilities, and the version, unless that is 0.
    """
    exchanges = [
        Exchange(number - 1 if number else None, prompt, (seen(step),), ids, logprobs, *(version or [0]))
        for number, (step, (prompt, ids, logprobs, *version)) in enumerate(zip(steps, turns, strict=True))
    ]
    numbered = [replace(step, exchange=number) for number, step in enumerate(steps)]
    return {"steps": tuple(numbered), "exchanges": tuple(exchanges)}


def seen(step: Step) -> Picture:
    return Picture(step.screenshot, step.width, step.height)


def windowed(trajectory: Trajectory, chat: Any, window: int | None = 1) -> Trajectory:
    """The trajectory with so many screenshots at once: with one, each step is a sequence."""
    first = trajectory.exchanges[0].added_ids
    return with_answers(trajectory, trajectory.exchanges, chat, first_prompt=first, image_window=window)


def answered(chat: Any) -> Any:
    """Gives the steps of a trajectory other answers, as our own loop would."""
    return lambda trajectory, answers: with_answers(
        trajectory, answers, chat, first_prompt=trajectory.exchanges[0].added_ids, image_window=trajectory.image_window
    )


def with_exchanges(trajectory: Trajectory, **facts: Sequence[Any]) -> Trajectory:
    """The trajectory with other facts of its exchanges, one each."""
    rows = [dict(zip(facts, row, strict=True)) for row in zip(*facts.values(), strict=True)]
    pairs = zip(trajectory.exchanges, rows, strict=True)
    return replace(trajectory, exchanges=tuple(replace(exchange, **row) for exchange, row in pairs))
