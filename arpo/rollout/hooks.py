"""Additions to Lightning's callbacks: one hook, and the way from a trainer to its rollouts."""

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lightning import Callback, LightningModule, Trainer

from arpo.errors import ConfigError
from arpo.types import RolloutBatch

if TYPE_CHECKING:  # it brings engines and environments along, which a module that learns has no use for
    from arpo.rollout.runtime import RolloutRuntime


class RolloutCallback(Callback):
    """A callback that sees every rollout batch on global rank 0, before trajectories are scattered to the ranks.

    Callbacks run in the trainer's order, and each sees what the one before it left: whoever must see the rollout
    as it was collected stands before replay injection.
    """

    def on_rollout_end(self, trainer: Trainer, module: LightningModule, batch: RolloutBatch) -> None:
        """Read `batch`, or replace groups in it; the default leaves it as it is."""


@runtime_checkable
class RollsOut(Protocol):
    """A data module whose batches are rollouts."""

    @property
    def runtime(self) -> "RolloutRuntime":
        """The engine and the environments."""


def runtime_of(trainer: Trainer) -> "RolloutRuntime":
    """Return the runtime of the trainer's data module: rollouts are this project's data.

    Raises:
        ConfigError: If the data module rolls nothing out, as one of demonstrations.
    """
    datamodule = trainer.datamodule  # type: ignore[attr-defined]  # Lightning sets it, and declares it nowhere
    if not isinstance(datamodule, RollsOut):
        raise ConfigError(
            f"this callback needs a data module that rolls out, got {type(datamodule).__name__}; leave the callback "
            "out, or train on rollouts"
        )
    return datamodule.runtime
