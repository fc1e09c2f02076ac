"""Additions to Lightning's callbacks: one hook, and the way from a trainer to its rollouts and to other ranks."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar, cast, runtime_checkable

from lightning import Callback, LightningModule, Trainer

from arpo.errors import ArpoError, ConfigError
from arpo.types import RolloutBatch

if TYPE_CHECKING:  # it brings engines and environments along, which a module that learns has no use for
    from arpo.rollout.runtime import RolloutRuntime

_T = TypeVar("_T")


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


def raise_everywhere(trainer: Trainer, error: Exception | None) -> None:
    """Raise what went wrong on global rank 0, if anything did, on every rank; all of them must call this.

    Without it the others would wait for rank 0 in their next collective call, as long as that may take.

    Args:
        trainer: Of this rank.
        error: Of rank 0; None on the others.

    Raises:
        Exception: The error itself, on rank 0.
        ArpoError: With its words, on the others.
    """
    told: str | None = trainer.strategy.broadcast(None if error is None else str(error))
    if error is not None:
        raise error
    if told is not None:
        raise ArpoError(told)


def on_rank_zero(trainer: Trainer, work: Callable[[], _T], elsewhere: _T) -> _T:
    """Return what some work gives on global rank 0, and on other ranks `elsewhere`; all of them must call this.

    Raises:
        ArpoError: On every rank, if the work fails (`raise_everywhere`).
    """
    if not trainer.is_global_zero:
        raise_everywhere(trainer, None)
        return elsewhere
    found, error = attempt(work)
    raise_everywhere(trainer, error)
    return cast(_T, found)  # without an error there is one


def attempt(work: Callable[[], _T]) -> tuple[_T | None, Exception | None]:
    """Return what some work gives, or the error that it ends in: other ranks hear of it before it is raised."""
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 - the caller raises it
        return None, error
