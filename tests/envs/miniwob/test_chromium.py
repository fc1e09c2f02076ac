"""The connection to a browser, on a script that speaks as one."""

import sys

import pytest

from arpo.envs.miniwob.chromium import Browser
from arpo.errors import EnvError

pytestmark = pytest.mark.timeout(30)  # an error here is a wait without end

SPEAKS_AS_A_BROWSER = """\
#!{python}
import json, os
buffer = b""
while chunk := os.read(3, 65536):
    *messages, buffer = (buffer + chunk).split(b"\\0")
    for message in map(json.loads, messages):
        if message["method"] == "Browser.close":
            raise SystemExit
        if message["method"] == "Page.hang":
            continue
        said = [dict(id=message["id"], result=dict(product="Script/1"))]
        if message["method"] == "Page.crash":
            said.append(dict(method="Inspector.targetCrashed", params=dict(), sessionId=message["sessionId"]))
        for each in said:
            os.write(4, json.dumps(each).encode() + b"\\0")
"""


@pytest.fixture
def browser(tmp_path):
    script = tmp_path / "browser"
    script.write_text(SPEAKS_AS_A_BROWSER.format(python=sys.executable))
    script.chmod(0o755)
    browser = Browser(str(script))
    yield browser
    browser.close()


def test_a_browser_that_does_not_answer_in_time_is_killed(browser):
    with pytest.raises(EnvError, match=r"Page\.hang: no answer in time; the browser was killed"):
        browser.call("Page.hang", timeout_s=0.05)
    assert not browser.alive


def test_a_page_that_crashes_is_a_fault_of_its_own_session_alone(browser):
    lost, others = (browser.event(session, "Page.loadEventFired") for session in ("a", "b"))
    hanging = browser.send("Page.hang", session="a")
    browser.call("Page.crash", session="a", timeout_s=10.0)
    for future in (lost, hanging):
        with pytest.raises(EnvError, match="the page's renderer crashed"):
            future.result(10.0)
    assert not others.done()
    assert browser.alive


@pytest.mark.parametrize(("executable", "error"), [("/bin/false", EnvError), ("/no/browser", FileNotFoundError)])
def test_nothing_is_left_of_a_browser_that_does_not_start(tmp_path, monkeypatch, executable, error):
    monkeypatch.setenv("ARPO_SESSION_DIR", str(tmp_path))
    with pytest.raises(error):
        Browser(executable)
    assert list(tmp_path.iterdir()) == []
