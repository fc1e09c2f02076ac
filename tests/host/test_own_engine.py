"""How this package finds the engine that `make desktop` has started, with an engine that only knows its version."""

import json
import re
import socket
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from arpo.errors import EnvError
from arpo.host import containers

docker = pytest.importorskip("docker")

ROOT = Path(__file__).parents[2]


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"ApiVersion": "1.41", "Version": "ours"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self):
        return "a socket"

    def log_message(self, *_):
        pass


@pytest.fixture
def own_engine(tmp_path, monkeypatch):
    """An engine at our own place, and none at the usual one."""
    place = tmp_path / "docker.sock"
    monkeypatch.setattr(containers, "OWN_ENGINE", place)
    usual = docker.context.Context("default", host=f"unix://{tmp_path}/usual.sock")
    monkeypatch.setattr(docker.ContextAPI, "DEFAULT_CONTEXT", usual)
    monkeypatch.setenv("DOCKER_CONTEXT", "default")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    with socketserver.ThreadingUnixStreamServer(str(place), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield place
        server.shutdown()


def test_without_an_engine_at_the_usual_place_ours_is_used(own_engine):
    with containers.connect(3.0).api as engine:
        assert engine.version()["Version"] == "ours"


def test_the_engine_that_somebody_names_wins(own_engine, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(EnvError, match="no Docker engine answers; `make desktop` starts one"):
        containers.connect(3.0)


def test_without_any_engine_the_error_names_the_command_that_starts_one_and_what_the_usual_place_says(own_engine):
    own_engine.unlink()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(own_engine.parent / "usual.sock"))  # somebody else's, and nobody listens there
        with pytest.raises(EnvError, match=r"no Docker engine answers; `make desktop` starts one.*Connection refused"):
            containers.connect(3.0)


@pytest.mark.parametrize("script", ["start_engine.sh", "stop_engine.sh"])
def test_the_scripts_mean_the_same_place(script):
    (directory,) = re.findall(r"^directory=\$\{1:-(.*)\}$", (ROOT / "docker" / script).read_text(), re.MULTILINE)
    assert Path(directory, "docker.sock") == containers.OWN_ENGINE
