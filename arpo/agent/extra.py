"""Arguments that an action does not take: models add some, and every grammar ignores what changes nothing."""

import re
from collections.abc import Mapping

from arpo.agent.error_kinds import ParseErrorKind
from arpo.errors import ActionParseError

_CHANGING = frozenset(
    ("button", "click", "clicks", "count", "times", "repeat", "presses", "num", "double", "type",
     "modifier", "modifiers", "hold", "key", "keys", "hotkey", "ctrl", "shift", "alt",
     "press", "enter", "submit", "overwrite", "replace", "direction", "axis", "horizontal", "vertical",
     "start", "end", "from", "to", "source", "target", "destination")
)  # fmt: skip
"""Words in the name of an argument that says how to do something, or where: it is not done without."""
_NOTHING = frozenset(("", "left", "0", "1", "none", "null", "false", "[]"))
"""Values that ask for nothing that is not done anyway."""
_WORD = re.compile(r"[A-Z]?[^\W_A-Z]+|[A-Z]+")


def check_extra(action: str, extra: Mapping[str, str], *, incomplete: bool) -> None:
    """Check that nothing else would happen if the arguments that an action does not take were regarded.

    Args:
        action: Its name, for the message.
        extra: The arguments with their values as text.
        incomplete: Whether the action lacks an argument that it may have, whose name one of these may misspell.

    Raises:
        ActionParseError: `bad_argument`, if it may.
    """
    for name, value in extra.items():
        if value.strip().lower() in _NOTHING:
            continue
        if incomplete or not _CHANGING.isdisjoint(map(str.lower, _WORD.findall(name))):
            raise ActionParseError(ParseErrorKind.BAD_ARGUMENT, f"{action} takes no {name[:40]}, got {value[:40]!r}")
