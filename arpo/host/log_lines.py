"""The form of the log, on the terminal and in files: no text in a line forges another or moves the cursor."""

import logging

from typing_extensions import override

from arpo.quoting import quoted

LONGEST_RECORD = 2**16
"""Characters of a record, such as a traceback or a table."""


class LineFormatter(logging.Formatter):
    """A formatter whose records begin at the margin, and their further lines do not."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return quoted(super().format(record), most=LONGEST_RECORD, keep="\n\t").replace("\n", "\n  ")


def log_to_terminal(level: int = logging.INFO) -> None:
    """Show the log of a command that is no run: the messages alone."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
