"""The grammars of responses, by the names that a prompt has for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from arpo.agent import computer_use, computer_use_xml, parser, render
from arpo.agent.actions import Action
from arpo.agent.functions import Function, typed
from arpo.agent.parser import ParsedResponse
from arpo.errors import ActionParseError, TaskFormatError

GrammarName = Literal["ui_tars", "computer_use", "computer_use_xml"]


class ParseResponse(Protocol):
    """A reader of responses."""

    def __call__(self, text: str, *, max_actions: int | None = None) -> ParsedResponse:
        """Return the thought and the actions of a response; see `arpo.agent.parser.parse_response`."""


class RenderResponse(Protocol):
    """A writer of responses."""

    def __call__(self, action: Action, thought: str = "", *others: Action) -> str:
        """Return a response that the reader reads as this thought and these actions."""


@dataclass(frozen=True, slots=True)
class ActionGrammar:
    """The way in which a model writes its thought and its actions."""

    parse: ParseResponse
    render: RenderResponse

    def read(self, text: str, functions: Sequence[Function], *, max_actions: int | None = None) -> tuple[Action, ...]:
        """Return the actions of a response, with arguments of the desktop's functions of the types that these have.

        Raises:
            ActionParseError: As `parse` does.
        """
        return tuple(typed(action, functions) for action in self.parse(text, max_actions=max_actions).actions)

    def answer(self, action: Action, thought: str = "", *others: Action) -> str:
        """Return the response of somebody who is not bound to this grammar, such as the expert of a task."""
        try:
            return self.render(action, thought, *others)
        except ValueError as error:
            raise TaskFormatError(
                f"an expert's answer cannot be written in the prompt's grammar ({error}): choose another prompt, or "
                "leave the task out"
            ) from error


GRAMMARS: Mapping[GrammarName, ActionGrammar] = {
    "ui_tars": ActionGrammar(parser.parse_response, render.render_response),
    "computer_use": ActionGrammar(computer_use.parse_response, computer_use.render_response),
    "computer_use_xml": ActionGrammar(computer_use_xml.parse_response, computer_use_xml.render_response),
}


def thought_of(response: str) -> str:
    """Return the thought of a response in whichever grammar reads it; none where none does."""
    for grammar in GRAMMARS.values():
        try:
            return grammar.parse(response).thought
        except ActionParseError:
            continue
    return ""
