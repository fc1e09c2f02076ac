"""Waits that become errors when nothing happens, and only then."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from arpo.errors import RolloutError
from arpo.host.threads import BackgroundLoop
from arpo.rollout.meter import Activity
from arpo.rollout.runtime import StallDetector

STALL_S = 0.8


@pytest.fixture
def watch() -> Iterator[StallDetector]:
    loop = BackgroundLoop("watched")
    loop.start()
    runner = SimpleNamespace(activity=Activity(), turns=SimpleNamespace(queued=dict))
    pool = SimpleNamespace(states=lambda: {"idle": 1, "busy": 0})
    yield StallDetector(loop, runner, pool, STALL_S)  # type: ignore[arg-type]
    loop.close()


def test_a_wait_without_a_sign_of_life_ends(watch: StallDetector):
    began = time.monotonic()
    with pytest.raises(RolloutError, match=r"I wait, and nothing has happened.*no episode runs"):
        watch.result(Future(), lambda: "I wait")
    assert time.monotonic() - began >= STALL_S


def test_silence_from_before_the_wait_does_not_count(watch: StallDetector):
    watch.runner.activity.last -= 100 * STALL_S
    future: Future[int] = Future()
    threading.Timer(STALL_S / 2, future.set_result, [7]).start()
    assert watch.result(future, lambda: "I wait") == 7


def test_signs_of_life_keep_a_long_wait(watch: StallDetector):
    future: Future[int] = Future()

    def live() -> None:
        for _ in range(12):
            time.sleep(STALL_S / 4)
            watch.runner.activity.beat()
        future.set_result(7)

    threading.Thread(target=live).start()
    assert watch.result(future, lambda: "I wait") == 7
