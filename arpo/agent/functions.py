"""Functions of a desktop, which an agent may call beside mouse and keyboard: the API-GUI actions of arXiv 2508.14040.

A desktop says what it has as a list of `Function`, the prompt names them, and a call that fits none is refused: it
does nothing, as a click beside a button does nothing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from arpo.agent.actions import Call, Scalar

Kind = Literal["str", "int", "float", "bool"]

LONGEST_TEXT = 10_000
"""Characters of an argument; a guest of ours has the same limit."""

_EXAMPLES: Mapping[Kind, Scalar] = {"str": "xxx", "int": 1, "float": 0.5, "bool": True}


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a desktop: its name, the arguments that it takes, all of them, and what it does."""

    name: str
    parameters: Mapping[str, Kind]
    does: str
    """A sentence for the prompt."""

    def __str__(self) -> str:
        """Return the line of a prompt."""
        call = Call(self.name, {name: _EXAMPLES[kind] for name, kind in self.parameters.items()})
        return f"{call.describe()} # {self.does}"


def typed(call: Call, functions: Sequence[Function]) -> Call:
    """Return a call with the types that its function has for its arguments; as it is where none of these is called.

    XML has texts alone, so that 42 is a number or a text by its parameter; in JSON some models write a number where a
    text is wanted. A value that is none of the type stays as it is, and the desktop refuses it.
    """
    kinds = {function.name: function.parameters for function in functions}.get(call.function, {})
    values = {name: _of_kind(value, kinds[name]) if name in kinds else value for name, value in call.arguments.items()}
    return Call(call.function, values)


def _of_kind(value: Scalar, kind: Kind) -> Scalar:
    if kind == "str":
        return str(value) if type(value) is int else value
    if not isinstance(value, str):
        return value
    text = value.strip()
    if kind == "bool":
        return {"true": True, "false": False}.get(text.lower(), value)
    if re.fullmatch(r"[+-]?[0-9]{1,15}", text):
        return int(text)
    return (
        float(text)
        if kind == "float" and re.fullmatch(r"[+-]?[0-9]{1,20}(?:\.[0-9]{0,30})?(?:e[+-]?[0-9]{1,2})?", text, re.I)
        else value
    )


def refusal(call: Call, functions: Sequence[Function]) -> str:
    """Return the reason why no function performs a call; empty where it fits one."""
    function = next((function for function in functions if function.name == call.function), None)
    if function is None:
        return f"there is no function {call.function[:40]!r}"
    if call.arguments.keys() != function.parameters.keys():
        takes, given = (", ".join(sorted(names))[:200] for names in (function.parameters, call.arguments))
        return f"{call.function} takes {takes or 'nothing'}, got {given or 'nothing'}"
    for name, kind in function.parameters.items():
        value, at = call.arguments[name], f"{call.function}: {name}"
        if type(value).__name__ not in (("int", "float") if kind == "float" else (kind,)):
            return f"{at} must be a {kind}, is a {type(value).__name__}"
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            return f"{at} has {len(value)} characters, more than {LONGEST_TEXT}"
        if isinstance(value, str) and any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in value):
            return f"{at} holds what is no text"  # no program could be handed it
    return ""
