"""What ranks tell each other: `python -m tests.rollout.words OUT` writes what each of two ranks saw, case by case.

The processes are forked from this one, which has imported everything and computed nothing.
"""

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch.distributed as dist

from arpo.errors import ArpoError
from arpo.rollout import hooks
from tests.invariant.ranks import on_ranks

RANKS = 2
START_S = 1.0
ERROR = "no room for the engine"


def join() -> int:
    """Join the group of the ranks; return one's number."""
    rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    return rank


def talk(backend: str, out: Path) -> None:
    """Tell and deal, in a group of which torch says that it has this backend."""
    rank = join()
    asked, make = dist.get_backend, dist.new_group
    groups: list[dict] = []
    through: list[bool] = []

    def watched(send):
        def sent(*arguments, group, **options):
            through.append(group is dist.group.WORLD)
            return send(*arguments, group=group, **options)

        return sent

    dist.get_backend = lambda group=None: backend if group is dist.group.WORLD else asked(group)
    dist.new_group = lambda **options: (groups.append(options), make(**options))[1]
    dist.broadcast_object_list = watched(dist.broadcast_object_list)
    dist.scatter_object_list = watched(dist.scatter_object_list)
    told = [hooks.broadcast({"from": rank, "number": number}) for number in range(2)]
    dealt = hooks.scatter_object([["first"], ["second"]] if rank == 0 else None)
    made = [[group["backend"], group["timeout"].total_seconds()] for group in groups]
    keep({"told": told, "dealt": dealt, "made": made, "through the default group": through}, rank, out)


def begin(error: str | None, out: Path) -> None:
    """Start what takes a while on rank 0, or fails after it."""
    rank = join()
    seen: dict[str, object] = {"started": None, "error": None}

    def start() -> None:
        assert rank == 0
        time.sleep(START_S)
        seen["started"] = time.monotonic()
        if error is not None:
            raise ArpoError(error)

    try:
        hooks.start_on_rank_zero(SimpleNamespace(is_global_zero=rank == 0), SimpleNamespace(start=start))
    except ArpoError as raised:
        seen["error"] = str(raised)
    keep(seen | {"went on": time.monotonic()}, rank, out)


def keep(seen: object, rank: int, out: Path) -> None:
    """Write what a rank saw."""
    out.with_name(f"{out.name}-{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    for case, work, what in (
        ("gloo", talk, "gloo"),
        ("nccl", talk, "nccl"),
        ("start", begin, None),
        ("failure", begin, ERROR),
    ):
        on_ranks(RANKS, work, what, directory / case)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # as vLLM does in its process
    keep({"alone": hooks.is_single_process()}, 0, directory / "one")
