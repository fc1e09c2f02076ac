"""The Ray of this process: started for its first user, stopped after its last."""

import logging
import math
import os
import re
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

import arpo
from arpo.errors import ConfigError, EnvError, env_boundary
from arpo.host.environment import cluster_address
from arpo.host.log_lines import log_every
from arpo.host.processes import LABEL_VARIABLE, session_directory
from arpo.host.session import MAX_DIRECTORY_LENGTH
from arpo.host.threads import DaemonThread

MAX_CALLS_IN_FLIGHT = 1000
"""Calls that an actor works on at the same time; Ray holds back the others."""
OBJECT_STORE_BYTES = 200 * 2**20
"""Room for some hundred 1080p screenshots on their way; small ones never enter the store."""
WEIGHTS_BYTES = 160 * 2**30
"""Room for the policy's weights, which stay there for engines that follow or are started again: 15.2 GiB for a 7B in
bfloat16, 137 for a 72B. Ray writes to disk what exceeds the room."""
TOKEN = secrets.token_hex(32)
"""Of this process: Ray keeps its first one, and a job of a multirun forgets its variables."""
SHARED_MEMORY = Path("/dev/shm")
"""The place of the object store, where a machine has it."""
START_ATTEMPTS = 2
"""Ray gives its agents 15 s to say at which port they listen, which no setting changes (ray-project/ray issue 65983).
On a busy machine that may be too little, but then their files have been read once."""
START_PATIENCE_S = 120
"""How long Ray waits for its own servers, where a setting does change it; its defaults are 30 s."""

PASSED_ON = re.compile(r"(?:VLLM|NCCL|TORCH|TORCHINDUCTOR|TRITON)_\w+|CUBLAS_WORKSPACE_CONFIG|NVIDIA_TF32_OVERRIDE")
"""Variables that say how an engine computes. A worker of a Ray of our own inherits them; one of a cluster that was
joined has those of its node, which were set when that was started."""
OF_A_NODE = re.compile(r"_(?:IPS?|HOST|PORT|IFNAME|HCA|RANK|RANK_LOCAL|DIR|FILE|HOME|PATH|ROOT|KEY|TOKEN|SECRET)$")
"""Ends of the names of such variables that stay: addresses, interfaces, ranks and paths of this node, and secrets."""
QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}
JOIN_S = 30.0
"""How long a cluster may take to answer; Ray itself asks for minutes."""

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class RayRuntime:
    """The Ray of this process, started for its first user and stopped after its last.

    Ray is started in a thread of its own: the kernel kills Ray's processes when the thread that started them ends,
    which must not be that of an event loop; and outside the main thread Ray leaves the signal handlers alone.
    """

    def __init__(self) -> None:
        self.owned = False
        self._users = 0
        self._thread: DaemonThread | None = None
        self._starter: DaemonThread | None = None  # lives as long as the Ray that it has started
        self._lock = threading.Lock()

    def acquire(self) -> "Future[object]":
        """Start or join Ray; the future is done when it runs. Any thread may call it."""
        return self.submit(self._acquire)

    def release(self) -> "Future[object]":
        """Undo one `acquire`."""
        return self.submit(self._release)

    def wait_for_start(self) -> None:
        """Wait until no start of Ray is under way, so that vLLM does not start beside it.

        Both set environment variables while they start and read them in native code, which crashes before glibc 2.41.
        """
        with self._lock:
            under_way = None if self._thread is None else self._thread.submit(lambda: None)
        if under_way is not None:
            under_way.result()

    def submit(self, function: Callable[[], None]) -> "Future[object]":
        """Run a function in the thread that starts and stops Ray, after those before it."""
        # An engine and a pool of actors start side by side: two threads of Ray would both call `ray.init`.
        with self._lock:
            if self._thread is None:
                self._thread = DaemonThread("ray")
            return self._thread.submit(function)

    def _acquire(self) -> None:
        import ray

        if not ray.is_initialized():
            self._start()
        self._users += 1

    def _start(self) -> None:
        if address := cluster_address():
            try:
                self._starter = _started(QUIET, JOIN_S)
            except EnvError as error:
                raise EnvError("crash", f"joining the Ray cluster of RAY_ADDRESS={address}: {error}") from error
            return
        settle_environment()
        options = {
            "address": "local",  # or Ray looks for another cluster that runs here
            "num_cpus": 0,  # no worker processes in advance
            "object_store_memory": _object_store_bytes(),
            "include_dashboard": False,
            "_temp_dir": ray_directory(),
            **QUIET,
        }
        with log_every("starting Ray"):
            self._starter = patiently(lambda: _started(options))
        self.owned = True

    def _release(self) -> None:
        import ray

        self._users -= 1
        if self._users == 0 and self.owned:
            self.owned = False
            ray.shutdown()
            if self._starter is not None:
                self._starter.stop()


RAY = RayRuntime()


