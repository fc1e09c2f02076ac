"""Untrusted text as one visible line: what a guest, a page or a model said, before it stands in an error or a log."""

import logging
import re
import unicodedata

from typing_extensions import override

LONGEST = 2000
"""Characters of an error's message: enough for a sentence and the last words of a program."""
LONGEST_RECORD = 2**16
"""Characters of a record of the log, such as a traceback or a table."""
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks that Unicode counts as visible, and that show nothing."""
_CUT = " … "


def quoted(text: object, *, most: int = LONGEST, keep: str = "") -> str:
    r"""Return a text as one line that controls no terminal; quoting it again changes nothing.

    A character that ends a line, moves a cursor, turns the direction of writing or shows nothing becomes its escape,
    such as `\n`, `\x1b` or `\u202e`. Where the line is longer than `most` characters, its middle is left out.

    Args:
        text: Anything; `str` is called on it.
        most: Characters that the line may have.
        keep: Characters that stay as they are.
    """
    whole = str(text)
    if len(whole) > 2 * most:
        whole = whole[:most] + whole[-most:]  # either half is more than what will be shown of it
    line = re.sub(r"[^ -~]", lambda found: found[0] if found[0] in keep else _shown(found[0]), whole)
    if len(line) <= most:
        return line
    end = most // 3
    return line[: most - end - len(_CUT)] + _CUT + line[-end:]


class LineFormatter(logging.Formatter):
    """A formatter of the log, in which a record begins at the margin and its further lines do not."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return quoted(super().format(record), most=LONGEST_RECORD, keep="\n\t").replace("\n", "\n  ")


def log_to_terminal(level: int = logging.INFO) -> None:
    """Show the log of a command that is no run: the messages alone."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def _shown(character: str) -> str:
    category = unicodedata.category(character)
    is_variation = "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"
    if category[0] == "C" or category in ("Zl", "Zp") or character in _INVISIBLE or is_variation:
        return character.encode("unicode_escape").decode()
    return character
