"""Ctrl-C, SIGTERM and SIGHUP: the first finishes the iteration and checkpoints, the second stops at once."""

import logging
import os
import signal
import sys
from types import FrameType
from typing import Any

import lightning as L
from typing_extensions import override

log = logging.getLogger(__name__)


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


class GracefulStop(L.Callback):
    """The end of training after the running iteration when a person or a scheduler asks for it.

    The checkpoint of that iteration is written by `IterationCheckpoint`, and the run continues with `resume=auto`. A
    second signal, but for a second SIGHUP, raises `SystemExit`, so that everything that was started is ended before
    the process exits.

    Attributes:
        received: The first signal, or None; the entry point turns it into the exit code.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # not earlier: Lightning installs its own SIGTERM handler just before, which would end the run in mid-air
        asked = (signal.SIGINT, *ending_signals())
        self._previous = {number: signal.signal(number, self._handle) for number in asked}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave_terminal()
        name = signal.Signals(number).name
        if self.received is not None:
            log.warning("%s again: stopping at once", name)
            raise SystemExit(128 + number)
        self.received = number
        log.warning(
            "%s: finishing this iteration, then a checkpoint, then the end; once more stops at once. "
            "Continue later with resume=auto",
            name,
        )

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # a signal may reach one rank only, and none may go on, or stop, alone
        asked = trainer.should_stop or self.received is not None
        trainer.should_stop = trainer.strategy.reduce_boolean_decision(asked, all=False)

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._restore()

    @override
    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._restore()