def patiently(start: Callable[[], _T]) -> _T:
    """Start Ray, and once more where a busy machine was too slow for it; an `EnvError` names the load."""
    began = time.monotonic()
    for left in reversed(range(START_ATTEMPTS)):
        try:
            with env_boundary("crash", "starting Ray"):
                return start()
        except EnvError as error:
            load, cores = os.getloadavg()[0], os.cpu_count()
            if not left:
                raise EnvError(
                    "crash",
                    f"Ray did not start in {START_ATTEMPTS} attempts and {time.monotonic() - began:.0f} s, at "
                    f"a load of {load:.1f} on {cores} cores; start again when less runs here. {error}",
                ) from error
            log.warning("trying to start Ray again, at a load of %.1f on %d cores: %s", load, cores, error)
    raise AssertionError("the last attempt returns or raises")


def _started(options: Mapping[str, Any], timeout_s: float | None = None) -> DaemonThread:
    """Start or join Ray, and return the thread that did: Ray's processes live as long as it."""
    import ray

    def init() -> None:
        # Ray's processes inherit it: a lost terminal, which asks all of them, is to end none before this one ends.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        with env_boundary("crash", "starting Ray"):
            ray.init(**options)

    thread = DaemonThread("ray-start")
    try:
        thread.submit(init).result(timeout_s)
    except FutureTimeoutError:  # the thread may still be in Ray, which cannot be shut down meanwhile
        raise EnvError("crash", f"starting Ray: no answer within {timeout_s:g} s") from None
    except BaseException:
        with suppress(Exception):  # of a Ray that is half there; what ended its start is raised
            ray.shutdown()
        thread.stop()
        raise
    return thread


def settle_environment() -> None:
    """Set, unless they are set, the variables that a Ray reads which this process starts."""
    os.environ.setdefault("RAY_AUTH_TOKEN", TOKEN)  # or Ray writes one into the home directory
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's workers are as nice as can be by default: on a busy machine a browser would starve.
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", str(START_PATIENCE_S))
    os.environ.setdefault("RAY_agent_register_timeout_ms", str(1000 * START_PATIENCE_S))


def worker_environment() -> dict[str, str]:
    """Return the environment variables that a worker process must have, wherever it starts.

    The rest is its node's: devices, paths, proxies, credentials. So is `PYTORCH_CUDA_ALLOC_CONF`, because vLLM's sleep
    fails with the expandable segments that a trainer may want.
    """
    package_parent = str(Path(arpo.__file__).resolve().parent.parent)
    python_path = os.pathsep.join(filter(None, (package_parent, os.environ.get("PYTHONPATH"))))
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    label = {LABEL_VARIABLE: os.environ[LABEL_VARIABLE]} if LABEL_VARIABLE in os.environ else {}
    passed_on = {k: v for k, v in os.environ.items() if PASSED_ON.fullmatch(k) and not OF_A_NODE.search(k)}
    return {**passed_on, **threads, "PYTHONPATH": python_path, "PYTHONUTF8": "1", **label}


def _object_store_bytes() -> int:
    """Return the limit of the object store: memory is taken when objects come, never more than is free."""
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    return max(OBJECT_STORE_BYTES, min(WEIGHTS_BYTES, free // 2, psutil.virtual_memory().available // 2))


def check_store(weights: int, copies: int = 0) -> None:
    """Check that the object store of a Ray that this process will start holds the bytes of a weight sync, in memory.

    Where it does not, every sync waits for the disk. Each copy is an engine of this node that writes them to a file in
    shared memory too, all at once.
    """
    if cluster_address() or not SHARED_MEMORY.is_dir():  # a cluster has its stores; without the directory all is slow
        return
    free, needed = shutil.disk_usage(SHARED_MEMORY).free, max(2, 1 + copies) * weights  # Ray takes half at most
    if needed > free:
        size = math.ceil(needed / 2**30) + 1
        raise ConfigError(
            f"{SHARED_MEMORY} has {free / 2**30:.2f} GiB free, and engines that read {weights / 2**30:.2f} GiB of "
            f"weights through it need {needed / 2**30:.2f}, or every weight sync goes over the disk: start the "
            f"container with `docker run --shm-size={size}g`, or `mount -o remount,size={size}g {SHARED_MEMORY}`"
        )
    if weights > _object_store_bytes():
        raise ConfigError(
            f"a weight sync of {weights / 2**30:.2f} GiB would go over the disk: Ray's object store takes half of the "
            f"{psutil.virtual_memory().available / 2**30:.2f} GiB of memory that are available, and at most "
            f"{WEIGHTS_BYTES / 2**30:.0f} GiB"
        )


def ray_directory() -> str | None:
    """Return the directory for the files of Ray: in the session; None, without one, for the place that Ray likes."""
    session = session_directory()
    if session is None:
        return None
    if len(str(session)) > MAX_DIRECTORY_LENGTH:
        raise ConfigError(
            f"the session directory {session} is longer than {MAX_DIRECTORY_LENGTH} characters, too long for the "
            "sockets of Ray; start the session under a shorter root"
        )
    return str(session / "ray")
