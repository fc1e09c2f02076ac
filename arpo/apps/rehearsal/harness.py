"""The processes of a rehearsal, started, killed and started again as by a person, and the traces that they leave."""

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

from arpo.callbacks.checkpoint import checkpoints, is_valid, iteration_of
from arpo.errors import ArpoError
from arpo.evaluation.run_folder import Record, read_metrics
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
"""An error of ours in a log, up to the next entry."""
EXCEPTION = re.compile(r"^[\w.]*(?:Error|Exception): .+$", re.MULTILINE)
"""The line of a traceback with the exception; Hydra writes more below it."""


class RehearsalError(ArpoError):
    """A rehearsal that went wrong; the message is that of the real run."""


class RunHarness:
    """A place for runs of `train.py`, on one machine or on several nodes that it plays."""

    def __init__(self, folder: Path, nodes: int, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._nodes = nodes
        self._environment = environment
        self._launchers: list[subprocess.Popen[bytes]] = []

    def start(self, composition: Path, *overrides: str) -> None:
        """Start `train.py` with a composition, on every node."""
        where = [f"--config-path={composition.parent}", f"--config-name={composition.stem}"]
        command = [sys.executable, str(PROGRAM), *where, *overrides]  # Lightning adds overrides of its own behind
        with socket.socket() as listener:  # a free port
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        self._launchers = []
        for node in range(self._nodes):
            with self.output(node).open("ab") as output:
                output.write(f"$ {' '.join(command)}\n".encode())
                output.flush()
                place = {
                    "RANK": str(node),
                    "LOCAL_RANK": "0",
                    "GROUP_RANK": str(node),
                    "WORLD_SIZE": str(self._nodes),
                    "LOCAL_WORLD_SIZE": "1",
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "TORCHELASTIC_RUN_ID": "rehearsal",
                }
                launcher = subprocess.Popen(
                    command,
                    env={**self._environment, **(place if self._nodes > 1 else {})},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is ours to hand on
                )
            self._launchers.append(launcher)

    def wait_until(self, happened: Callable[[], bool], what: str) -> None:
        """Wait for an event; `what` names it in errors."""
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            codes = [launcher.poll() for launcher in self._launchers]
            failed = [node for node, code in enumerate(codes) if code]
            if failed or (None not in codes and not happened()):
                node = failed[0] if failed else 0
                raise RehearsalError(
                    self._last_error(node, f"the run ended with exit status {codes[node]} before {what}")
                )
            if time.monotonic() > deadline:
                raise RehearsalError(f"the run did not come to {what} within {PATIENCE_S:.0f} s: see {self.output(0)}")
            time.sleep(0.05)

    def wait(self) -> None:
        """Wait until all launchers have ended well."""
        self.wait_until(lambda: all(launcher.poll() == 0 for launcher in self._launchers), "its end")

    def kill(self) -> None:
        """Kill the launchers, as `kill -9` does."""
        for launcher in self._launchers:
            launcher.kill()
            launcher.wait()

    def _last_error(self, node: int, otherwise: str) -> str:
        """Return the error that a launcher ended with."""
        output = self.output(node).read_text(errors="replace", encoding="utf-8").rpartition("\n$ ")[2]
        ours = ERROR.findall(output)
        if ours:
            return str(ours[-1]).strip()
        # The first one: other ranks then report that they have lost the one that failed.
        foreign = EXCEPTION.search(output)
        lines = [line for line in output.splitlines() if line.strip()] or ["nothing"]
        return f"{otherwise}; {self.output(node)} has: {foreign[0] if foreign else lines[-1]}"

    def output(self, node: int) -> Path:
        """Return the file with the output of the processes of a node."""
        return self._folder / f"node_{node}.log"


@contextmanager
def harnessed(folder: Path, nodes: int, desktops: int) -> Iterator[RunHarness]:
    """Yield a harness, and leave nothing running or lying about afterwards; several nodes are a cluster of Ray."""
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
        deadline = time.monotonic() + GRACE_S
        while (left := count_processes(label, temporary, LABEL)) and time.monotonic() < deadline:
            time.sleep(0.2)
        if left:
            raise RehearsalError(f"the run came to its end and left {left} processes running")
    finally:
        end_processes(label, temporary, LABEL)
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def ray_nodes(resources: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Start a Ray cluster of nodes with some resources, the head first, and yield its address.

    Its processes end with the block. A process that joins needs this one's `RAY_AUTH_MODE` and `RAY_AUTH_TOKEN`.
    """
    from ray._raylet import Config  # type: ignore[attr-defined]  # a compiled module, whose names are not declared
    from ray.cluster_utils import Cluster

    settle_environment()
    os.environ.setdefault("RAY_AUTH_MODE", "token")  # as a Ray of one node does: to join takes the token
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


GAP = "engine/logprob_gap_mean"
COUNTS = ("rollout/episodes", "rollout/env_steps", "replay/injected")


def iterations_of(run_dir: Path) -> list[Record]:
    """Return the metrics of every iteration that a run has completed."""
    return [line for line in read_metrics(run_dir)[0] if line["step"] > 0]


def checkpoint_to_resume_from(run_dir: Path) -> Path:
    """Return the newest checkpoint of a run that was killed."""
    found = [path for path in checkpoints(run_dir / "checkpoints") if is_valid(path)]
    if not found:
        raise RehearsalError(
            f"the run was killed after {len(iterations_of(run_dir))} iterations and has no checkpoint to go on from: "
            "put callbacks.checkpoint back"
        )
    return found[-1]


def check_end(run_dir: Path, iterations: int) -> None:
    """Check the folder of a run that was killed and came to its end, after some iterations, in a second start."""
    lines = iterations_of(run_dir)
    steps = [line["step"] for line in lines]
    wrong = []
    if steps != list(range(1, iterations + 1)):
        counted = ", ".join(map(str, steps)) or "none"
        wrong.append(f"metrics.jsonl must have each of {iterations} iterations once, and has {counted}")
    if not any("train/grad_norm" in line for line in lines):
        wrong.append("no iteration took an optimizer step")
    written = checkpoints(run_dir / "checkpoints")
    wrong += [f"checkpoint {path} is damaged" for path in written if not is_valid(path)]
    if not written or iteration_of(written[-1]) != iterations:
        wrong.append(f"the newest checkpoint is {written[-1].name if written else 'none'}, not of the last iteration")
    if wrong:
        raise RehearsalError("; ".join(wrong))


def summary(run_dir: Path) -> str:
    """Return the counts of a run in one sentence."""
    lines = iterations_of(run_dir)
    episodes, steps, replayed = (int(sum(line.get(name) or 0 for line in lines)) for name in COUNTS)
    gaps = [line[GAP] for line in lines if line.get(GAP) is not None]
    gap = f"a gap of {max(gaps):.2g} at most" if gaps else "no gap known"
    return f"{len(lines)} iterations, {episodes} episodes of {steps} steps, {replayed} replayed, {gap}"
