"""The terminal: one line on it and none in the way of a log, tables, and its end."""

import io
import logging
import os
import pty
import re
import select
import signal
import sys
from collections.abc import Iterator

import pytest
from rich.console import Console

from arpo.host.log_lines import Heartbeat
from arpo.host.terminal import Line, Painter, end_on_signals, live_line, print_table, showing


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


def test_a_terminal_is_painted_on_and_a_log_gets_lines_as_does_a_handler_that_writes_to_a_file(tmp_path) -> None:
    consoles = (Console(file=io.StringIO(), force_terminal=terminal) for terminal in (True, False))
    painter, heartbeat = (live_line(console, lambda: Line(["x"])) for console in consoles)
    assert isinstance(painter, Painter)
    assert isinstance(heartbeat, Heartbeat)
    library, handler = logging.getLogger("a_library"), logging.FileHandler(tmp_path / "log")
    library.addHandler(handler)
    try:
        with painter:
            library.warning("for the file")
    finally:
        library.removeHandler(handler)
        handler.close()
    assert (tmp_path / "log").read_text() == "for the file\n"


def test_a_line_is_painted_on_standard_error_and_leaves_the_output_of_a_program_alone(monkeypatch, capsys) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with showing(lambda: Line(["iteration 1/2"])):
        pass
    output, error = capsys.readouterr()
    assert output == ""
    assert "iteration 1/2" in error


def test_the_line_stays_one_line_in_a_narrow_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=60)
    console.print(Line(["iteration 12/60", "rollout 16/64"] + ["replay 14, 3 injected"] * 3, 0.2).table())
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())
    assert shown.count("\n") == 1
    assert "rollout 16/64" in shown
    assert re.match("[━╸╺]{10} ", shown)  # the text gives way, not the bar
    assert len(shown.rstrip()) == 60


def test_a_table_that_goes_to_a_file_is_as_wide_as_its_words_and_one_on_a_terminal_no_wider(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    words = "word " * 60

    def printed() -> str:
        print_table([("[a]", "b"), (words, "[/c]")], title="[/d]", caption="[red]e")
        return capsys.readouterr().out

    assert all(word in printed() for word in (words.strip(), "[a]", "[/c]", "[/d]", "[red]e"))  # no markup
    with monkeypatch.context() as terminal:
        terminal.setenv("FORCE_COLOR", "1")
        assert words.strip() not in printed()
    monkeypatch.setenv("COLUMNS", "40")
    assert max(map(len, printed().splitlines())) <= 40


@pytest.fixture
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_before_training_a_signal_ends_the_process_with_what_a_shell_expects(number):
    end_on_signals()
    with pytest.raises(SystemExit) as ended:
        os.kill(os.getpid(), number)
    assert ended.value.code == 128 + number


ON_A_TERMINAL = """
import os, select, signal, socket, sys
from arpo.host.terminal import end_on_signals
end_on_signals()
came, wakes = socket.socketpair()  # a signal before `signal.pause` would be waited for without end
wakes.setblocking(False)
signal.set_wakeup_fd(wakes.fileno())
try:
    print("<listens>", flush=True)
    select.select([came], [], [])
finally:  # as the end of a run does
    print("results: here", flush=True)
    os.write(int(sys.argv[1]), b"saved")
"""


def test_the_end_of_a_terminal_is_no_error_of_what_is_said_afterwards():
    """A line to a terminal that is gone is an OSError, which would come before the last checkpoint."""
    reads, writes = os.pipe()
    child, terminal = pty.fork()
    if child == 0:
        os.set_inheritable(writes, True)
        os.execv(sys.executable, [sys.executable, "-c", ON_A_TERMINAL, str(writes)])
    os.close(writes)
    said = b""
    while b"<listens>" not in said:
        said += os.read(terminal, 100)
    os.close(terminal)
    assert os.read(reads, 100) == b"saved"
    os.close(reads)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + signal.SIGHUP
