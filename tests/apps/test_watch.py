"""The page that shows the desktops of this machine: what it serves, and to whom."""

import io
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import httpx
import pytest
from PIL import Image

from arpo.__main__ import main
from arpo.apps.watch import WatchServer
from tests.envs.desktops import IMAGE, START_LIMIT_S, docker, needs_desktop


@contextmanager
def serving():
    with WatchServer(0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}", trust_env=False, timeout=30) as client:
            yield client
        server.shutdown()


def test_the_page_is_for_this_machine_alone():
    with serving() as page:
        answer = page.get("/")
        assert "<title>ARPO: desktops" in answer.text
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert page.get("/", headers={"Host": "evil.example:80"}).status_code == 403
        assert page.get("/desktops", headers={"Host": "evil.example"}).status_code == 403
        for path in ("/../etc/passwd", "/none.png", "/conf"):
            assert page.get(path).status_code == 404
        assert page.post("/").status_code == 501


def test_an_engine_that_went_away_is_an_answer_and_no_engine_an_exit_status(monkeypatch, caplog):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with serving() as page:
        assert page.get("/desktops").status_code == 502
    assert main(["watch", "--port", "0"]) == 2
    assert "make desktop" in caplog.text


def test_a_port_that_cannot_be_had_is_told_in_a_sentence(caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["watch", "--port", str(taken.getsockname()[1])]) == 2
    assert main(["watch", "--port", "70000"]) == 2
    assert caplog.text.count("name another with --port") == 2


class TestWithDesktops:
    """What needs an engine and the image."""

    pytestmark = needs_desktop

    @pytest.fixture
    def containers(self):
        started = [
            docker("run", "--detach", "--init", "--publish", "127.0.0.1::5000", *options, IMAGE).strip()
            for options in ([], ["--env", "ARPO_SECRET=only-theirs"])
        ]
        yield started
        docker("rm", "--force", *started)

    def test_the_command_says_where_the_page_is_and_ends_by_ctrl_c(self):
        command = [sys.executable, "-m", "arpo", "watch", "--port", "0"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            said = process.stderr.readline()
            address = re.match(r"(http://127\.0\.0\.1:\d+/) shows the desktops of this machine; Ctrl-C ends it$", said)
            assert httpx.get(address[1], trust_env=False, timeout=30).is_success
            process.send_signal(signal.SIGINT)
            assert process.stderr.read() == "the desktops go on\n"
        assert process.returncode == 0

    def test_desktops_with_and_without_a_secret_are_shown_until_they_end(self, containers):
        names = {container[:12] for container in containers}
        with serving() as page:
            listed = {desktop["id"]: desktop["image"] for desktop in page.get("/desktops").json()}
            assert {listed[name] for name in names} == {IMAGE}
            for name in names:
                deadline = time.monotonic() + START_LIMIT_S
                while (answer := page.get(f"/{name}.png")).status_code == 502:  # it boots
                    assert time.monotonic() < deadline
                assert answer.headers["content-type"] == "image/png"
                assert Image.open(io.BytesIO(answer.content)).size == (1280, 720)
            docker("stop", containers[0])
            assert page.get(f"/{containers[0][:12]}.png").status_code == 502
            assert containers[0][:12] not in {desktop["id"] for desktop in page.get("/desktops").json()}
            assert page.get(f"/{containers[0][:12]}.png").status_code == 404
