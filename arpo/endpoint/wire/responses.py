"""OpenAI's responses, without memory: each request brings its whole conversation.

A conversation that this side kept (`previous_response_id`) is refused, because a harness that is trained must be seen
to say all that its model reads. `store` has no effect, as nothing could be fetched later. A thought stands in two
fields of its item, as a text and in place of an encrypted one, because some harnesses send back the second alone.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from arpo.endpoint.conversation import Answer, Ask, Message, Stamp, Text, Thought, Tool, ToolCall, ToolResult
from arpo.endpoint.wire.common import Encode, Reader, event, invalid
from arpo.endpoint.wire.openai import ROLES, Options, Part, check_function, parts, unhonoured
from arpo.errors import RefusedError

PATH = "/v1/responses"
_ENCRYPTED = "reasoning.encrypted_content"
_ORDER: dict[type, int] = {Thought: 0, Text: 1, ToolCall: 2}


class _Item(msgspec.Struct):
    type: str = "message"
    role: str = ""
    content: str | list[Part] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = "{}"
    output: str | list[Part] = ""
    summary: list[Part] = []
    encrypted_content: str | None = None


class _Tool(msgspec.Struct):
    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Body(Options, kw_only=True):
    input: str | list[_Item]
    instructions: str | None = None
    tools: list[_Tool] | None = None
    max_output_tokens: int | None = None
    text: dict[str, Any] | None = None
    include: list[str] | None = None
    previous_response_id: Any = None
    conversation: Any = None
    background: Any = None
    prompt: Any = None


def parse(body: bytes, reader: Reader) -> Ask:
    """Return the request that a body holds."""
    given, others, values = reader.decoded(body, _Body)
    state = {"previous_response_id": given.previous_response_id, "conversation": given.conversation}
    state |= {"background": given.background, "prompt": given.prompt}
    if kept := [name for name, value in state.items() if value]:
        raise invalid(f"{kept[0]} is not served: nothing is kept here; send the whole conversation as input")
    if ((given.text or {}).get("format") or {"type": "text"}) != {"type": "text"}:
        others.append("text.format")
    if set(given.include or ()) - {_ENCRYPTED}:
        others.append("include")
    items = [_Item(role="user", content=given.input)] if isinstance(given.input, str) else given.input
    reader.check_lengths(items, given.tools)
    messages = [Message("system", (Text(given.instructions),))] if given.instructions else []
    return reader.checked(
        Ask(
            messages=tuple(messages + _joined(items, reader)),
            tools=tuple(_tool(each, reader) for each in given.tools or ()),
            alias=given.model,
            max_tokens=given.max_output_tokens,
            stream=bool(given.stream),
            reads_calls=given.tool_choice != "none",
            unhonoured=(*others, *unhonoured(given)),
            values_hash=values,
        )
    )


def _tool(each: _Tool, reader: Reader) -> Tool:
    check_function(each.type)
    return reader.tool(each.name, each.description, each.parameters)


def _joined(items: Sequence[_Item], reader: Reader) -> list[Message]:
    """Return items as messages: a thought, a text and calls in this order were one answer."""
    messages: list[Message] = []
    for message in (_message(item, reader) for item in items):
        last = messages[-1] if messages else None
        if message.role == "assistant" and last is not None and last.role == "assistant" and _continues(last, message):
            messages[-1] = Message("assistant", last.parts + message.parts)
        else:
            messages.append(message)
    return messages


def _continues(last: Message, message: Message) -> bool:
    if not (last.parts and message.parts):
        return False
    before, after = (_ORDER[type(part)] for part in (last.parts[-1], message.parts[0]))
    return before < after or before == after == _ORDER[ToolCall]


def _message(item: _Item, reader: Reader) -> Message:
    match item.type:
        case "message" if item.role in ROLES:
            return Message(ROLES[item.role], tuple(parts(item.content, reader, role=item.role)))
        case "function_call":
            return Message("assistant", (reader.call(item.call_id, item.name, item.arguments),))
        case "function_call_output":
            return Message("tool", (ToolResult(item.call_id, tuple(parts(item.output, reader))),))
        case "reasoning":
            content = item.content if isinstance(item.content, list) else []
            said = "".join(part.text for part in content) or item.encrypted_content
            return Message("assistant", (Thought(said or "".join(part.text for part in item.summary)),))
    raise invalid(
        "input: type must be message (of a user, an assistant, a system or a developer), function_call, "
        f"function_call_output or reasoning, got {item.type[:40]!r} of {item.role[:40]!r}: leave it out"
    )


# --- replies --------------------------------------------------------------------------------------------------------


def _item(part: Thought | Text | ToolCall, name: str, answer: Answer) -> dict[str, Any]:
    status = "incomplete" if answer.finish == "length" else "completed"
    match part:
        case Thought():
            item = {"id": f"rs_{name}", "type": "reasoning", "summary": [], "content": [_content(part)]}
            return item | {"encrypted_content": part.text}
        case ToolCall(call_id, function, arguments):
            item = {"id": f"fc_{name}_{call_id}", "type": "function_call", "call_id": call_id, "name": function}
            return item | {"arguments": arguments, "status": status}
    item = {"id": f"msg_{name}", "type": "message", "role": "assistant", "status": status}
    return item | {"content": [_content(part)]}


def _content(part: Thought | Text | ToolCall) -> dict[str, Any]:
    if isinstance(part, Thought):
        return {"type": "reasoning_text", "text": part.text}
    assert isinstance(part, Text), "an answer's other parts are calls"
    return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}


def _response(answer: Answer, stamp: Stamp, output: Sequence[dict[str, Any]], status: str) -> dict[str, Any]:
    prompt, completion = answer.prompt_tokens, answer.completion_tokens
    usage = {"input_tokens": prompt, "output_tokens": completion, "total_tokens": prompt + completion}
    usage_details: dict[str, Any] = {"input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}}
    usage_details |= {"output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": f"resp_{stamp.name}",
        "object": "response",
        "created_at": stamp.created,
        "model": stamp.model,
        "status": status,
        "output": list(output),
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "store": False,
        "usage": None if status == "in_progress" else usage | usage_details,
    }


def _whole(answer: Answer, stamp: Stamp) -> dict[str, Any]:
    output = [_item(part, stamp.name, answer) for part in answer.parts()]
    return _response(answer, stamp, output, "incomplete" if answer.finish == "length" else "completed")


def reply(answers: Sequence[Answer], stamp: Stamp) -> bytes:
    """Return the one answer as one body."""
    (answer,) = answers
    return Encode(_whole(answer, stamp))


def events(answers: Sequence[Answer], stamp: Stamp) -> Iterator[bytes]:
    """Yield the one answer as a stream; the last piece alone says that it is whole."""
    (answer,) = answers
    whole, number = _whole(answer, stamp), 0

    def typed(kind: str, **fields: Any) -> bytes:
        nonlocal number
        number += 1
        return event({"type": kind, "sequence_number": number - 1} | fields, kind)

    begun = _response(answer, stamp, (), "in_progress")
    yield typed("response.created", response=begun)
    yield typed("response.in_progress", response=begun)
    for index, (part, item) in enumerate(zip(answer.parts(), whole["output"], strict=True)):
        empty: dict[str, Any] = {"content": []} if "content" in item else {"arguments": ""}
        progress = {} if isinstance(part, Thought) else {"status": "in_progress"}
        yield typed("response.output_item.added", output_index=index, item=item | empty | progress)
        where = {"item_id": item["id"], "output_index": index}
        if isinstance(part, ToolCall):
            yield typed("response.function_call_arguments.delta", **where, delta=part.arguments)
            done = {"name": part.name, "arguments": part.arguments}
            yield typed("response.function_call_arguments.done", **where, **done)
        else:
            where |= {"content_index": 0}
            kind = "response.reasoning_text" if isinstance(part, Thought) else "response.output_text"
            logprobs: dict[str, Any] = {} if isinstance(part, Thought) else {"logprobs": []}
            yield typed("response.content_part.added", **where, part=_content(part) | {"text": ""})
            yield typed(f"{kind}.delta", **where, delta=part.text, **logprobs)
            yield typed(f"{kind}.done", **where, text=part.text, **logprobs)
            yield typed("response.content_part.done", **where, part=_content(part))
        yield typed("response.output_item.done", output_index=index, item=item)
    yield typed(f"response.{whole['status']}", response=whole)


def failure(refusal: RefusedError) -> bytes:
    """Return a refusal as the last event of a stream that has begun."""
    content = {"type": "error", "sequence_number": 0, "code": refusal.kind, "message": str(refusal), "param": None}
    return event(content, "error")
