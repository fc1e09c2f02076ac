"""Conversations of foreign agents as ids, and sampled ids as answers: by a checkpoint's chat template, both ways."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from arpo.agent import computer_use, computer_use_xml
from arpo.agent.prompt import JSON_CALLS, PromptText
from arpo.agent.response import THOUGHT_ENDS
from arpo.agent.tool_calls import CLOSING, OPENING, read_calls
from arpo.endpoint.conversation import Answer, Ask, Finish, Message, Part, Text, Thought, Tool, ToolCall, ToolResult
from arpo.endpoint.splicing import Prompt, Reading, Sampled, splice
from arpo.errors import ActionParseError, RefusedError
from arpo.models.tokenization import PROBE, SCREENSHOT, UNRENDERED, ChatTokenizer

History = Literal["template", "verbatim"]
"""Old thoughts: as the chat template keeps or drops them, or all of them as they were sampled."""
THOUGHT_BEGINS = "<think>"
_SYSTEM, _TOOLS = JSON_CALLS.partition("\n\n")[::2]


class Renderer:
    """The way from conversations to ids and from sampled ids to answers, by the chat template of a checkpoint.

    Where the template knows no tools, they are written as Qwen's own prompts write them.
    """

    def __init__(self, chat: ChatTokenizer, history: History = "template") -> None:
        self._chat, self._verbatim = chat, history == "verbatim"
        thought = {"role": "assistant", "content": "", "reasoning_content": PROBE}
        self.thinks = PROBE in chat.render([SCREENSHOT, thought])
        call = {"type": "function", "function": {"name": "f", "arguments": {"a": PROBE}}}
        written = chat.render([SCREENSHOT, {"role": "assistant", "content": "", "tool_calls": [call]}])
        self.knows_tools = PROBE in written
        grammar = computer_use_xml if "<parameter=" in written else computer_use
        self._read_call, self._opening = grammar.read_call, grammar.OPENING
        self._xml = grammar is computer_use_xml
        self._opened = chat.decode(chat.header).endswith(f"{THOUGHT_BEGINS}\n")

    # --- conversations to ids ---------------------------------------------------------------------------------------

    def prompt(self, ask: Ask, past: Sequence[Sampled]) -> Prompt:
        """Return the ids of a conversation, with sampled ids wherever an answer of the past stands in it.

        Raises:
            RefusedError: If the chat template does not take the conversation.
        """
        messages = [self._divided(message) for message in ask.messages]
        tools = [_function(tool) for tool in ask.tools]
        try:
            turns = self._chat.turns(list(self._written(messages, tools)), tools if self.knows_tools else ())
        except UNRENDERED as error:
            raise RefusedError("invalid", f"the chat template does not take this: {error}") from error
        said = [message for message in messages if message.role == "assistant"]
        return splice(turns, said, tuple(ask.pictures()), past, self._chat, verbatim=self._verbatim)

    def _divided(self, message: Message) -> Message:
        """Return an assistant's message with the thought apart that stands in its text, as the template reads it."""
        text = message.said().lstrip()
        if not (self.thinks and message.role == "assistant" and text.startswith(THOUGHT_BEGINS)):
            return message
        thought, ends, rest = text.removeprefix(THOUGHT_BEGINS).partition(THOUGHT_ENDS)
        return Message("assistant", (Thought(thought), Text(rest), *message.calls())) if ends else message

    def _written(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield messages as chat templates take them."""
        if self.knows_tools:
            yield from (self._message(message) for message in messages)
            return
        first = messages[0] if messages and messages[0].role == "system" else None
        if tools:
            lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
            before, _, behind = _TOOLS.partition("{tools}")
            said = _listed(first.parts) if first else [_text(_SYSTEM)]
            yield {"role": "system", "content": [*said, _text(PromptText(f"\n\n{before}", lines, behind))]}
        for role, group in groupby(messages[1:] if tools and first else messages, lambda message: message.role):
            if role == "tool":
                yield {"role": "user", "content": _results(part for message in group for part in message.parts)}
            else:
                yield from (self._message(message) for message in group)

    def _message(self, message: Message) -> dict[str, Any]:
        if message.role == "tool":
            (result,) = message.parts
            assert isinstance(result, ToolResult), "the only part of a tool's message"
            return {"role": "tool", "content": _content(result.parts), "tool_call_id": result.call_id}
        if message.role != "assistant":
            return {"role": message.role, "content": _content(message.parts)}
        text, calls = message.said(), [(call.name, json.loads(call.arguments or "{}")) for call in message.calls()]
        written: dict[str, Any] = {"role": "assistant", "content": text}
        if calls and self.knows_tools:
            functions = [{"name": name, "arguments": given} for name, given in calls]
            written["tool_calls"] = [{"type": "function", "function": function} for function in functions]
        elif calls:
            bodies = [json.dumps({"name": name, "arguments": given}, ensure_ascii=False) for name, given in calls]
            between = ["\n" * bool(text), *["\n"] * (len(bodies) - 1)]
            pieces = zip(between, bodies, strict=True)
            parts = [PromptText(f"{line}{OPENING}\n", body, f"\n{CLOSING}") for line, body in pieces]
            written["content"] = [_text(part) for part in ([text] if text else []) + parts]
        thought = message.said(Thought).strip()
        return written | ({"reasoning_content": thought} if thought and self.thinks else {})

    # --- sampled ids to answers -------------------------------------------------------------------------------------

    def read(
        self,
        ids: tuple[int, ...],
        logprobs: Sequence[float],
        finish_reason: str,
        *,
        ask: Ask,
        name: str,
        prompt_tokens: int,
    ) -> Reading:
        """Return sampled ids as they are delivered; `name` makes the names of calls the agent's only ones."""
        whole = self._chat.decode(ids)
        ends = {whole.find(stop): stop for stop in reversed(ask.stop) if stop in whole}
        end = min(ends, default=len(whole))
        kept = ids if end == len(whole) else self._up_to(ids, end)
        text = whole[:end]
        thought, said = self._thought(text)
        said, calls = self._calls(said, ask.tools, name) if ask.reads_calls and ask.tools else (said, ())
        finish: Finish = "tool_calls" if calls else "stop"
        answer = Answer(
            text=said,
            thought=thought,
            tool_calls=calls,
            finish="length" if finish_reason == "length" and not ends else finish,
            stopped_by=ends.get(end),
            prompt_tokens=prompt_tokens,
            completion_tokens=len(ids),
            logprobs=tuple((self._chat.spell([number]), each) for number, each in zip(kept, logprobs, strict=False))
            if ask.logprobs
            else (),
        )
        turn = kept[:-1] if kept[-1:] == (self._chat.end_of_turn_id,) else kept
        return Reading(kept, self._chat.decode(kept) == text, answer, self._chat.spell(turn))

    def _up_to(self, ids: tuple[int, ...], end: int) -> tuple[int, ...]:
        """Return the fewest ids from the first on whose text is so long."""
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if len(self._chat.decode(ids[:middle])) >= end else (middle + 1, high)
        return ids[:low]

    def _thought(self, text: str) -> tuple[str, str]:
        if not self.thinks or not (self._opened or text.lstrip().startswith(THOUGHT_BEGINS)):
            return "", text
        thought, _, rest = text.partition(THOUGHT_ENDS)
        return thought.strip().removeprefix(THOUGHT_BEGINS).strip(), rest.strip()

    def _calls(self, text: str, tools: Sequence[Tool], name: str) -> tuple[str, tuple[ToolCall, ...]]:
        """Return the text before the calls, and them; if one cannot be read, all of it is text."""
        try:
            before, calls = read_calls(text, self._read_call, self._opening)
        except ActionParseError:
            return text, ()
        schemas = {tool.name: tool.schema.get("properties") for tool in tools}
        made = [(function, _typed(given, schemas.get(function)) if self._xml else given) for function, given in calls]
        try:
            written = [json.dumps(given, ensure_ascii=False, allow_nan=False) for _, given in made]
            "".join([*written, *(function for function, _ in made)]).encode()  # half a character could not be sent
        except (ValueError, RecursionError):
            return text, ()
        found = zip(calls, written, strict=True)
        return before, tuple(
            ToolCall(f"call_{name}_{number}", function, arguments)
            for number, ((function, _), arguments) in enumerate(found)
        )


def _typed(given: Mapping[str, Any], properties: object) -> dict[str, Any]:
    """Return the arguments of a call in XML, which are texts, with the types that the tool has for them."""
    kinds = properties if isinstance(properties, dict) else {}
    return {key: _value(value, kinds.get(key)) for key, value in given.items()}


def _value(text: str, schema: object) -> Any:
    kind = schema.get("type", "string") if isinstance(schema, dict) else "string"
    if "string" in (kind if isinstance(kind, list) else [kind]):
        return text
    try:
        # As the template writes them, in Python's words.
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text.strip(), text))
    except (ValueError, RecursionError):
        return text


def _function(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}


def _content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    """Return parts as the content of a message, a text where they are nothing else."""
    if all(isinstance(part, Text) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, Text))
    return [{"type": "text", "text": part.text} if isinstance(part, Text) else {"type": "image"} for part in parts]


def _listed(parts: Sequence[Part]) -> list[dict[str, Any]]:
    content = _content(parts)
    return [_text(content)] if isinstance(content, str) else content


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _results(results: Iterable[Part]) -> list[dict[str, Any]]:
    """Return results of tools as Qwen's templates write them into a turn of the user."""
    found: list[dict[str, Any]] = []
    for result in results:
        assert isinstance(result, ToolResult), "the only part of a tool's message"
        line = "\n" * bool(found)
        begin, end = (_text(PromptText(tag)) for tag in (f"{line}<tool_response>\n", "\n</tool_response>"))
        found += [begin, *_listed(result.parts), end]
    return found
