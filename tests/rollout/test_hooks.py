"""The way from a trainer to its rollouts, what ranks hear of rank 0, and how they wait for it."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest

from arpo.errors import ConfigError
from arpo.rollout import hooks
from arpo.rollout.hooks import runtime_of
from tests.rollout.words import ERROR, RANKS


class RollingOut(L.LightningDataModule):
    """A data module whose runtime is a string."""

    runtime = "the engine and the environments"


def test_a_data_module_that_rolls_out_has_the_runtime():
    assert runtime_of(SimpleNamespace(datamodule=RollingOut())) == RollingOut.runtime


def test_a_callback_of_rollouts_beside_other_data_says_so():
    with pytest.raises(ConfigError, match="needs a data module that rolls out, got LightningDataModule"):
        runtime_of(SimpleNamespace(datamodule=L.LightningDataModule()))


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each rank saw, by case."""
    out = tmp_path_factory.mktemp("words")
    subprocess.run([sys.executable, "-m", "tests.rollout.words", out], cwd=ROOT, check=True, timeout=240)
    ranks = dict.fromkeys(("gloo", "nccl", "start", "failure"), RANKS) | {"one": 1}
    return {
        case: [json.loads((out / f"{case}-{rank}.json").read_text()) for rank in range(count)]
        for case, count in ranks.items()
    }


@pytest.mark.parametrize("case", ["gloo", "nccl"])
def test_every_rank_hears_rank_0_and_gets_its_own_parcel(seen, case: str):
    for rank, parcel in enumerate((["first"], ["second"])):
        assert seen[case][rank]["told"] == [{"from": 0, "number": 0}, {"from": 0, "number": 1}]
        assert seen[case][rank]["dealt"] == parcel


def test_where_ranks_have_gpus_words_go_through_sockets(seen):
    for rank in seen["nccl"]:
        assert rank["made"] == [["gloo", hooks.PATIENCE.total_seconds()]]  # one, for all words
        assert rank["through the default group"] == [False] * 3


def test_where_they_have_none_no_second_group_is_made(seen):
    for rank in seen["gloo"]:
        assert rank["made"] == []
        assert rank["through the default group"] == [True] * 3


def test_no_rank_goes_on_to_its_weights_before_the_engine_has_measured_its_gpu(seen):
    started = seen["start"][0]["started"]  # by the machine's clock, which processes share
    assert [rank["error"] for rank in seen["start"]] == [None] * RANKS
    assert all(rank["went on"] >= started for rank in seen["start"])


def test_an_engine_that_does_not_start_ends_every_rank(seen):
    assert [rank["error"] for rank in seen["failure"]] == [ERROR] * RANKS


def test_a_rank_without_others_is_alone(seen):
    assert seen["one"] == [{"alone": True}]


def test_one_process_without_ranks_hears_itself():
    assert hooks.is_single_process()
    assert hooks.broadcast("this") == "this"
