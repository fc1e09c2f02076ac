"""The conversation of our own loop: a screenshot, a response, the next screenshot; and the exchanges of its record."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from arpo.types import Exchange, Picture, Trajectory

if TYPE_CHECKING:  # it brings transformers along, and a reader of records starts at once
    from arpo.models.tokenization import ChatTokenizer

Blind = Callable[[tuple[int, ...]], tuple[int, ...]]
"""Returns a prompt without its screenshot (`ChatTokenizer.without_screenshot`)."""


class Conversation:
    """A conversation so far: prompts of one screenshot each and, id for id, what was sampled after them.

    Where a response sees all screenshots, its exchange goes on from the one before; where an expert's answer took the
    place of the response before, from where that one went on, and the expert's answer is part of its context. In an
    image window a screenshot is gone when the next ones have come, and each exchange has its whole context.

    Args:
        window: Screenshots that a response sees; None: all.
        blind: Makes of a prompt the one that stands in its place outside the window.
    """

    def __init__(self, window: int | None, blind: Blind) -> None:
        self._window = window
        self._blind = blind
        self._turns: list[tuple[int, ...]] = []
        """Prompts and responses in turn, as the next response reads them."""
        self._pictures: list[Picture] = []
        self._known = 0
        """Exchanges up to the one that the next goes on from; 0: it goes on from none."""

    @property
    def ids(self) -> tuple[int, ...]:
        """The context of the next response."""
        return tuple(chain.from_iterable(self._turns))

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """The pictures in it."""
        return tuple(self._pictures if self._window is None else self._pictures[-self._window :])

    @property
    def said_ids(self) -> tuple[int, ...]:
        """The response before, as the next one reads it."""
        return self._turns[-1]

    def ask(self, prompt_ids: tuple[int, ...], picture: Picture) -> None:
        """Append a prompt that holds a picture; the oldest picture goes where there is a window."""
        self._turns.append(prompt_ids)
        self._pictures.append(picture)
        if self._window is not None and (gone := len(self._pictures) - self._window - 1) >= 0:
            self._turns[2 * gone] = self._blind(self._turns[2 * gone])

    def answer(self, sampled: Exchange, instead: tuple[int, ...] = ()) -> Exchange:
        """Append a response, or the expert's answer in its place, and return the exchange with its context."""
        added = tuple(chain.from_iterable(self._turns[2 * self._known :]))
        parent, pictures = self._known - 1 if self._known else None, self.pictures[self._known :]
        self._turns.append(instead or sampled.said_ids)
        if self._window is None and not instead:
            self._known = len(self._pictures)
        return replace(sampled, parent=parent, added_ids=added, pictures=pictures)


def with_answers(
    trajectory: Trajectory,
    answers: Sequence[Exchange],
    chat: "ChatTokenizer",
    *,
    first_prompt: tuple[int, ...],
    image_window: int | None,
) -> Trajectory:
    """Return a trajectory with the exchanges of our own loop, had it got these answers to its steps, one each.

    Of an answer the response counts, and not the context; what an expert has put in its place follows from the step.
    """
    conversation, exchanges, prompt_ids = Conversation(image_window, chat.without_screenshot), [], first_prompt
    for step, each in zip(trajectory.steps, answers, strict=True):
        instead = chat.encode_response(step.patch) if step.patch else ()
        conversation.ask(prompt_ids, Picture(step.screenshot, step.width, step.height))
        exchanges.append(conversation.answer(each, instead))
        prompt_ids = chat.next_prompt(conversation.said_ids)
    steps = tuple(replace(step, exchange=number) for number, step in enumerate(trajectory.steps))
    return replace(trajectory, steps=steps, exchanges=tuple(exchanges), image_window=image_window)
