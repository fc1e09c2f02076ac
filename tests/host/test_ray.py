"""One Ray a process, however many start it at once."""

import threading

import pytest

from arpo.host.ray import RayRuntime


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
