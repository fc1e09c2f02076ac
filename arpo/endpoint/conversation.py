"""The nouns between the dialects of foreign agents and the ids of a model: a question, its conversation, an answer."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Text:
    """A text of a message."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """The reasoning before an answer, as far as the agent has sent it back."""

    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture, converted to a PNG where it was none."""

    png: bytes
    key: str
    """The SHA-256 of the PNG."""
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of one of the agent's tools."""

    id: str
    name: str
    arguments: str
    """An object, in JSON."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """An answer of the agent's tool."""

    call_id: str
    parts: tuple[Text | Picture, ...]


Part = Text | Thought | Picture | ToolCall | ToolResult


@dataclass(frozen=True, slots=True)
class Message:
    """A message; a result of a tool is one of its own, and an answer of the assistant is one as a whole."""

    role: Role
    parts: tuple[Part, ...]

    def said(self, kind: type[Text] | type[Thought] = Text) -> str:
        """Return its texts, or its thoughts, as one."""
        return "".join(part.text for part in self.parts if isinstance(part, kind))

    def calls(self) -> tuple[ToolCall, ...]:
        """Return its calls of tools."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of the agent."""

    name: str
    description: str
    schema: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request for answers to a conversation, in no dialect."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    alias: str
    """The name of the model that is asked for."""
    max_tokens: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stream: bool = False
    stream_usage: bool = False
    """Whether the numbers of tokens end a stream, where the dialect leaves that open."""
    logprobs: bool = False
    reads_calls: bool = True
    """Whether calls of tools are taken out of the text: not where the agent forbids calls."""
    unhonoured: tuple[str, ...] = ()
    """Options that are accepted without effect: sampling is the run's."""
    values_hash: int = 0
    """A hash of what no field holds: values of those options, as two seeds want two answers, and the order of keys."""

    def pictures(self) -> Iterator[Picture]:
        """Yield its pictures, in the order in which the model sees them."""
        return (part for part in self._parts() if isinstance(part, Picture))

    def letters(self) -> int:
        """Return the number of letters of its texts."""
        return sum(len(part.text) for part in self._parts() if isinstance(part, Text))

    def _parts(self) -> Iterator[Part]:
        for message in self.messages:
            for part in message.parts:
                yield from part.parts if isinstance(part, ToolResult) else (part,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer as it is delivered."""

    text: str
    thought: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish: Finish = "stop"
    stopped_by: str | None = None
    """The agent's own text that ended it."""
    prompt_tokens: int
    """Tokens of the context, each picture as long as the model sees it."""
    completion_tokens: int
    logprobs: tuple[tuple[str, float], ...] = ()
    """Each sampled token and its log-probability; empty unless asked for."""

    def parts(self) -> tuple[Thought | Text | ToolCall, ...]:
        """Return its parts in the order in which they were sampled; a text that is empty if there is nothing else."""
        thought = (Thought(self.thought),) if self.thought else ()
        text = (Text(self.text),) if self.text or not (thought or self.tool_calls) else ()
        return (*thought, *text, *self.tool_calls)


@dataclass(frozen=True, slots=True)
class Stamp:
    """The name and the time of a reply, which are the same when it is sent again."""

    name: str
    """Letters, digits, `-` and `_`."""
    created: int
    """Seconds since 1970."""
    model: str
    """The name by which the agent asked."""
    stream_usage: bool = False
    """Whether the numbers of tokens end a stream, where the dialect leaves that open."""


def canonical(arguments: str) -> str:
    """Return the arguments of a call in one form, whatever the order of keys and the spaces."""
    try:
        return json.dumps(json.loads(arguments or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
