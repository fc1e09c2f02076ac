"""Prompts, the messages before the first screenshot, and the grammars of responses, by the names that they have."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from arpo.agent import computer_use, computer_use_xml, ui_tars
from arpo.agent.actions import Action, Call
from arpo.agent.functions import Function, Kind, typed
from arpo.agent.mobile_use import PHONE
from arpo.agent.response import ParsedResponse, ParseErrorKind, refuse
from arpo.bounds import checked
from arpo.errors import ActionParseError, ConfigError, TaskFormatError

GrammarName = Literal["ui_tars", "computer_use", "computer_use_xml", "ui_tars_mobile", "mobile_use"]


class RenderResponse(Protocol):
    """A writer of responses, which the reader reads as this thought and these actions."""

    def __call__(self, action: Action, thought: str = "", *others: Action) -> str: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class ActionGrammar:
    """The way in which a model writes its thought and its actions."""

    parse: Callable[[str], ParsedResponse]
    render: RenderResponse

    def read(self, text: str, functions: Sequence[Function], *, max_actions: int | None = None) -> tuple[Action, ...]:
        """Return the actions of a response, with arguments of the desktop's functions of the types that these have."""
        found = self.parse(text).actions
        if max_actions is not None and len(found) > max_actions:
            message = f"the response has {len(found)} actions, more than max_actions={max_actions}"
            refuse(ParseErrorKind.TOO_LONG, message)
        return tuple(typed(action, functions) if isinstance(action, Call) else action for action in found)

    def answer(self, action: Action, thought: str = "", *others: Action) -> str:
        """Return the response of an author who is not bound to this grammar, such as the expert of a task."""
        try:
            return self.render(action, thought, *others)
        except ValueError as error:
            raise TaskFormatError(
                f"an expert's answer cannot be written in the prompt's grammar ({error}): choose another prompt, or "
                "leave the task out"
            ) from error


GRAMMARS: Mapping[GrammarName, ActionGrammar] = {
    "ui_tars": ActionGrammar(ui_tars.parse_response, ui_tars.render_response),
    "computer_use": ActionGrammar(computer_use.parse_response, computer_use.render_response),
    "computer_use_xml": ActionGrammar(computer_use_xml.parse_response, computer_use_xml.render_response),
    "ui_tars_mobile": ActionGrammar(
        partial(ui_tars.parse_response, table=ui_tars.PHONE), partial(ui_tars.render_response, table=ui_tars.PHONE)
    ),
    "mobile_use": ActionGrammar(
        partial(computer_use.parse_response, tool=PHONE), partial(computer_use.render_response, tool=PHONE)
    ),
}


def thought_of(response: str) -> str:
    """Return the thought of a response by the first grammar that reads it; none where none does."""
    for grammar in GRAMMARS.values():
        try:
            return grammar.parse(response).thought
        except ActionParseError:
            continue
    return ""


_PLACEHOLDER = "{instruction}"


def _text(name: str) -> str:
    return (Path(__file__).parent / "prompts" / name).read_text(encoding="utf-8")


# The computer-use prompt that UI-TARS-1.5 was trained with; the tool `computer_use` for a screen of 1000 x 1000, from
# Qwen's cookbook (QwenLM/Qwen3-VL, cookbooks/utils/agent_function_call.py); and the messages with tools that
# qwen-agent and the chat template of Qwen3.5 write. Any change to one of them, of a single space, is another prompt.
_UI_TARS, _UI_TARS_MOBILE = _text("ui_tars.txt"), _text("ui_tars_mobile.txt")
_COMPUTER_USE, _MOBILE_USE = json.loads(_text("computer_use.json")), json.loads(_text("mobile_use.json"))
JSON_CALLS, _XML_CALLS = (_text(name).removesuffix("\n") for name in ("json_calls.txt", "xml_calls.txt"))
_AFTER_THE_ACTIONS = "\n## Note\n"
_TYPES: Mapping[Kind, str] = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


class PromptText(str):
    """The text of a message, of which `foreign` alone comes from outside: a task's instruction, which is never markup.

    What stands around it was written for the model, and may hold tokens of its grammar, such as those of a box.
    """

    before: str
    foreign: str
    behind: str

    def __new__(cls, before: str, foreign: str = "", behind: str = "") -> Self:
        """Return the text of three parts."""
        text = super().__new__(cls, before + foreign + behind)
        text.before, text.foreign, text.behind = before, foreign, behind
        return text


