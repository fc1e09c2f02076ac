"""The one hook that this project adds to Lightning's."""

from lightning import Callback, LightningModule, Trainer

from arpo.types import RolloutBatch


class RolloutCallback(Callback):
    """A callback that sees every rollout batch on global rank 0, before trajectories are scattered to the ranks.

    Callbacks run in the trainer's order, and each sees what the one before it left: whoever must see the rollout
    as it was collected stands before replay injection.
    """

    def on_rollout_end(self, trainer: Trainer, module: LightningModule, batch: RolloutBatch) -> None:
        """Read `batch`, or replace groups in it; the default leaves it as it is."""
