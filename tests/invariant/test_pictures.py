"""Ranks that hold a frozen vision tower in shards enter it equally often, whatever each has to see."""

import json
from dataclasses import replace
from pathlib import Path

import lightning as L
import pytest

from arpo.types import Group, RolloutBatch, Task, Trajectory
from tests.invariant.ranks import on_ranks, train
from tests.invariant.running import run_alone
from tests.models import samples
from tests.modules.conftest import sampled_logprobs


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
        for trajectory in self.probe:
            sampled_logprobs(pl_module, trajectory)
        self.seen.append(update | {"probe": self.forwards})

    def on_train_end(self, trainer, pl_module) -> None:
        Path(f"{self.out}.{trainer.global_rank}").write_text(json.dumps(self.seen))


def learn(model: str, batches: list[RolloutBatch], out: str) -> None:
    """Train as one of two ranks, each with half of the weights."""
    probe = list(batches[0].groups[0].trajectories)
    train(model, batches, out, "fsdp", 2, "lora", extra=[Forwards(probe, out)])


def group(chat, *episodes: tuple[tuple[int, ...], float]) -> Group:
    """A group of these screenshots and rewards."""
    trajectories = (replace(samples.trajectory(chat, seeds), task_reward=reward) for seeds, reward in episodes)
    return Group(Task("t", "Click."), tuple(trajectories))


@pytest.mark.slow
@pytest.mark.long
def test_two_ranks_enter_a_frozen_tower_together_whatever_each_has_to_see(loaded_policy, tiny_model, tmp_path):
    chat = loaded_policy.chat
    batches = [
        # Ten screenshots of 20 tokens are two forwards of at most 160; one screenshot is one.
        RolloutBatch(0, 0, [group(chat, (tuple(range(10)), 1.0), ((10,), 0.0))]),
        RolloutBatch(1, 1, [group(chat, ((11, 12), 1.0))]),  # one sample: the other rank has a filler
    ]
    run_alone(on_ranks, 2, learn, tiny_model, batches, tmp_path / "out")
    ranks = [json.loads((tmp_path / f"out.{rank}").read_text()) for rank in range(2)]
    assert [[each["update"] for each in rank] for rank in ranks] == [[2, 1]] * 2
    assert sorted(rank[0]["pictures"] for rank in ranks) == [2, 10]  # the one screenshot is seen twice
    assert [[each["probe"] for each in rank] for rank in ranks] == [[2, 2]] * 2
