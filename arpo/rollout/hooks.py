"""Additions to Lightning's callbacks: one hook, and the way from a trainer to its rollouts and to other ranks.

Messages of rank 0 go through sockets: with NCCL, a rank that waits through a rollout keeps a kernel spinning on its
GPU, of which an engine on the same one (`layout=colocated`) would get half.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar, cast, runtime_checkable
from weakref import WeakKeyDictionary

import torch.distributed as dist
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from arpo.errors import ArpoError, ConfigError
from arpo.types import RolloutBatch, Trajectory

if TYPE_CHECKING:  # it brings engines and environments along, which a module that learns has no use for
    from arpo.rollout.runtime import RolloutRuntime

_T = TypeVar("_T")

PATIENCE = timedelta(hours=12)
"""How long a rank waits for rank 0; the `timeout` of `conf/trainer/` is as long."""


class RolloutCallback(Callback):
    """A callback that sees every rollout batch on global rank 0, before trajectories are scattered to the ranks.

    Callbacks run in the trainer's order: one that must see the rollout as it was collected stands before replay.
    """

    def on_rollout_end(self, trainer: Trainer, module: LightningModule, batch: RolloutBatch) -> None:
        """Read `batch`, or replace groups in it; the default leaves it as it is."""


def announce(trainer: Trainer, module: LightningModule, batch: RolloutBatch) -> None:
    """Show a batch to callbacks, on rank 0 before anything is computed from it, and store the rewards they change."""
    before = [each for group in batch.groups for each in group.trajectories]
    collected, unchanged = {each.id: _rewards(each) for each in before}, set(map(id, before))
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # Lightning declares it nowhere
        if isinstance(callback, RolloutCallback):
            callback.on_rollout_end(trainer, module, batch)
    for group in batch.groups:
        for position, each in enumerate(group.trajectories):
            changed = id(each) not in unchanged and collected.get(each.id, _rewards(each)) != _rewards(each)
            if changed and position not in group.injected:  # what replay put in is stored
                runtime_of(trainer).store.write(each)


def _rewards(trajectory: Trajectory) -> list[float]:
    return [trajectory.task_reward, trajectory.format_reward, *(step.reward for step in trajectory.steps)]


@runtime_checkable
class HasRuntime(Protocol):
    """A data module whose batches are rollouts."""

    @property
    def runtime(self) -> "RolloutRuntime":
        """The engine and the environments."""


def runtime_of(trainer: Trainer) -> "RolloutRuntime":
    """Return the runtime of the trainer's data module: rollouts are this project's data."""
    datamodule = trainer.datamodule  # type: ignore[attr-defined]  # Lightning sets it, and declares it nowhere
    if not isinstance(datamodule, HasRuntime):
        raise ConfigError(
            f"this callback needs a data module that rolls out, got {type(datamodule).__name__}; leave the callback "
            "out, or train on rollouts"
        )
    return datamodule.runtime


def engine_weights(trainer: Trainer) -> Mapping[str, Tensor]:
    """Return the weights that an engine of this process shares, by their names in the checkpoint."""
    datamodule = trainer.datamodule  # type: ignore[attr-defined]  # as in runtime_of
    if not isinstance(datamodule, HasRuntime) or not is_single_process():
        return {}
    return datamodule.runtime.run(datamodule.runtime.engine.weights())


def raise_everywhere(error: Exception | None) -> None:
    """Raise the error of global rank 0, if there is one, on every rank; all of them must call this.

    Without it the others would wait for rank 0 in their next collective call, as long as that may take.
    """
    message = broadcast(None if error is None else str(error))
    if error is not None:
        raise error
    if message is not None:
        raise ArpoError(message)


def on_rank_zero(trainer: Trainer, work: Callable[[], _T], elsewhere: _T) -> _T:
    """Return the result of some work on global rank 0, and on other ranks `elsewhere`; all of them must call this."""
    if not trainer.is_global_zero:
        raise_everywhere(None)
        return elsewhere
    found, error = attempt(work)
    raise_everywhere(error)
    return cast(_T, found)  # without an error there is one


def start_on_rank_zero(trainer: Trainer | None, runtime: "RolloutRuntime") -> None:
    """Start engine and environments on global rank 0, while the others wait; without a trainer there is one process.

    An engine measures what is free on its GPU while it starts: the weights of a rank that went on would come out of
    its cache.
    """
    if trainer is None:
        runtime.start()
    else:
        on_rank_zero(trainer, runtime.start, None)


def attempt(work: Callable[[], _T]) -> tuple[_T | None, Exception | None]:
    """Return the result of some work, or the error that it ends in: other ranks hear of it before it is raised."""
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 - the caller raises it
        return None, error


def broadcast(value: _T) -> _T:
    """Return the value of global rank 0 on every rank; all of them must call this."""
    if is_single_process():
        return value
    parcel = [value]
    dist.broadcast_object_list(parcel, src=0, group=_sockets())
    return parcel[0]


def scatter_object(parcels: list[_T] | None) -> _T:
    """Return the parcel that global rank 0 has for this rank; all of them must call this, and the others have none."""
    received: list[_T | None] = [None]
    dist.scatter_object_list(received, parcels, src=0, group=_sockets())
    return cast(_T, received[0])


def is_single_process() -> bool:
    """Return whether there is no other rank."""
    return not dist.is_initialized() or dist.get_world_size() == 1


_SOCKETS: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()
"""By a group of all ranks, which must be able to end with its store, or no other one could begin."""


def _sockets() -> dist.ProcessGroup:
    """Return a group of all ranks that waits in the host's sockets; the first call is one that all ranks make."""
    world = dist.group.WORLD
    assert world is not None, "ranks have a group once they are initialized"
    if dist.get_backend(world) == "gloo":
        return world
    if world not in _SOCKETS:
        _SOCKETS[world] = dist.new_group(backend="gloo", timeout=PATIENCE)
    return _SOCKETS[world]
