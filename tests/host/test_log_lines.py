"""No record of the log looks like two, every handler writes it so, and a program that is busy says so."""

import ast
import io
import logging
import subprocess
import sys
import threading
import time

import pytest
import yaml

from arpo.errors import quoted
from arpo.host.log_lines import Heartbeat, LineFormatter, log_every
from tests.host.watchdogs import wait_until
from tests.test_architecture import trees
from tests.test_errors import HOSTILE, ROOT


@pytest.mark.parametrize("name", HOSTILE)
def test_no_record_of_the_log_looks_like_two(name):
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    text, _ = HOSTILE[name]
    logger.warning("a command said %s", text)
    logger.error("a library failed", exc_info=ValueError(text))
    at_the_margin = [line for line in out.getvalue().splitlines() if not line.startswith("  ")]
    assert [line.split()[0] for line in at_the_margin] == ["WARNING", "ERROR"]
    assert quoted(out.getvalue(), most=10**6, keep="\n\t") == out.getvalue()


def test_every_handler_of_the_log_writes_our_lines():
    """Walks the sources: who sets up a log by himself would show what others said as it is."""
    calls = {
        (name, ast.unparse(node))
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith(("basicConfig", "setFormatter", ".Formatter"))
    }
    theirs = {(name, call) for name, call in calls if "setFormatter(LineFormatter(" not in call}
    assert theirs == {("arpo/host/log_lines.py", "logging.basicConfig(level=level, handlers=[handler])")}
    formatters = yaml.safe_load((ROOT / "conf/hydra/default.yaml").read_text())["job_logging"]["formatters"]
    assert {each["class"] for each in formatters.values()} == {"arpo.host.log_lines.LineFormatter"}


@pytest.fixture(autouse=True)
def info(caplog) -> None:
    caplog.set_level(logging.INFO, logger="arpo.host.log_lines")


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
    program = "from arpo.host.log_lines import Heartbeat; Heartbeat(lambda: 'still there').start()"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
