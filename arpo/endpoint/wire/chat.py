"""OpenAI's chat completions."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from arpo.endpoint.conversation import Answer, Ask, Message, Stamp, Thought, Tool, ToolCall, ToolResult
from arpo.endpoint.wire.common import Encode, Reader, event, invalid
from arpo.endpoint.wire.openai import ROLES, Options, Part, check_function, error, parts, unhonoured
from arpo.errors import RefusedError

PATH = "/v1/chat/completions"


class _Function(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] = "{}"


class _Call(msgspec.Struct):
    function: _Function
    id: str = ""


class _Said(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Tool(msgspec.Struct):
    type: str
    function: dict[str, Any] = {}


class _Body(Options, kw_only=True):
    messages: list[_Said]
    tools: list[_Tool] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stream_options: dict[str, Any] | None = None
    logprobs: bool | None = None
    functions: Any = None


def parse(body: bytes, reader: Reader) -> Ask:
    """Return the request that a body holds."""
    given, others, values = reader.decoded(body, _Body)
    reader.check_lengths(given.messages, given.tools)
    if given.functions:
        raise invalid("functions are not served: give them as tools of type function")
    return reader.checked(
        Ask(
            messages=tuple(_message(said, reader) for said in given.messages),
            tools=tuple(_tool(each, reader) for each in given.tools or ()),
            alias=given.model,
            max_tokens=given.max_tokens if given.max_completion_tokens is None else given.max_completion_tokens,
            n=1 if given.n is None else given.n,
            stop=(given.stop,) if isinstance(given.stop, str) else tuple(given.stop or ()),
            stream=bool(given.stream),
            stream_usage=bool((given.stream_options or {}).get("include_usage")),
            logprobs=bool(given.logprobs),
            reads_calls=given.tool_choice != "none",
            unhonoured=(*others, *unhonoured(given)),
            values_hash=values,
        )
    )


def _tool(each: _Tool, reader: Reader) -> Tool:
    check_function(each.type)
    own = each.function
    return reader.tool(own.get("name"), own.get("description"), own.get("parameters"))


def _message(said: _Said, reader: Reader) -> Message:
    content = tuple(parts(said.content, reader, role=said.role))
    if said.role == "tool":
        return Message("tool", (ToolResult(said.tool_call_id or "", content),))
    if said.role not in ROLES:
        raise invalid(f"messages: role must be one of {', '.join(ROLES)} or tool, got {said.role[:40]!r}")
    if said.role != "assistant":
        return Message(ROLES[said.role], content)
    thought = said.reasoning_content or said.reasoning
    calls = [reader.call(each.id, each.function.name, each.function.arguments) for each in said.tool_calls or ()]
    return Message("assistant", (*([Thought(thought)] if thought else []), *content, *calls))


# --- replies --------------------------------------------------------------------------------------------------------


def _usage(answers: Sequence[Answer]) -> dict[str, int]:
    prompt, completion = answers[0].prompt_tokens, sum(answer.completion_tokens for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    return [
        {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
        for each in calls
    ]


def _logprobs(answer: Answer) -> dict[str, Any] | None:
    if not answer.logprobs:
        return None
    tokens = [
        {"token": text, "logprob": logprob, "bytes": list(text.encode(errors="replace")), "top_logprobs": []}
        for text, logprob in answer.logprobs
    ]
    return {"content": tokens, "refusal": None}


def _thought(answer: Answer) -> dict[str, str]:
    # Either name is read by some clients.
    return {"reasoning_content": answer.thought, "reasoning": answer.thought} if answer.thought else {}


def _top(stamp: Stamp, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{stamp.name}", "object": kind, "created": stamp.created, "model": stamp.model}


def reply(answers: Sequence[Answer], stamp: Stamp) -> bytes:
    """Return the answers as one body."""
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": answer.text if answer.text or not answer.tool_calls else None}
            | _thought(answer)
            | ({"tool_calls": _calls(answer.tool_calls)} if answer.tool_calls else {}),
            "finish_reason": answer.finish,
            "logprobs": _logprobs(answer),
        }
        for index, answer in enumerate(answers)
    ]
    return Encode(_top(stamp, "chat.completion") | {"choices": choices, "usage": _usage(answers)})


def events(answers: Sequence[Answer], stamp: Stamp) -> Iterator[bytes]:
    """Yield the answers as a stream; the last piece alone says that they are whole."""
    top = _top(stamp, "chat.completion.chunk")

    def chunk(index: int, delta: dict[str, Any], finish: str | None = None, logprobs: Any = None) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return event(top | {"choices": [choice]})

    for index, answer in enumerate(answers):
        yield chunk(index, {"role": "assistant", "content": ""})
        if answer.thought:
            yield chunk(index, _thought(answer))
        if answer.text or answer.logprobs:
            yield chunk(index, {"content": answer.text}, logprobs=_logprobs(answer))
        for place, each in enumerate(_calls(answer.tool_calls)):
            function = each["function"]
            begun = each | {"index": place, "function": {"name": function["name"], "arguments": ""}}
            yield chunk(index, {"tool_calls": [begun]})
            rest = {"index": place, "function": {"arguments": function["arguments"]}}
            yield chunk(index, {"tool_calls": [rest]})
    last = [chunk(index, {}, answer.finish) for index, answer in enumerate(answers)]
    if stamp.stream_usage:
        last.append(event(top | {"choices": [], "usage": _usage(answers)}))
    yield b"".join(last) + b"data: [DONE]\n\n"


def failure(refusal: RefusedError) -> bytes:
    """Return a refusal as the last event of a stream that has begun."""
    return b"data: " + error(refusal) + b"\n\n"
