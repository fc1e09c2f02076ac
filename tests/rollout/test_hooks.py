"""The way from a trainer to its rollouts, what ranks hear of rank 0, and how they wait for it."""

import json
import os
import time
from types import SimpleNamespace

import lightning as L
import pytest
import torch.distributed as dist

from arpo.errors import ArpoError, ConfigError
from arpo.rollout import hooks
from arpo.rollout.hooks import runtime_of
from tests.invariant.processes import on_ranks

RANKS = 2
ERROR = "no room for the engine"
CASES = {"gloo": RANKS, "nccl": RANKS, "start": RANKS, "failure": RANKS, "one": 1}


def test_a_data_module_that_rolls_out_has_the_runtime_and_others_are_refused():
    data = L.LightningDataModule()
    with pytest.raises(ConfigError, match="needs a data module that rolls out, got LightningDataModule"):
        runtime_of(SimpleNamespace(datamodule=data))
    data.runtime = "the engine and the environments"
    assert runtime_of(SimpleNamespace(datamodule=data)) == data.runtime


@pytest.fixture(scope="module")
def seen(tmp_path_factory, forks):
    """What each rank saw, by case."""
    out = tmp_path_factory.mktemp("ranks")
    forks.call(see_each_case, out)
    return {
        case: [json.loads((out / f"{case}-{rank}.json").read_text()) for rank in range(count)]
        for case, count in CASES.items()
    }


@pytest.mark.parametrize("case", ["gloo", "nccl"])
def test_every_rank_hears_rank_0_and_gets_its_own_parcel_through_sockets(seen, case):
    for rank, parcel in enumerate((["first"], ["second"])):
        assert seen[case][rank]["heard"] == [{"from": 0, "number": 0}, {"from": 0, "number": 1}]
        assert seen[case][rank]["dealt"] == parcel
        made = [["gloo", hooks.PATIENCE.total_seconds()]]  # one for all, where the default group is of GPUs
        assert seen[case][rank]["made"] == (made if case == "nccl" else [])
        assert seen[case][rank]["through the default group"] == [case == "gloo"] * 3


def test_no_rank_goes_on_to_its_weights_before_the_engine_has_measured_its_gpu(seen):
    started = seen["start"][0]["started"]  # by the machine's clock, which processes share
    assert [rank["error"] for rank in seen["start"]] == [None] * RANKS
    assert all(rank["went on"] >= started for rank in seen["start"])


def test_an_engine_that_does_not_start_ends_every_rank(seen):
    assert [rank["error"] for rank in seen["failure"]] == [ERROR] * RANKS


def test_a_process_without_other_ranks_is_alone_and_hears_itself(seen):
    assert seen["one"] == [{"alone": True}]
    assert hooks.is_single_process()
    assert hooks.broadcast("this") == "this"


# --- in the ranks


def join():
    rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    return rank


def talk(backend, out):
    """Broadcast and scatter, in a group of which torch says that it has this backend."""
    rank = join()
    asked, make = dist.get_backend, dist.new_group
    groups, through = [], []

    def watched(send):
        def sent(*arguments, group, **options):
            through.append(group is dist.group.WORLD)
            return send(*arguments, group=group, **options)

        return sent

    dist.get_backend = lambda group=None: backend if group is dist.group.WORLD else asked(group)
    dist.new_group = lambda **options: (groups.append(options), make(**options))[1]
    dist.broadcast_object_list = watched(dist.broadcast_object_list)
    dist.scatter_object_list = watched(dist.scatter_object_list)
    heard = [hooks.broadcast({"from": rank, "number": number}) for number in range(2)]
    dealt = hooks.scatter_object([["first"], ["second"]] if rank == 0 else None)
    made = [[group["backend"], group["timeout"].total_seconds()] for group in groups]
    keep({"heard": heard, "dealt": dealt, "made": made, "through the default group": through}, rank, out)


def begin(error, out):
    """Start what takes a while on rank 0, or fails after it."""
    rank = join()
    saw = {"started": None, "error": None}

    def start():
        assert rank == 0
        time.sleep(1.0)
        saw["started"] = time.monotonic()
        if error is not None:
            raise ArpoError(error)

    try:
        hooks.start_on_rank_zero(SimpleNamespace(is_global_zero=rank == 0), SimpleNamespace(start=start))
    except ArpoError as raised:
        saw["error"] = str(raised)
    keep(saw | {"went on": time.monotonic()}, rank, out)


def keep(saw, rank, out):
    out.with_name(f"{out.name}-{rank}.json").write_text(json.dumps(saw))
    dist.destroy_process_group()


def see_each_case(directory):
    """Write what each of two ranks sees, case by case."""
    works = {"gloo": (talk, "gloo"), "nccl": (talk, "nccl"), "start": (begin, None), "failure": (begin, ERROR)}
    for name, (work, what) in works.items():
        on_ranks(RANKS, work, what, directory / name)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # as vLLM does in its process
    keep({"alone": hooks.is_single_process()}, 0, directory / "one")
