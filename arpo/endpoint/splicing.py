"""The context of the next answer, in which sampled ids stand wherever they say what the conversation says.

It continues an earlier answer if and only if its ids and pictures begin with those of that answer's context, and then
with its ids.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from arpo.endpoint.conversation import Answer, Message, Picture, Thought, ToolCall, canonical
from arpo.models.tokenization import ChatTokenizer, Turns

Key = tuple[str, tuple[tuple[str, str], ...]]
"""The text of an answer without white space around, and its calls without the names that agents give anew."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Sampled ids as they are delivered."""

    ids: tuple[int, ...]
    """Those that were delivered: not those behind a text by which the agent ends an answer."""
    exact: bool
    """Whether they spell the delivered answer; not if its end lies within a token."""
    answer: Answer
    spelled: str
    """Their text with special tokens, but for the end of the turn."""

    def keys(self) -> set[Key]:
        """Return the texts and calls by which the agent may send it back."""
        return {_key(self.answer.text, self.answer.tool_calls), _key(self.spelled, ())}


@dataclass(frozen=True, slots=True)
class Sampled:
    """An answer that was delivered, with the context in which it was sampled."""

    name: str
    prompt_ids: tuple[int, ...]
    pictures: tuple[str, ...]
    """The keys of the pictures in it."""
    reading: Reading


@dataclass(frozen=True, slots=True)
class Prompt:
    """The context of an answer to come: an earlier answer's with that answer, and what is added; or a new one."""

    ids: tuple[int, ...]
    """All of them, one placeholder for each picture."""
    pictures: tuple[Picture, ...]
    parent: str | None
    """The name of the last answer with whose context and ids these begin; None where they are a new root."""
    added: int
    """The place behind it, where the ids begin that no engine has read."""
    spliced: tuple[str | None, ...]
    """For each of the assistant's messages the answer whose ids stand there; None where it is written anew."""


def splice(
    turns: Turns,
    said: Sequence[Message],
    pictures: Sequence[Picture],
    past: Sequence[Sampled],
    chat: ChatTokenizer,
    *,
    verbatim: bool,
) -> Prompt:
    """Return the context of the next answer.

    Args:
        turns: The conversation as the chat template writes it.
        said: The assistant's messages, each of which is one of the turns.
        pictures: Those of the conversation, in order.
        past: The answers that were delivered, in order.
        chat: The tokenizer.
        verbatim: Whether thoughts stay that the template or the agent drops.
    """
    keys = tuple(picture.key for picture in pictures)
    known: defaultdict[Key, list[Sampled]] = defaultdict(list)
    for sampled in past:
        for key in sampled.reading.keys() if sampled.reading.exact else ():
            known[key].append(sampled)
    ids, seen = list(turns.between[0]), turns.between[0].count(chat.image_token_id)
    parent: str | None = None
    added, spliced = 0, list[str | None]()
    for message, written, thinking, behind in zip(said, turns.answers, turns.thinking, turns.between[1:], strict=True):
        begun = len(ids) + len(chat.header)
        fitting = [
            each
            for each in known[_key(message.said(), message.calls())]
            if _fits(each.reading.answer.thought.strip(), message.said(Thought).strip(), thinking, verbatim=verbatim)
        ]
        here = [
            each
            for each in fitting
            if len(each.prompt_ids) == begun
            and each.prompt_ids == (*ids, *chat.header)
            and each.pictures == keys[:seen]
        ]
        # Elsewhere its ids are context alone; answers of the past come back in the order in which they were given.
        if not (chosen := here or [each for each in fitting if each.name not in spliced] or fitting):
            ids += written
        else:
            sampled_ids = chosen[0].reading.ids
            ended = sampled_ids[-1:] == (chat.end_of_turn_id,)
            ids += [*chat.header, *(sampled_ids[:-1] if ended else sampled_ids)]
            if here:
                parent, added = here[0].name, len(ids) + ended
        ids += behind
        seen += behind.count(chat.image_token_id)
        spliced.append(chosen[0].name if chosen else None)
    return Prompt((*ids, *chat.header), tuple(pictures), parent, added, tuple(spliced))


def _fits(thought: str, said: str, thinking: bool, *, verbatim: bool) -> bool:
    """Return whether an answer with a thought may stand where the agent has sent one back, or none."""
    return said in ("", thought) if verbatim else thinking and said == thought


def _key(text: str, calls: Sequence[ToolCall]) -> Key:
    return text.strip(), tuple((call.name, canonical(call.arguments)) for call in calls)
