"""Anthropic's messages."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from arpo.endpoint.conversation import (
    Answer,
    Ask,
    Message,
    Part,
    Picture,
    Stamp,
    Text,
    Thought,
    Tool,
    ToolCall,
    ToolResult,
)
from arpo.endpoint.wire.common import KINDS, Encode, Reader, event, invalid
from arpo.errors import RefusedError

PATH = "/v1/messages"
COUNT_PATH = f"{PATH}/count_tokens"
SIGNATURE = "arpo"
"""Agents leave out a thought without one when they send it back."""
_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class _Block(msgspec.Struct):
    type: str
    text: str = ""
    thinking: str = ""
    source: dict[str, Any] | None = None
    id: str = ""
    name: str = ""
    input: dict[str, Any] = {}
    tool_use_id: str = ""
    content: "str | list[_Block] | None" = None


class _Said(msgspec.Struct):
    role: str
    content: str | list[_Block]


class _Tool(msgspec.Struct):
    name: str = ""
    type: str | None = None
    description: str = ""
    input_schema: dict[str, Any] | None = None


class _Body(msgspec.Struct):
    messages: list[_Said]
    model: str = ""
    system: str | list[_Block] | None = None
    tools: list[_Tool] | None = None
    tool_choice: dict[str, Any] | None = None
    max_tokens: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None


def parse(body: bytes, reader: Reader) -> Ask:
    """Return the request that a body holds."""
    given, unhonoured, values = reader.decoded(body, _Body)
    reader.check_lengths(given.messages, given.tools)
    choice = (given.tool_choice or {}).get("type", "auto")
    if choice not in ("auto", "none"):
        unhonoured.append("tool_choice")
    if given.messages[-1].role == "assistant":
        raise invalid("messages: the last one must be the user's: an answer that is begun is not continued")
    system = [Text(given.system)] if isinstance(given.system, str) else _inner(given.system or (), reader)
    messages = [Message("system", tuple(system))] if system else []
    for said in given.messages:
        messages += _messages(said, reader)
    return reader.checked(
        Ask(
            messages=tuple(messages),
            tools=tuple(_tool(each, reader) for each in given.tools or ()),
            alias=given.model,
            max_tokens=given.max_tokens,
            stop=tuple(given.stop_sequences or ()),
            stream=bool(given.stream),
            reads_calls=choice != "none",
            unhonoured=tuple(unhonoured),
            values_hash=values,
        )
    )


def _tool(each: _Tool, reader: Reader) -> Tool:
    if each.type not in (None, "custom"):
        raise invalid(f"tools: type must be custom, got {each.type[:40]!r}: give its name and input_schema instead")
    return reader.tool(each.name, each.description, each.input_schema)


def _messages(said: _Said, reader: Reader) -> list[Message]:
    """Return a message as ours: the results of tools, which come first, are one each."""
    blocks = [_Block("text", said.content)] if isinstance(said.content, str) else said.content
    if said.role == "assistant":
        made = [each for block in blocks for each in _said(block, reader)]
        return [Message("assistant", tuple(made))]
    if said.role not in ("user", "system"):
        raise invalid(f"messages: role must be user or assistant, got {said.role[:40]!r}")
    results = [
        Message("tool", (ToolResult(block.tool_use_id, tuple(_content(block, reader))),))
        for block in blocks
        if block.type == "tool_result"
    ]
    rest = _inner([block for block in blocks if block.type != "tool_result"], reader)
    role: Literal["user", "system"] = "user" if said.role == "user" else "system"
    return [*results, *([Message(role, tuple(rest))] if rest or not results else [])]


def _said(block: _Block, reader: Reader) -> list[Part]:
    if block.type == "text":
        return [Text(block.text)]
    if block.type == "thinking":
        return [Thought(block.thinking)]
    if block.type == "redacted_thinking":
        return []
    if block.type == "tool_use":
        return [reader.call(block.id, block.name, block.input)]
    raise invalid(f"content: an assistant's block must be text, thinking or tool_use, got {block.type[:40]!r}")


def _content(block: _Block, reader: Reader) -> list[Text | Picture]:
    return [Text(block.content)] if isinstance(block.content, str) else _inner(block.content or (), reader)


def _inner(blocks: Sequence[_Block], reader: Reader) -> list[Text | Picture]:
    found: list[Text | Picture] = []
    for block in blocks:
        if block.type == "text":
            found.append(Text(block.text))
        elif block.type == "image" and (block.source or {}).get("type") == "base64":
            found.append(reader.from_base64((block.source or {}).get("data")))
        elif block.type == "image":
            found.append(reader.from_url((block.source or {}).get("url")))
        else:
            raise invalid(f"content: type must be text, image or tool_result, got {block.type[:40]!r}: leave it out")
    return found


# --- replies --------------------------------------------------------------------------------------------------------


def _block(part: Part) -> dict[str, Any]:
    match part:
        case Thought(text):
            return {"type": "thinking", "thinking": text, "signature": SIGNATURE}
        case ToolCall(name, function, arguments):
            return {"type": "tool_use", "id": name, "name": function, "input": msgspec.Raw(arguments.encode())}
        case Text(text):
            return {"type": "text", "text": text}
    raise TypeError(f"an answer holds no {part}")


def _head(answer: Answer, stamp: Stamp) -> dict[str, Any]:
    usage = {"input_tokens": answer.prompt_tokens, "output_tokens": answer.completion_tokens}
    top = {"id": f"msg_{stamp.name}", "type": "message", "role": "assistant", "model": stamp.model, "content": []}
    return top | {"stop_reason": None, "stop_sequence": None, "usage": usage}


def _stop(answer: Answer) -> dict[str, str | None]:
    reason = _STOPS[answer.finish] if answer.stopped_by is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": answer.stopped_by}


def reply(answers: Sequence[Answer], stamp: Stamp) -> bytes:
    """Return the one answer as one body."""
    (answer,) = answers
    return Encode(_head(answer, stamp) | {"content": [_block(part) for part in answer.parts()]} | _stop(answer))


def events(answers: Sequence[Answer], stamp: Stamp) -> Iterator[bytes]:
    """Yield the one answer as a stream; the last piece alone says that it is whole."""
    (answer,) = answers

    def typed(kind: str, **fields: Any) -> bytes:
        return event({"type": kind} | fields, kind)

    head = _head(answer, stamp)
    yield typed("message_start", message=head | {"usage": head["usage"] | {"output_tokens": 0}})
    for index, part in enumerate(answer.parts()):
        whole = _block(part)
        # A block begins empty.
        empty: dict[str, Any] = {"text": "", "thinking": "", "input": {}}
        yield typed(
            "content_block_start", index=index, content_block=whole | {k: empty[k] for k in whole if k in empty}
        )
        match part:
            case Thought(text):
                deltas = [
                    {"type": "thinking_delta", "thinking": text},
                    {"type": "signature_delta", "signature": SIGNATURE},
                ]
            case ToolCall():
                deltas = [{"type": "input_json_delta", "partial_json": part.arguments}]
            case _:
                deltas = [{"type": "text_delta", "text": whole["text"]}]
        for delta in deltas:
            yield typed("content_block_delta", index=index, delta=delta)
        yield typed("content_block_stop", index=index)
    end = typed("message_delta", delta=_stop(answer), usage=head["usage"])
    yield end + typed("message_stop")


def error(refusal: RefusedError) -> bytes:
    """Return a refusal as a body."""
    kind = KINDS[refusal.kind][2]
    return Encode({"type": "error", "error": {"type": kind, "message": str(refusal)}})


def failure(refusal: RefusedError) -> bytes:
    """Return a refusal as the last event of a stream that has begun."""
    return b"event: error\ndata: " + error(refusal) + b"\n\n"


def token_count(tokens: int) -> bytes:
    """Return the reply to a request that has the tokens of a conversation counted."""
    return Encode({"input_tokens": tokens})
