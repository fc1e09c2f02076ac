"""One Ray a process, however many start it at once."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from arpo.errors import ConfigError, EnvError
from arpo.host.log_lines import log_every
from arpo.host.processes import LABEL_VARIABLE
from arpo.host.ray import SHARED_MEMORY, RayRuntime, check_store, ray_directory, worker_environment
from arpo.host.session import MAX_DIRECTORY_LENGTH


class SlowToStart(threading.Thread):
    """A thread of Ray that starts so slowly that every other user comes in between."""

    def start(self):
        if self.name == "ray":
            threading.Event().wait(0.05)
        super().start()


def test_users_who_come_at_the_same_moment_share_one_thread_of_ray(monkeypatch: pytest.MonkeyPatch):
    """The engine's thread and the pool's loop both ask for Ray at the start of `arpo_subset32`."""
    before = {thread for thread in threading.enumerate() if thread.name == "ray"}
    arrived = threading.Barrier(8)
    runtime = RayRuntime()

    def use() -> None:
        arrived.wait()
        runtime.submit(lambda: None).result()

    users = [threading.Thread(target=use) for _ in range(8)]
    monkeypatch.setattr(threading, "Thread", SlowToStart)
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert len({thread for thread in threading.enumerate() if thread.name == "ray"} - before) == 1


def test_whoever_must_not_start_beside_ray_waits_for_it_where_it_starts_and_not_for_a_start_that_failed():
    runtime = RayRuntime()
    runtime.wait_for_start()  # nobody has asked for Ray: nothing to wait for
    begun, go = threading.Event(), threading.Event()

    def start() -> None:
        begun.set()
        go.wait()
        raise ConfigError("no Ray here")

    failed = runtime.submit(start)
    begun.wait()
    waiting = threading.Thread(target=runtime.wait_for_start, daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    go.set()
    assert ended(waiting)
    with pytest.raises(ConfigError, match="no Ray here"):
        failed.result()


class CountingRay:
    """Ray, which says whether it runs."""

    def __init__(self) -> None:
        self.runs, self.stops, self.starters = False, 0, []
        self.fails, self.start_s = 0, 0.0
        self.blocked: set[int] = set()

    def is_initialized(self) -> bool:
        return self.runs

    def init(self, **_: object) -> None:
        self.starters.append(threading.current_thread())
        self.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        time.sleep(self.start_s)
        if len(self.starters) <= self.fails:
            raise Exception("The current node timed out during startup")  # noqa: TRY002 - as Ray does
        self.runs = True

    def shutdown(self) -> None:
        self.runs, self.stops = False, self.stops + 1


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> CountingRay:
    """What `import ray` gives; nothing that a start sets stays."""
    ray = CountingRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if not k.startswith("RAY_")})
    return ray


def ended(thread: threading.Thread) -> bool:
    thread.join(5)
    return not thread.is_alive()


def test_a_ray_that_did_not_start_is_tried_once_more_and_what_it_left_is_ended(ray, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("arpo.host.ray.log_every", partial(log_every, every_s=0.05))
    ray.fails, ray.start_s = 1, 0.3
    runtime = RayRuntime()
    runtime.acquire().result()
    assert "starting Ray: 0 s so far" in caplog.messages  # it was slow
    first, second = ray.starters
    assert ended(first)  # with the thread, the kernel ends the processes that it started
    assert second.is_alive()
    assert "trying to start Ray again, at a load of" in caplog.text
    runtime.release().result()
    assert ended(second)


def test_a_ray_that_does_not_start_at_all_is_an_error_that_names_the_load_and_a_cluster_is_asked_once(
    ray, monkeypatch
):
    """Something listens where the cluster should be, so that the check before the start finds nothing wrong."""
    ray.fails = 3
    monkeypatch.setattr(os, "getloadavg", lambda: (12.34, 0.0, 0.0))
    with pytest.raises(EnvError, match=r"in 2 attempts and \d+ s, at a load of 12\.3 on \d+ cores.*timed out during"):
        RayRuntime().acquire().result()
    assert all(ended(starter) for starter in ray.starters)
    os.environ["RAY_ADDRESS"] = "somewhere:22"
    with pytest.raises(EnvError, match="starting Ray"):
        RayRuntime().acquire().result()
    assert len(ray.starters) == 3
    ray.start_s = 60.0
    monkeypatch.setattr("arpo.host.ray.JOIN_S", 0.05)
    with pytest.raises(EnvError, match=r"RAY_ADDRESS=somewhere:22: .*no answer within 0\.05 s"):
        RayRuntime().acquire().result()


def test_ray_ends_with_its_last_user_and_starts_again_for_the_next_unless_it_is_that_of_a_cluster(ray):
    runtime = RayRuntime()
    for stops in (0, 1):
        for _ in range(2):
            runtime.acquire().result()
        assert ray.blocked == {signal.SIGHUP}  # of the thread whose children Ray's processes are
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
        runtime.release().result()
        assert (ray.runs, ray.stops) == (True, stops)
        runtime.release().result()
        assert (ray.runs, ray.stops) == (False, stops + 1)
    os.environ["RAY_ADDRESS"] = "somewhere:6379"
    runtime.acquire().result()
    runtime.release().result()
    assert ray.runs


JOBS = """
import os
from arpo.host.ray import RAY
from arpo.host.session import Session

