"""One line on a real terminal, and none in the way of a log."""

import io
import logging
import os
import pty
import select
import sys

from rich.console import Console

from arpo.display.live import Painter, live_line, showing
from arpo.display.progress_line import Line
from arpo.host.heartbeat import Heartbeat


def everything(terminal: int) -> str:
    """What was written to the other end: a terminal gives it in pieces."""
    pieces = []
    while select.select([terminal], [], [], 0.5)[0]:
        pieces.append(os.read(terminal, 100_000))
    return b"".join(pieces).decode()


def test_a_log_line_scrolls_above_the_live_line_of_a_real_terminal() -> None:
    primary, secondary = pty.openpty()
    with os.fdopen(secondary, "w") as screen:
        handler = logging.StreamHandler(sys.stderr)
        library = logging.getLogger("a_library")  # with a handler of its own, as Lightning has
        library.addHandler(handler)
        painter = live_line(Console(file=screen, force_terminal=True, width=100), lambda: Line(["iteration 1/2"], 0.0))
        stderr = sys.stderr
        painter.start()
        try:
            assert handler.stream is not stderr
            logging.getLogger("a_library.part").warning("a word in between")
        finally:
            painter.stop()
            library.removeHandler(handler)
        assert sys.stderr is stderr
        assert handler.stream is sys.stderr
        screen.flush()
        text = everything(primary)
    os.close(primary)
    assert "a word in between" in text
    assert "iteration 1/2" in text


def test_a_handler_that_writes_to_a_file_keeps_writing_there(tmp_path) -> None:
    library = logging.getLogger("a_library")
    handler = logging.FileHandler(tmp_path / "log")
    library.addHandler(handler)
    painter = Painter(Console(file=io.StringIO(), force_terminal=True), lambda: "line")
    painter.start()
    try:
        library.warning("for the file")
    finally:
        painter.stop()
        library.removeHandler(handler)
        handler.close()
    assert (tmp_path / "log").read_text() == "for the file\n"


def test_a_terminal_is_painted_on_and_a_log_gets_lines() -> None:
    def line() -> Line:
        return Line(["x"])

    assert isinstance(live_line(Console(file=io.StringIO(), force_terminal=True), line), Painter)
    assert isinstance(live_line(Console(file=io.StringIO(), force_terminal=False), line), Heartbeat)


def test_a_line_is_painted_on_standard_error_and_leaves_the_output_of_a_program_alone(monkeypatch, capsys) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with showing(lambda: Line(["iteration 1/2"])):
        pass
    output, error = capsys.readouterr()
    assert output == ""
    assert "iteration 1/2" in error
