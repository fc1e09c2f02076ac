"""Ranks as processes that are forked from this one; it imports little, for those that train nothing."""

import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from torch.multiprocessing import start_processes


def on_ranks(ranks: int, work: Callable[..., None], *arguments: Any) -> None:
    """Run `work` in so many processes, which Lightning takes for started from outside."""
    environment = {}
    if ranks > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    start_processes(_rank, (environment, work, arguments), ranks, start_method="fork")


def _rank(rank: int, environment: dict[str, str], work: Callable[..., None], arguments: Sequence[Any]) -> None:
    os.environ |= environment | ({"LOCAL_RANK": str(rank)} if environment else {})
    work(*arguments)
