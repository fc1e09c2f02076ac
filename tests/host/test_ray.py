"""One Ray a process, however many start it at once."""

import sys
import threading
from pathlib import Path

import pytest

from arpo.errors import ConfigError
from arpo.host.labels import LABEL_VARIABLE
from arpo.host.ray import RayRuntime, _ray_directory, worker_environment
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
        runtime._submit(lambda: None).result()

    users = [threading.Thread(target=use) for _ in range(8)]
    monkeypatch.setattr(threading, "Thread", SlowToStart)
    for user in users:
        user.start()
    for user in users:
        user.join()
    threads = {thread for thread in threading.enumerate() if thread.name == "ray"} - before
    assert len(threads) == 1


def test_whoever_must_not_start_beside_ray_waits_for_it_where_it_starts():
    runtime = RayRuntime()
    runtime.wait_for_start()  # nobody has asked for Ray: nothing to wait for
    begun, go = threading.Event(), threading.Event()

    def start() -> None:
        begun.set()
        go.wait()

    runtime._submit(start)
    begun.wait()
    waiting = threading.Thread(target=runtime.wait_for_start, daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    go.set()
    waiting.join(5)
    assert not waiting.is_alive()


def test_a_start_that_failed_holds_nobody_up():
    runtime = RayRuntime()

    def fail() -> None:
        raise ConfigError("no Ray here")

    failed = runtime._submit(fail)
    runtime.wait_for_start()
    with pytest.raises(ConfigError, match="no Ray here"):
        failed.result()


class CountingRay:
    """Ray, which says whether it runs."""

    runs = False
    stops = 0

    def is_initialized(self) -> bool:
        return self.runs

    def init(self, **_: object) -> None:
        self.runs = True

    def shutdown(self) -> None:
        self.runs, self.stops = False, self.stops + 1


def test_ray_ends_with_its_last_user_and_starts_again_for_the_next(monkeypatch: pytest.MonkeyPatch):
    ray = CountingRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in ("RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED", "RAY_worker_niceness"):
        monkeypatch.setenv(name, "0")  # which a start sets where they are not
    runtime = RayRuntime()
    for stops in (0, 1):
        for _ in range(2):
            runtime.acquire().result()
        runtime.release().result()
        assert ray.runs
        assert ray.stops == stops
        runtime.release().result()
        assert not ray.runs
        assert ray.stops == stops + 1


def test_the_ray_of_a_cluster_lives_on(monkeypatch: pytest.MonkeyPatch):
    ray = CountingRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_ADDRESS", "somewhere:6379")
    runtime = RayRuntime()
    runtime.acquire().result()
    runtime.release().result()
    assert ray.runs


def test_the_files_of_ray_lie_in_the_session_whose_name_is_short_enough_for_sockets(monkeypatch: pytest.MonkeyPatch):
    for directory, expected in ((None, None), (Path("/tmp/s"), "/tmp/s/ray")):
        monkeypatch.setattr("arpo.host.ray.session_directory", lambda directory=directory: directory)
        assert _ray_directory() == expected
    monkeypatch.setattr("arpo.host.ray.session_directory", lambda: Path("/tmp") / (MAX_DIRECTORY_LENGTH * "s"))
    with pytest.raises(ConfigError, match="too long for the sockets of Ray"):
        _ray_directory()


def test_a_worker_is_labelled_as_its_session_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(LABEL_VARIABLE, "mine")
    assert worker_environment()[LABEL_VARIABLE] == "mine"
    monkeypatch.delenv(LABEL_VARIABLE)
    assert LABEL_VARIABLE not in worker_environment()