@checked
@dataclass(frozen=True, slots=True)
class Prompt:
    """The messages before the first response.

    The named prompts list the functions of the desktop among the actions, where it has some; without, they are the
    same character by character.
    """

    system: str
    """The system message; none when empty."""
    template: str
    """The user message, with `{instruction}` where the instruction goes."""
    screenshot_apart: bool = True
    """True if the first screenshot is a message of its own, or follows the text in the same message."""
    grammar: GrammarName = "ui_tars"
    """The grammar of the responses."""
    functions: Sequence[Function] = ()
    """The functions of the desktop that it lists."""

    def __post_init__(self) -> None:
        if self.template.count(_PLACEHOLDER) != 1:
            raise ConfigError(f"a prompt template must contain {_PLACEHOLDER} exactly once, got {self.template!r}")

    @classmethod
    def ui_tars(cls, functions: Sequence[Function] = ()) -> Self:
        """Return the computer-use prompt of UI-TARS-1.5."""
        return cls("You are a helpful assistant.", _ui_tars(functions), functions=functions)

    @classmethod
    def official(cls, functions: Sequence[Function] = ()) -> Self:
        """Return the same prompt as ARPO's own code writes it, with the typing error in its system message."""
        return cls("Your are a helpful assistant.", _ui_tars(functions), functions=functions)

    @classmethod
    def compact(cls, functions: Sequence[Function] = (), grammar: GrammarName = "ui_tars") -> Self:
        """Return the shortest prompt, for tiny models that know only one task family."""
        return cls("", _listed(functions) + _PLACEHOLDER, False, grammar, functions)

    @classmethod
    def computer_use(cls, functions: Sequence[Function] = ()) -> Self:
        """Return the prompt by which Qwen3-VL operates a desktop: calls of one tool, in thousandths of the screen."""
        return cls(_with_tools(JSON_CALLS, functions), _PLACEHOLDER, False, "computer_use", functions)

    @classmethod
    def compact_computer_use(cls, functions: Sequence[Function] = ()) -> Self:
        """Return the shortest prompt for calls of that tool, for tiny models; functions are tools beside it."""
        return cls("", _listed(map(_tool, functions)) + _PLACEHOLDER, False, "computer_use", functions)

    @classmethod
    def computer_use_xml(cls, functions: Sequence[Function] = ()) -> Self:
        """Return the prompt by which Qwen3.5 operates a desktop: calls of the same tool, as XML."""
        return cls(_with_tools(_XML_CALLS, functions), _PLACEHOLDER, False, "computer_use_xml", functions)

    @classmethod
    def compact_computer_use_xml(cls, functions: Sequence[Function] = ()) -> Self:
        """Return the shortest prompt for such calls, for tiny models; functions are tools beside it."""
        return cls("", _listed(map(_tool, functions)) + _PLACEHOLDER, False, "computer_use_xml", functions)

    @classmethod
    def ui_tars_mobile(cls) -> Self:
        """Return the prompt by which UI-TARS operates a phone, `MOBILE_USE_DOUBAO` of ui-tars 0.1.4."""
        return cls("You are a helpful assistant.", _UI_TARS_MOBILE, grammar="ui_tars_mobile")

    @classmethod
    def mobile_use(cls) -> Self:
        """Return a prompt by which Qwen3-VL operates a phone: its tool for that, described in words of our own."""
        return cls(JSON_CALLS.replace("{tools}", _signature(**_MOBILE_USE)), _PLACEHOLDER, False, "mobile_use")

    def messages(self, instruction: str) -> list[dict[str, Any]]:
        """Return chat messages that end with the first screenshot, ready for the chat template."""
        # Not `format`: instructions and templates may hold braces of their own.
        before, _, behind = self.template.partition(_PLACEHOLDER)
        text = {"type": "text", "text": PromptText(before, instruction, behind)}
        image = {"type": "image"}
        contents = [[text], [image]] if self.screenshot_apart else [[text, image]]
        users = [{"role": "user", "content": content} for content in contents]
        if not self.system:
            return users
        return [{"role": "system", "content": [{"type": "text", "text": PromptText(self.system)}]}, *users]


def _ui_tars(functions: Sequence[Function]) -> str:
    return _UI_TARS.replace(_AFTER_THE_ACTIONS, _listed(functions) + _AFTER_THE_ACTIONS)


def _listed(functions: Iterable[Function | str]) -> str:
    return "".join(f"{function}\n" for function in functions)


def _with_tools(message: str, functions: Sequence[Function]) -> str:
    """Return a system message with the signatures of the tool, and of the desktop's functions as further tools."""
    return message.replace("{tools}", "\n".join([_signature(**_COMPUTER_USE), *map(_tool, functions)]))


def _signature(name: str, description: str, parameters: Mapping[str, Any]) -> str:
    function = {"name": name, "description": description, "parameters": parameters}
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


def _tool(function: Function) -> str:
    """Return a function of the desktop as a tool, in one line of JSON."""
    properties = {name: {"type": _TYPES[kind]} for name, kind in function.parameters.items()}
    parameters = {"properties": properties, "required": list(properties), "type": "object"}
    return _signature(function.name, function.does, parameters)
