"""Ranks that hold a frozen vision tower in shards enter it equally often, whatever each has to see."""

import json
import pickle
from dataclasses import replace

import pytest

from arpo.types import Group, RolloutBatch, Task
from tests.invariant.running import run_module
from tests.models import samples


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
    (tmp_path / "batches").write_bytes(pickle.dumps(batches))
    run_module("pictures", tiny_model, tmp_path / "batches", tmp_path / "out")
    ranks = [json.loads((tmp_path / f"out.{rank}").read_text()) for rank in range(2)]
    assert [[each["update"] for each in rank] for rank in ranks] == [[2, 1]] * 2
    assert sorted(rank[0]["pictures"] for rank in ranks) == [2, 10]  # the one screenshot is seen twice
    assert [[each["probe"] for each in rank] for rank in ranks] == [[2, 2]] * 2
