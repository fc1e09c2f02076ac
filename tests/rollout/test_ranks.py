"""What ranks tell each other, in processes of their own."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from arpo.errors import ArpoError
from arpo.rollout import hooks
from arpo.rollout.hooks import start_on_rank_zero
from tests.invariant.ranks import on_ranks

START_S = 1.0


def join(backend: str) -> int:
    """Join the group of two ranks, of which torch then says that it has this backend; return one's number."""
    rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo", rank=rank, world_size=2)
    asked = dist.get_backend
    dist.get_backend = lambda group=None: backend if group is dist.group.WORLD else asked(group)
    return rank


def keep(found: object, rank: int, out: Path) -> None:
    (out / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def found_by(ranks_: int, out: Path) -> list[object]:
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks_)]


def talk(backend: str, out: Path) -> None:
    rank = join(backend)
    groups: list[dict] = []
    make = dist.new_group
    dist.new_group = lambda **options: (groups.append(options), make(**options))[1]
    told = [hooks.tell({"from": rank, "number": number}) for number in range(2)]
    dealt = hooks.deal([["first"], ["second"]] if rank == 0 else None)
    keep([told, dealt, [group["backend"] for group in groups]], rank, out)


@pytest.mark.parametrize(("backend", "made"), [("gloo", []), ("nccl", ["gloo"])])
def test_ranks_hear_rank_0_through_sockets_whatever_their_gradients_take(
    backend: str, made: list[str], tmp_path: Path
):
    on_ranks(2, talk, backend, tmp_path)
    told = [{"from": 0, "number": 0}, {"from": 0, "number": 1}]
    assert found_by(2, tmp_path) == [[told, ["first"], made], [told, ["second"], made]]


def test_one_process_without_ranks_hears_itself():
    assert hooks.alone()
    assert hooks.tell("this") == "this"


def begin(error: str | None, out: Path) -> None:
    rank = join("gloo")

    def start() -> None:
        assert rank == 0
        time.sleep(START_S)
        if error is not None:
            raise ArpoError(error)

    began = time.monotonic()
    try:
        start_on_rank_zero(SimpleNamespace(is_global_zero=rank == 0), SimpleNamespace(start=start))
    except ArpoError as raised:
        keep(str(raised), rank, out)
    else:
        keep(time.monotonic() - began, rank, out)


def test_no_rank_goes_on_to_its_weights_before_the_engine_has_measured_its_gpu(tmp_path: Path):
    on_ranks(2, begin, None, tmp_path)
    assert all(seconds >= START_S - 0.5 for seconds in found_by(2, tmp_path))  # less what the later one came late


def test_an_engine_that_does_not_start_ends_every_rank(tmp_path: Path):
    on_ranks(2, begin, "no room for the engine", tmp_path)
    assert found_by(2, tmp_path) == ["no room for the engine"] * 2
