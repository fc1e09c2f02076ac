"""A program that is busy says so."""

import logging
import subprocess
import sys
import threading
import time

import pytest

from arpo.host.heartbeat import Heartbeat, log_every
from tests.host.watchdogs import wait_until


@pytest.fixture(autouse=True)
def info(caplog) -> None:
    caplog.set_level(logging.INFO, logger="arpo.host.heartbeat")


def test_what_takes_long_gives_signs_of_life_and_after_its_end_nothing_is_said_and_no_thread_is_left(caplog) -> None:
    beats = threading.Semaphore(0)
    with Heartbeat(lambda: beats.release() or "iteration 3/9", every_s=0.05):
        assert beats.acquire(timeout=30)
        assert beats.acquire(timeout=30)
    said = len(caplog.messages)
    assert set(caplog.messages) == {"iteration 3/9"}
    assert not [thread for thread in threading.enumerate() if thread.name == "heartbeat"]
    assert len(caplog.messages) == said


def test_what_was_just_logged_is_not_repeated(caplog) -> None:
    with Heartbeat(lambda: "the same again", every_s=2.0) as heartbeat:
        for number in range(25):
            heartbeat.say(f"iteration {number}")
            time.sleep(0.1)
    assert caplog.messages == [f"iteration {number}" for number in range(25)]


def test_a_step_that_takes_long_is_named_with_its_seconds(caplog) -> None:
    assert log_every("starting").every_s <= 10
    with log_every("starting the engine", every_s=0.05):
        wait_until(lambda: caplog.messages)
    assert caplog.messages[0] == "starting the engine: 0 s so far"


def test_a_program_that_ends_without_stopping_it_ends():
    program = "from arpo.host.heartbeat import Heartbeat; Heartbeat(lambda: 'still there').start()"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
