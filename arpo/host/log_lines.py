"""The lines of the log: what a guest, a page or a library said in one of them forges no other."""

import logging

from typing_extensions import override

from arpo.errors import quoted

LONGEST_RECORD = 2**16
"""Characters of a record of the log, such as a traceback or a table."""


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
