"""The progress line on a screen: repainted at the bottom of a terminal, repeated every few seconds in a log."""

import logging
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from typing_extensions import override

from arpo.display.progress_line import Line
from arpo.host.heartbeat import Heartbeat


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

    rich's own handler cannot take their place: libraries have handlers of their own beside the root's, and where
    there is no terminal it would break the lines of the log at 80 characters.
    """
    loggers = [logging.getLogger(), *logging.getLogger().manager.loggerDict.values()]
    for logger in loggers:
        if isinstance(logger, logging.Logger):
            for handler in logger.handlers:
                fixed = "stream" in vars(handler)  # others look sys.stderr up at every line, and rich replaces that
                if isinstance(handler, logging.StreamHandler) and fixed and handler.stream in (sys.stdout, sys.stderr):
                    yield handler
