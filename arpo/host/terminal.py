"""The terminal: a line that is painted at its bottom or repeated in a log, tables, and its signals."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from arpo.errors import quoted
from arpo.host.log_lines import Heartbeat

WIDEST = 400
"""Columns that a table may take where it goes to a file or to another program, which has no width of its own."""


@dataclass(frozen=True, slots=True)
class Line:
    """A progress line at one moment: its parts, the most important first, and the share that is done, if known."""

    parts: Sequence[str]
    share: float | None = None

    @property
    def text(self) -> str:
        """The line of a log."""
        return " · ".join(self.parts)

    def table(self) -> Table:
        """Return the line of a terminal: a bar, then the text, whose end is cut where it does not fit."""
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(no_wrap=True, width=10)
        row.add_column(no_wrap=True, overflow="ellipsis", ratio=1)  # it gives way, not the bar
        total = None if self.share is None else 1.0
        row.add_row(ProgressBar(total=total, completed=self.share or 0.0, width=10), Text(self.text))
        return row


class Painter(Live):
    """One line at the bottom of a terminal that is painted again and again; log lines scroll above it."""

    def __init__(self, console: Console, paint: Callable[[], RenderableType]) -> None:
        super().__init__(console=console, get_renderable=paint, refresh_per_second=4, transient=True)
        self._streams: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []

    @override
    def start(self, refresh: bool = False) -> None:
        handlers = list(_terminal_handlers())
        super().start(refresh)  # from here on, what is written to sys.stderr scrolls above the line
        for handler in handlers:
            self._streams.append((handler, handler.stream))
            handler.setStream(sys.stderr)

    def say(self, line: str) -> None:
        """Do nothing: the painted line says it already."""

    @override
    def stop(self) -> None:
        super().stop()
        for handler, stream in self._streams:
            handler.setStream(stream)
        self._streams.clear()


LiveLine = Painter | Heartbeat
"""A line that is shown from `start` to `stop`, or while a `with` block runs."""


def live_line(console: Console, line: Callable[[], Line]) -> LiveLine:
    """Return a display of a line: painted in place on a terminal, logged again and again elsewhere."""
    return Painter(console, lambda: line().table()) if console.is_terminal else Heartbeat(lambda: line().text)


def showing(line: Callable[[], Line]) -> LiveLine:
    """Return a display of a line on standard error."""
    return live_line(Console(stderr=True), line)


def _terminal_handlers() -> Iterator[logging.StreamHandler[TextIO]]:
    """Yield every handler that would write across the painted line.

    rich's own cannot take their place: libraries have some beside the root's, and it breaks lines at 80 characters.
    """
    loggers = [logging.getLogger(), *logging.getLogger().manager.loggerDict.values()]
    for logger in loggers:
        if isinstance(logger, logging.Logger):
            for handler in logger.handlers:
                fixed = "stream" in vars(handler)  # others look sys.stderr up at every line, and rich replaces that
                if isinstance(handler, logging.StreamHandler) and fixed and handler.stream in (sys.stdout, sys.stderr):
                    yield handler


def print_table(rows: Sequence[Sequence[str]], *, title: str, caption: str) -> None:
    """Print rows of text, the header first."""
    header, *body = [[Text(quoted(word)) for word in row] for row in rows]
    table = Table(title=Text(quoted(title)), caption=Text(quoted(caption)))
    for name in header:
        table.add_column(name, overflow="fold")  # a name that is cut could be that of two things
    for row in body:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDEST
    console.print(table)


def ending_signals() -> tuple[int, ...]:
    """Return the signals that ask for an end: SIGTERM, and, unless `nohup` lets us ignore it, SIGHUP."""
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGTERM, *hangup)


def end_on_signals() -> None:
    """Let `ending_signals` end this process as Ctrl-C does: whatever was started is ended first."""
    for asked in ending_signals():
        signal.signal(asked, _end)


def _end(number: int, _: FrameType | None) -> None:
    if number == signal.SIGHUP:
        leave_terminal()
    sys.exit(128 + number)


def leave_terminal() -> None:
    """Hear no second SIGHUP, as the kernel and a shell send one each, and write nothing to a terminal that is gone."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream)
            os.close(nowhere)
