"""The grammars of responses, by the names that a prompt has for them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from arpo.agent import computer_use, computer_use_xml, ui_tars
from arpo.agent.actions import Action
from arpo.agent.functions import Function, typed
from arpo.agent.response import ParsedResponse, ParseErrorKind, refuse
from arpo.errors import ActionParseError, TaskFormatError

GrammarName = Literal["ui_tars", "computer_use", "computer_use_xml"]


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
        return tuple(typed(action, functions) for action in found)

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
}


def thought_of(response: str) -> str:
    """Return the thought of a response by the first grammar that reads it; none where none does."""
    for grammar in GRAMMARS.values():
        try:
            return grammar.parse(response).thought
        except ActionParseError:
            continue
    return ""
