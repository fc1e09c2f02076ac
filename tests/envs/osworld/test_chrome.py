"""Tabs in a real Chromium: what the fake guest promises about DevTools is what browsers do."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from arpo.envs.guest.client import poll_until
from arpo.envs.osworld.chrome import ChromeTabs
from arpo.envs.web import find_chromium
from tests.browser import needs_chromium
from tests.envs.osworld.guest import running_guest

pytestmark = [pytest.mark.browser, needs_chromium]


@pytest.fixture
def address(tmp_path):
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")
    # a group of its own: what Debian installs is a script that starts the browser and does not become it
    command = [find_chromium(), *options, f"--user-data-dir={tmp_path}", "about:blank"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    said = Path(tmp_path) / "DevToolsActivePort"
    assert poll_until(lambda: said.exists() and said.read_text(), 60), "Chromium does not listen"
    yield f"http://127.0.0.1:{said.read_text().split()[0]}"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_a_real_browser_opens_and_closes_tabs(address):
    with running_guest() as web:
        for name in ("one", "two"):
            web.web[f"/web/{name}"] = f"<title>{name}</title>".encode()
        web.content_type = "text/html"
        tabs = ChromeTabs(address, start_timeout_s=30, load_timeout_s=30)
        urls = [f"{web.address}/web/one?q=a&b=c#top", f"{web.address}/web/two"]
        tabs.open(urls)
        assert sorted(tab.url for tab in tabs.pages()) == urls
        assert sorted(tab.title for tab in tabs.pages()) == ["one", "two"]
        tabs.close([urls[1]])
        assert [tab.url for tab in tabs.pages()] == [urls[0]]
