"""A program that is busy says so."""

import logging
import threading
import time

import pytest

from arpo.host.heartbeat import Heartbeat, still


@pytest.fixture(autouse=True)
def info(caplog) -> None:
    caplog.set_level(logging.INFO, logger="arpo.host.heartbeat")


def test_what_takes_long_gives_a_sign_of_life(caplog) -> None:
    with Heartbeat(lambda: "iteration 3/9", every_s=0.05):
        time.sleep(0.4)
    assert 2 <= len(caplog.messages) <= 9
    assert set(caplog.messages) == {"iteration 3/9"}


def test_what_was_just_logged_is_not_repeated(caplog) -> None:
    heartbeat = Heartbeat(lambda: "the same again", every_s=0.6)
    time.sleep(0.4)  # before the start, nobody waits for a word
    with heartbeat:
        time.sleep(0.4)
        heartbeat.say("iteration 1/2")
        time.sleep(0.4)
    assert caplog.messages == ["iteration 1/2"]


def test_after_its_end_nothing_is_said_and_no_thread_is_left(caplog) -> None:
    with Heartbeat(lambda: "busy", every_s=0.05):
        pass
    time.sleep(0.2)
    assert caplog.messages == []
    assert not [thread for thread in threading.enumerate() if thread.name == "heartbeat"]


def test_a_step_that_takes_long_is_named_with_its_seconds(caplog) -> None:
    with still("starting the engine", every_s=0.05):
        time.sleep(0.2)
    assert caplog.messages[0] == "starting the engine: 0 s so far"


def test_nobody_waits_longer_than_ten_seconds_for_a_word() -> None:
    assert still("starting").every_s <= 10
