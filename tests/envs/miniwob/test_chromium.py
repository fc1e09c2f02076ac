"""The connection to a browser, without a browser."""

import time
from concurrent.futures import Future
from threading import Timer

import pytest

from arpo.envs.miniwob.chromium import Browser
from arpo.errors import EnvError


class Silent(Browser):
    """A browser that answers after five seconds."""

    def __init__(self) -> None:
        self.killed = ""

    def send(self, *_: object) -> Future[str]:
        answer: Future[str] = Future()
        timer = Timer(5.0, answer.set_result, ["too late"])
        timer.daemon = True
        timer.start()
        return answer

    def kill(self, reason: str) -> None:
        self.killed = reason


def test_a_browser_that_does_not_answer_in_time_is_killed():
    browser, started = Silent(), time.monotonic()
    with pytest.raises(EnvError, match=r"Page\.navigate: no answer in time; the browser was killed"):
        browser.call("Page.navigate", timeout_s=0.05)
    assert time.monotonic() - started < 4.0
    assert browser.killed == "Page.navigate hung"
