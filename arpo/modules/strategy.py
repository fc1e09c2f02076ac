"""Training with weights, gradients and optimizer states in shards: Lightning's FSDP2 strategy, set up for us."""

import json
import os
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer
from typing_extensions import override

from arpo.errors import CheckpointError
from arpo.host.files import PARTIAL, atomically
from arpo.models.policy import trained_names

REST = "rest.pt"
"""The file with all that is not cut into shards: loops, callbacks, schedules, the optimizer's settings."""
CHECKSUMS = "checksums.json"
CHUNK_BYTES = 2**24


class ShardedStrategy(ModelParallelStrategy):
    """One process a device, each with an equal part of everything that is trained.

    A checkpoint is a folder: torch's distributed checkpoint of the trained weights and of the optimizer's state, by
    the parameters' names, which any number of ranks can read; and one file with the rest. Frozen weights stay out. A
    rank waits for the others for `timeout`, as they do while rank 0 rolls out.
    """

    def __init__(self, timeout: timedelta) -> None:
        super().__init__(data_parallel_size="auto", tensor_parallel_size=1, timeout=timeout)

    @override
    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes  # Lightning's "auto" is the number of nodes
        super().setup_environment()

    @override
    def lightning_module_state_dict(self) -> dict[str, Any]:
        assert self.model is not None
        trained = trained_names(self.model)
        # torch leaves a frozen weight out under one of its names alone.
        state = get_model_state_dict(self.model, options=StateDictOptions(ignore_frozen_params=True))
        return {name: value for name, value in state.items() if name in trained}

    @override
    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        assert self.model is not None
        inner = optimizer._optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        if not inner.state:  # torch would take a step to have one
            return {}
        return dict(get_optimizer_state_dict(self.model, inner))

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any | None = None
    ) -> None:
        (optimizer,) = checkpoint.pop("optimizer_states")
        shards = {"weights": checkpoint.pop("state_dict"), "optimizer": optimizer.get("state", {})}
        checkpoint["param_groups"] = optimizer.get("param_groups")
        final = Path(self.broadcast(filepath))
        try:
            partial = nullcontext(final.with_name(final.name + PARTIAL))
            with atomically(final, sync=True) if self.is_global_zero else partial as folder:
                if self.is_global_zero:
                    folder.mkdir()
                self.barrier()  # rank 0 has removed what a killed writer left, too
                self._check_shared(folder)
                save(shards, checkpoint_id=folder)
                self._add_rest(checkpoint, folder)
        except (OSError, RuntimeError, CheckpointException) as error:
            raise CheckpointError(
                f"cannot write checkpoint {final}: {error}; earlier checkpoints are untouched: free space, "
                "then continue with resume=auto"
            ) from error
        self.barrier()

    def _check_shared(self, folder: Path) -> None:
        """Check that every rank sees the folder that rank 0 has made."""
        if not self.reduce_boolean_decision(folder.is_dir()):
            raise CheckpointError(
                f"not every rank sees {folder.parent}, so shards of the checkpoint would be lost: put the run's "
                "folder on a file system that all nodes share (hydra.run.dir)"
            )

    def _add_rest(self, rest: dict[str, Any], folder: Path) -> None:
        """Write what is not in shards, then the checksums, which every rank computes of its own shards."""
        own = {path.name: checksum(path) for path in folder.glob(f"__{self.global_rank}_*.distcp")}
        sums: list[dict[str, str]] = [{} for _ in range(self.world_size)]
        dist.all_gather_object(sums, own)
        if self.is_global_zero:
            with (folder / REST).open("wb") as file:
                torch.save(rest, file)
                os.fsync(file.fileno())
            whole = {name: value for part in sums for name, value in part.items()}
            whole |= {name: checksum(folder / name) for name in (".metadata", REST)}
            with (folder / CHECKSUMS).open("w", encoding="utf-8") as file:
                json.dump(whole, file)
                file.flush()
                os.fsync(file.fileno())

    @override
    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        """Load the shards into model and optimizer, and return the rest."""
        assert self.model is not None
        folder = Path(self.broadcast(checkpoint_path))
        if not folder.is_dir():
            raise CheckpointError(f"{folder} is a file, written without trainer=fsdp: continue it as it was started")
        rest: dict[str, Any] = torch.load(folder / REST, map_location="cpu", weights_only=True)
        param_groups = rest.pop("param_groups")
        weights = self.lightning_module_state_dict()
        (optimizer,) = self.optimizers
        state = get_optimizer_state_dict(self.model, optimizer) if param_groups is not None else {"state": {}}
        try:
            load({"weights": weights, "optimizer": state["state"]}, checkpoint_id=folder)
        except (RuntimeError, CheckpointException) as error:
            raise CheckpointError(f"{folder} is not of this model and optimizer: {error}") from error
        self.model.load_state_dict(weights, strict=False)  # frozen ones are not in it
        if param_groups is not None:
            set_optimizer_state_dict(self.model, optimizer, {"state": state["state"], "param_groups": param_groups})
        return rest | {"state_dict": {}}


def checksum(path: Path) -> str:
    """Return the CRC-32 of a file of any size."""
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            value = crc32(chunk, value)
    return f"{value:08x}"


def is_whole(folder: Path) -> bool:
    """Return whether every byte of a checkpoint's folder is as it was written."""
    try:
        sums = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        return all(checksum(folder / name) == value for name, value in sums.items())
    except (OSError, ValueError):
        return False
