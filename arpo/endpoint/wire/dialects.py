"""The dialects by name, each as the functions that a server needs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from arpo.endpoint.conversation import Answer, Ask, Stamp
from arpo.endpoint.wire import chat, messages, openai, responses
from arpo.endpoint.wire.common import Reader
from arpo.errors import RefusedError


@dataclass(frozen=True, slots=True)
class Dialect:
    """A dialect of HTTP."""

    path: str
    parse: Callable[[bytes, Reader], Ask]
    """The request of a body; its only error is `RefusedError`."""
    reply: Callable[[Sequence[Answer], Stamp], bytes]
    events: Callable[[Sequence[Answer], Stamp], Iterator[bytes]]
    """The stream of an answer: the last piece alone says that it is whole, and is held back until it counts."""
    error: Callable[[RefusedError], bytes]
    failure: Callable[[RefusedError], bytes]
    """The last event of a stream that has begun."""
    keepalive: bytes
    """What a client skips while it waits."""


_COMMENT = b": keepalive\n\n"
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_responses = responses.parse, responses.reply, responses.events, openai.error, responses.failure
_messages = messages.parse, messages.reply, messages.events, messages.error, messages.failure
DIALECTS: Mapping[str, Dialect] = {
    "chat": Dialect(chat.PATH, chat.parse, chat.reply, chat.events, openai.error, chat.failure, _COMMENT),
    "responses": Dialect(responses.PATH, *_responses, _COMMENT),
    "messages": Dialect(messages.PATH, *_messages, _PING),
}
