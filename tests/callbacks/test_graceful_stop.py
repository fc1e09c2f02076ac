"""Signals, really sent: the first lets the iteration end, the second does not."""

import os
import pty
import signal
import sys
from collections.abc import Iterator

import pytest

from arpo.callbacks.graceful_stop import GracefulStop, end_on_signals
from tests.callbacks.support import IdleModule, fit

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[dict[int, object]]:
    """The handlers as a test finds them, and they are back after it whatever it does."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


def installed() -> dict[int, object]:
    return {number: signal.getsignal(number) for number in SIGNALS}


@pytest.fixture
def run(make_collector, tmp_path):
    def train(module, iterations=4):
        stop = GracefulStop()
        collector = make_collector(start=False, group_size=2, max_steps=1)
        trainer = fit(tmp_path, collector, [stop], iterations=iterations, module=module)
        return stop, trainer

    return train


def send_in_iteration(module: IdleModule, iteration: int, *numbers: int) -> None:
    def send() -> None:
        if module.policy_version == iteration:
            for number in numbers:
                os.kill(os.getpid(), number)

    module.at_step = send


def test_without_a_signal_nothing_happens(run, handlers):
    module = IdleModule()
    stop, _ = run(module, iterations=2)
    assert stop.received is None
    assert module.policy_version == 2
    assert installed() == handlers


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_the_first_signal_lets_the_iteration_end_and_no_other_begin(run, handlers, number, caplog):
    module = IdleModule()
    send_in_iteration(module, 1, number)
    stop, trainer = run(module)
    assert stop.received == number
    assert module.policy_version == 2  # the iteration in which it came was finished
    assert trainer.current_epoch == 2
    assert f"{number.name}: finishing this iteration" in caplog.text
    assert "resume=auto" in caplog.text
    assert installed() == handlers


def test_the_second_signal_ends_at_once(run, handlers):
    module = IdleModule()
    send_in_iteration(module, 1, signal.SIGTERM, signal.SIGTERM)
    with pytest.raises(SystemExit) as left:
        run(module)
    assert left.value.code == 128 + signal.SIGTERM
    assert module.policy_version == 1  # in the middle of the second iteration
    assert installed() == handlers


def test_a_terminal_that_is_lost_asks_twice_and_is_heard_once(run, handlers):
    """The kernel sends a SIGHUP to the group in the foreground, and a shell to its jobs."""
    module = IdleModule()
    send_in_iteration(module, 1, signal.SIGHUP, signal.SIGHUP)
    stop, _ = run(module)
    assert (stop.received, module.policy_version) == (signal.SIGHUP, 2)
    assert installed() == handlers


def test_an_error_in_training_brings_the_handlers_back_too(run, handlers):
    def fail() -> None:
        raise RuntimeError("diverged")

    with pytest.raises(RuntimeError, match="diverged"):
        run(IdleModule(at_step=fail))
    assert installed() == handlers


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_before_training_a_signal_ends_the_process_with_what_a_shell_expects(number):
    end_on_signals()
    with pytest.raises(SystemExit) as ended:
        os.kill(os.getpid(), number)
    assert ended.value.code == 128 + number


def test_under_nohup_a_lost_terminal_changes_nothing(run):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup starts a program
    end_on_signals()
    module = IdleModule()
    send_in_iteration(module, 1, signal.SIGHUP)
    stop, _ = run(module, iterations=3)
    assert (stop.received, module.policy_version) == (None, 3)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


ON_A_TERMINAL = """
import os, signal, sys
from arpo.callbacks.graceful_stop import end_on_signals
end_on_signals()
try:
    print("<listens>", flush=True)
    signal.pause()
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
