"""One Ray a process, however many start it at once."""

import threading

import pytest

from arpo.host.ray import RayRuntime
from arpo.host.threads import DaemonThread


def test_users_who_come_at_the_same_moment_share_one_thread_of_ray(monkeypatch: pytest.MonkeyPatch):
    """The engine's thread and the pool's loop both ask for Ray at the start of `arpo_subset32`."""
    arrived = threading.Barrier(8)
    started: list[str] = []

    class SlowThread(DaemonThread):
        def __init__(self, name: str) -> None:
            started.append(name)
            threading.Event().wait(0.05)  # long enough for every other user to come in between
            super().__init__(name)

    monkeypatch.setattr("arpo.host.ray.DaemonThread", SlowThread)
    runtime = RayRuntime()

    def use() -> None:
        arrived.wait()
        runtime._submit(lambda: None).result()

    users = [threading.Thread(target=use) for _ in range(8)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert started == ["ray"]
