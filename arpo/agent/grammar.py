"""The grammars of responses, by the names that a prompt has for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from arpo.agent import computer_use, parser, render
from arpo.agent.actions import Action
from arpo.agent.parser import ParsedResponse

GrammarName = Literal["ui_tars", "computer_use"]


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


GRAMMARS: Mapping[GrammarName, ActionGrammar] = {
    "ui_tars": ActionGrammar(parser.parse_response, render.render_response),
    "computer_use": ActionGrammar(computer_use.parse_response, computer_use.render_response),
}
