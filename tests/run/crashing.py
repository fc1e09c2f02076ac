"""A callback with two bugs, each for one seed: it crashes in mid-run, or waits for a signal that nobody sends."""

import logging
import signal

import lightning as L


class Crash(L.Callback):
    def __init__(self, seed: int, fatal: int, endless: int = -1) -> None:
        self.crashes, self.waits = seed == fatal, seed == endless

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.crashes:
            raise RuntimeError("the bug\nof a callback")
        if self.waits:
            logging.getLogger(__name__).warning("waiting for a signal")
            signal.pause()
