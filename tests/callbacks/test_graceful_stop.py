"""Signals, really sent: the first lets the iteration end, the second does not."""

import os
import signal
from collections.abc import Iterator

import pytest

from arpo.callbacks.graceful_stop import GracefulStop, end_on_sigterm
from tests.callbacks.support import IdleModule, fit

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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


def test_an_error_in_training_brings_the_handlers_back_too(run, handlers):
    def fail() -> None:
        raise RuntimeError("diverged")

    with pytest.raises(RuntimeError, match="diverged"):
        run(IdleModule(at_step=fail))
    assert installed() == handlers


def test_before_training_sigterm_ends_the_process_with_what_a_shell_expects():
    end_on_sigterm()
    with pytest.raises(SystemExit) as ended:
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 143  # 128 + 15
