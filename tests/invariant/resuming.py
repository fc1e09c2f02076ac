"""Sharded runs that stop and go on: `python -m tests.invariant.resuming MODEL BATCHES DIRECTORY HOW`."""

import os
import pickle
import resource
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import lightning as L
import pytest
import torch
from torch.multiprocessing import ProcessExitedException

from arpo.callbacks.checkpoint import IterationCheckpoint, newest_checkpoint
from arpo.modules.offload import OffloadedAdamW
from arpo.modules.strategy import ShardedStrategy
from arpo.types import RolloutBatch
from tests.invariant.ranks import on_ranks, train


class WithoutMoments(ShardedStrategy):
    """Forgets the optimizer's moments in every checkpoint that it loads."""

    def load_checkpoint(self, checkpoint_path, weights_only=None):
        rest = super().load_checkpoint(checkpoint_path, weights_only)
        for state in self.optimizers[0].state.values():
            state["exp_avg"].zero_()
            state["exp_avg_sq"].zero_()
        return rest


class DieInCheckpoint(L.Callback):
    """Lets the kernel end rank 0 with the byte of its shards that is one too many; its parent ends the others."""

    def on_save_checkpoint(self, trainer, pl_module, checkpoint) -> None:
        if trainer.global_rank == 0:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))


def run(  # noqa: PLR0917 - one argument a difference
    model: str,
    batches: list[RolloutBatch],
    folder: Path,
    ranks: int,
    resume: Path | None,
    case: str = "arpo",
    extra: Sequence[L.Callback] = (),
    strategy: type[ShardedStrategy] = ShardedStrategy,
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW,
) -> None:
    """Train on so many ranks, with a checkpoint after every iteration."""
    saving = IterationCheckpoint(folder, every_n_iterations=1, keep=9)
    train(
        model,
        batches,
        str(folder),
        "fsdp",
        ranks,
        case,
        resume=resume,
        extra=[*extra, saving],
        how=lambda way: strategy(timedelta(seconds=60)),
        optimizer=optimizer,
    )


def go_on_alike(model: str, loaded: list[RolloutBatch], at: Path) -> None:
    """Train, go on from the second iteration, and go on from it after a kill in the checkpoint of the third."""
    loaded = loaded[:5]
    alone = at / "alone"
    second = alone / "iteration_000002.ckpt"
    on_ranks(2, run, model, loaded, alone, 2, None)
    on_ranks(2, run, model, loaded, at / "again", 2, second)
    with pytest.raises(ProcessExitedException, match="SIGXFSZ"):
        on_ranks(2, run, model, loaded[:3], at / "killed", 2, second, "arpo", (DieInCheckpoint(),))
    os.symlink(second, at / "killed" / second.name)
    (at / "left").write_text("\n".join(path.name for path in (at / "killed").iterdir()))
    found = newest_checkpoint(at / "killed")
    on_ranks(2, run, model, loaded, at / "killed", 2, found)


def go_on_otherwise(model: str, everything: list[RolloutBatch], at: Path) -> None:
    """Go on from the second iteration with moments elsewhere or nowhere, on more and fewer ranks, and from nothing."""
    loaded, (nothing, something) = everything[:5], everything[5:]
    second = at / "alone" / "iteration_000002.ckpt"
    on_ranks(2, run, model, loaded, at / "forgot", 2, second, "arpo", (), WithoutMoments)
    offloaded = at / "offloaded"
    on_ranks(2, run, model, loaded[:4], offloaded, 2, second, "arpo", (), ShardedStrategy, OffloadedAdamW)
    on_ranks(2, run, model, loaded, at / "from host", 2, offloaded / "iteration_000004.ckpt")
    on_ranks(4, run, model, loaded[:4], at / "four", 4, second)
    on_ranks(1, run, model, loaded, at / "one", 1, at / "four" / "iteration_000004.ckpt")
    on_ranks(2, run, model, [nothing, something], at / "idle", 2, None, "scarce")
    begun = at / "idle" / "iteration_000001.ckpt"
    on_ranks(2, run, model, [nothing, something], at / "idle again", 2, begun, "scarce")


def main(model: str, batches: str, directory: str, how: str) -> None:
    torch.set_num_threads(1)
    loaded: list[RolloutBatch] = pickle.loads(Path(batches).read_bytes())
    (go_on_alike if how == "alike" else go_on_otherwise)(model, loaded, Path(directory))


if __name__ == "__main__":
    main(*sys.argv[1:])