for _ in range(2):
    before = dict(os.environ)
    session = Session.start()
    RAY.acquire().result()
    RAY.release().result()
    session.close()
    os.environ.clear()
    os.environ.update(before)
"""


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
def test_ray_starts_again_for_the_next_job_of_a_multirun_which_has_none_of_the_variables_of_the_last():
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ARPO_", "RAY_"))}
    environment["RAY_gcs_server_port_wait_time_s"] = "10"  # the test alone: seconds until it is red
    done = subprocess.run([sys.executable, "-c", JOBS], env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_files_of_ray_lie_in_the_session_whose_name_is_short_enough_for_sockets(monkeypatch: pytest.MonkeyPatch):
    for directory, expected in ((None, None), (Path("/tmp/s"), "/tmp/s/ray")):
        monkeypatch.setattr("arpo.host.ray.session_directory", lambda directory=directory: directory)
        assert ray_directory() == expected
    monkeypatch.setattr("arpo.host.ray.session_directory", lambda: Path("/tmp") / (MAX_DIRECTORY_LENGTH * "s"))
    with pytest.raises(ConfigError, match="too long for the sockets of Ray"):
        ray_directory()


PASSED_ON = f"""
    VLLM_USE_V2_MODEL_RUNNER VLLM_MAX_BAD_WORDS_TOTAL_TOKENS NCCL_P2P_DISABLE TRITON_F32_DEFAULT {LABEL_VARIABLE}
"""
LEFT_HERE = """
    VLLM_HOST_IP VLLM_PORT VLLM_DP_RANK VLLM_DP_RANK_LOCAL NCCL_SOCKET_IFNAME NCCL_IB_HCA VLLM_API_KEY HF_TOKEN
    CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES MASTER_ADDR LOCAL_RANK PYTORCH_CUDA_ALLOC_CONF TORCHELASTIC_RUN_ID
    HTTPS_PROXY RAY_ADDRESS TMPDIR TORCHINDUCTOR_CACHE_DIR VLLM_CACHE_ROOT NCCL_TOPO_FILE
"""


def test_a_worker_gets_what_says_how_to_compute_and_nothing_that_is_right_on_one_node_alone_or_secret(monkeypatch):
    for variable in (PASSED_ON + LEFT_HERE).split():
        monkeypatch.setenv(variable, "0")
    given = worker_environment()
    assert {variable for variable in (PASSED_ON + LEFT_HERE).split() if variable in given} == set(PASSED_ON.split())
    assert {given[variable] for variable in PASSED_ON.split()} == {"0"}
    for variable in PASSED_ON.split():
        monkeypatch.delenv(variable)
    assert not set(PASSED_ON.split()) & worker_environment().keys()


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="no shared memory as a directory")
def test_weights_of_half_the_free_shared_memory_and_of_half_the_memory_have_room_in_the_store(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    free = shutil.disk_usage(SHARED_MEMORY).free
    check_store(free // 4)
    with pytest.raises(ConfigError, match=r"/dev/shm has [\d.]+ GiB free, .* `docker run --shm-size=\d+g`"):
        check_store(free)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2**50))
    with pytest.raises(ConfigError, match=r"150\.00 GiB would go over the disk: .* half of the [\d.]+ GiB of memory"):
        check_store(150 * 2**30)


def test_the_shared_memory_that_weights_need_is_named_unless_it_is_a_cluster_s_or_of_another_system(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("arpo.host.ray.SHARED_MEMORY", Path("/proc"))  # which has room for nothing
    with pytest.raises(ConfigError, match=r"0\.00 GiB free, and engines that read 15\.00 .* need 30\.00, .*=31g"):
        check_store(15 * 2**30)
    with pytest.raises(ConfigError, match=r"engines that read 15\.00 .* need 75\.00, .*=76g"):
        check_store(15 * 2**30, copies=4)
    with monkeypatch.context() as cluster:
        cluster.setenv("RAY_ADDRESS", "somewhere:6379")
        check_store(15 * 2**30)
    monkeypatch.setattr("arpo.host.ray.SHARED_MEMORY", Path("/nowhere"))
    check_store(15 * 2**30)
