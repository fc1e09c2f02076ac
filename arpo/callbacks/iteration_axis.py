"""The x axis of every curve: the iteration."""

import lightning as L
from typing_extensions import override


class IterationAxis(L.Callback):
    """The iteration as the x axis: what was measured up to the n-th update stands at n.

    Lightning's own axis counts optimizer steps, of which an iteration has several, or none when it teaches nothing.
    """

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        step = float(trainer.current_epoch + 1)  # Lightning takes a metric of this name for the x axis
        pl_module.log("step", step, on_step=False, on_epoch=True, batch_size=1, rank_zero_only=True)
