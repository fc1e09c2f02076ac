"""The processes of a rehearsal: started as a person starts them, killed, started again, and none left in the end."""

import logging
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from arpo.errors import ArpoError
from arpo.host.processes import count_processes, end_processes
from arpo.host.ray import OBJECT_STORE_BYTES, patiently, settle_environment
from arpo.host.session import Session

log = logging.getLogger(__name__)

PROGRAM = Path(__file__).parents[3] / "train.py"
LABEL = "ARPO_REHEARSAL"
"""The variable that marks every process of a rehearsal."""
PATIENCE_S = 900.0
"""The time that a rehearsal waits for an iteration, or for the end."""
GRACE_S = 10.0
"""The time that processes have to end after the run that they belonged to."""
NOT_INHERITED = ("ARPO_SESSION", "RAY_", "SLURM_", "CUDA_", "VLLM_")
"""Beginnings of variables that would lead a rehearsal to another session, another cluster or a GPU."""
ERROR = re.compile(r"^\d\d:\d\d:\d\d ERROR +(.*?)(?=^\d\d:\d\d:\d\d [A-Z]|\Z)", re.MULTILINE | re.DOTALL)
"""An error of ours in a log, to the next line of the log."""
EXCEPTION = re.compile(r"^[\w.]*(?:Error|Exception): .+$", re.MULTILINE)
"""The line of a traceback with the exception; Hydra writes more below it."""


class RehearsalError(ArpoError):
    """A rehearsal that went wrong; the message is what the real run would say."""


class RunHarness:
    """A place for runs of `train.py`: on one machine, or on several nodes that this machine plays.

    Args:
        folder: Where the output of the processes goes.
        nodes: With several, each has a launcher with the variables that `torchrun` would set.
        environment: Of every process.
    """

    def __init__(self, folder: Path, nodes: int, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._nodes = nodes
        self._environment = environment
        self._launchers: list[subprocess.Popen[bytes]] = []

    def start(self, composition: Path, *overrides: str) -> None:
        """Start `train.py` with a composition, on every node."""
        where = [f"--config-path={composition.parent}", f"--config-name={composition.stem}"]
        command = [sys.executable, str(PROGRAM), *where, *overrides]  # Lightning adds overrides of its own behind
        port = _free_port()
        self._launchers = []
        for node in range(self._nodes):
            with self.output(node).open("ab") as output:
                output.write(f"$ {' '.join(command)}\n".encode())
                output.flush()
                place = {} if self._nodes == 1 else _of_torchrun(node, self._nodes, port)
                launcher = subprocess.Popen(
                    command,
                    env={**self._environment, **place},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is ours to hand on
                )
            self._launchers.append(launcher)

    def wait_until(self, happened: Callable[[], bool], what: str) -> None:
        """Wait until something has happened."""
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            codes = [launcher.poll() for launcher in self._launchers]
            failed = [node for node, code in enumerate(codes) if code]
            if failed or (None not in codes and not happened()):
                node = failed[0] if failed else 0
                raise RehearsalError(
                    self._last_words(node, f"the run ended with exit status {codes[node]} before {what}")
                )
            if time.monotonic() > deadline:
                said = f"see {self.output(0)}"
                raise RehearsalError(f"the run did not come to {what} within {PATIENCE_S:.0f} s: {said}")
            time.sleep(0.05)

    def wait(self) -> None:
        """Wait until all launchers have ended well."""
        self.wait_until(lambda: all(launcher.poll() == 0 for launcher in self._launchers), "its end")

    def kill(self) -> None:
        """Kill the launchers, as `kill -9` does."""
        for launcher in self._launchers:
            launcher.kill()
            launcher.wait()

    def _last_words(self, node: int, otherwise: str) -> str:
        """Return the error that a launcher ended with."""
        said = self.output(node).read_text(errors="replace", encoding="utf-8").rpartition("\n$ ")[2]
        ours = ERROR.findall(said)
        if ours:
            return str(ours[-1]).strip()
        # The first one: other ranks then say that they have lost the one that failed.
        foreign = EXCEPTION.search(said)
        lines = [line for line in said.splitlines() if line.strip()] or ["nothing"]
        return f"{otherwise}; it said, in {self.output(node)}: {foreign[0] if foreign else lines[-1]}"

    def output(self, node: int) -> Path:
        """Return the file with what the processes of a node say."""
        return self._folder / f"node_{node}.log"


@contextmanager
def harnessed(folder: Path, nodes: int, desktops: int) -> Iterator[RunHarness]:
    """Yield a harness, and leave nothing running or lying about after the block.

    Args:
        folder: Where the output of the processes goes.
        nodes: Played by this machine; several of them are a cluster of Ray.
        desktops: Room for them on each node of a cluster.
    """
    label = secrets.token_hex(8)
    temporary = Path("/tmp") / secrets.token_hex(3)  # short, because the sockets of Ray lie in it
    temporary.mkdir(mode=0o700)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(NOT_INHERITED)}
    environment |= {LABEL: label, "TMPDIR": str(temporary), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    try:
        with ExitStack() as stack:
            if nodes > 1:
                stack.enter_context(Session.start(temporary))
                rooms = [{f"docker:10.0.0.{node + 1}": float(desktops)} for node in range(nodes)]
                environment["RAY_ADDRESS"] = stack.enter_context(ray_nodes(rooms))
                environment |= {name: os.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
            yield RunHarness(folder, nodes, environment)
        _check_empty(label, temporary)
    finally:
        end_processes(label, temporary, LABEL)
        shutil.rmtree(temporary, ignore_errors=True)


def _check_empty(label: str, temporary: Path) -> None:
    """Check that a run that came to its end has ended all that it started."""
    deadline = time.monotonic() + GRACE_S
    while (left := count_processes(label, temporary, LABEL)) and time.monotonic() < deadline:
        time.sleep(0.2)
    if left:
        raise RehearsalError(f"the run came to its end and left {left} processes running")


def _of_torchrun(node: int, nodes: int, port: int) -> dict[str, str]:
    """Return what `torchrun` tells the one process of a node."""
    return {
        "RANK": str(node),
        "LOCAL_RANK": "0",
        "GROUP_RANK": str(node),
        "WORLD_SIZE": str(nodes),
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "rehearsal",
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def ray_nodes(resources: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Start a Ray cluster and yield its address; its processes end with the block.

    Its files lie in `TMPDIR`, which a session makes short, because sockets are among them. A process that joins needs
    this one's `RAY_AUTH_MODE` and `RAY_AUTH_TOKEN`.

    Args:
        resources: Of each node, such as `docker:10.0.0.1`; the first one is the head.
    """
    from ray._raylet import Config  # type: ignore[attr-defined]  # a compiled module, whose names nobody declares
    from ray.cluster_utils import Cluster

    settle_environment()
    os.environ.setdefault("RAY_AUTH_MODE", "token")  # as a Ray of one node does; nobody without the token may join
    Config.initialize("")  # Ray has read its settings when it was imported
    head, *others = [
        {"num_cpus": 0, "num_gpus": 0, "resources": dict(room), "object_store_memory": OBJECT_STORE_BYTES}
        for room in resources
    ]
    cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args={**head, "include_dashboard": False}))
    try:
        for other in others:
            patiently(partial(cluster.add_node, **other))
        yield cluster.address
    finally:
        cluster.shutdown()
