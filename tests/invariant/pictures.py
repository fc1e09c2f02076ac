"""A frozen vision tower in shards counts its forwards: `python -m tests.invariant.pictures MODEL BATCHES OUT`."""

import json
import pickle
import sys
from pathlib import Path

import lightning as L
import torch

from arpo.types import RolloutBatch, Trajectory
from tests.invariant.ranks import on_ranks, train


class Forwards(L.Callback):
    """Writes how many forwards of the tower each update took, for how many screenshots, and then each probe."""

    def __init__(self, probe: list[Trajectory], out: str) -> None:
        self.probe, self.out = probe, out
        self.forwards = 0
        self.seen: list[dict[str, int]] = []

    def on_train_start(self, trainer, pl_module) -> None:
        policy = pl_module.policy
        policy.vision.blocks[0].register_forward_hook(self.count)
        see = policy.visual_tokens
        policy.visual_tokens = lambda pictures: self.note(pictures) or see(pictures)

    def count(self, *_) -> None:
        self.forwards += 1

    def note(self, pictures) -> None:
        self.pictures += len(pictures)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        self.forwards = self.pictures = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        update = {"update": self.forwards, "pictures": self.pictures}
        self.forwards = 0
        pl_module.sampled_logprobs(self.probe)
        self.seen.append(update | {"probe": self.forwards})

    def on_train_end(self, trainer, pl_module) -> None:
        Path(f"{self.out}.{trainer.global_rank}").write_text(json.dumps(self.seen))


def main(model: str, batches: str, out: str) -> None:
    torch.set_num_threads(1)
    loaded: list[RolloutBatch] = pickle.loads(Path(batches).read_bytes())
    on_ranks(2, learn, model, loaded, out)


def learn(model: str, batches: list[RolloutBatch], out: str) -> None:
    """Train as one of two ranks, each with half of the weights."""
    probe = list(batches[0].groups[0].trajectories)
    train(model, batches, out, "fsdp", 2, "lora", extra=[Forwards(probe, out)])


if __name__ == "__main__":
    main(*sys.argv[1:])
