"""Engines that only say what they would: where ours is found, and containers that one cannot remove."""

import json
import logging
import re
import socket
import socketserver
import subprocess
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace

import pytest

from arpo.errors import EnvError
from arpo.host import containers
from arpo.host.container_spec import ContainerSpec
from arpo.host.containers import Containers, reap, remove_session

docker = pytest.importorskip("docker")


class Engine:
    """A client of an engine with two cores that starts nothing, and cannot remove what is stuck."""

    def __init__(self, *there, stuck):
        gone = subprocess.Popen(["true"])
        gone.wait()
        labels = {"arpo.owner": f"{gone.pid}-1"}
        self.there = {name: SimpleNamespace(id=name, labels=labels) for name in there}
        self.stuck = stuck
        self.containers = self.api = self

    def info(self):
        return {"NCPU": 2}

    def list(self, **_):
        return list(self.there.values())

    def create(self, image, **options):
        self.options = options
        self.there["new"] = SimpleNamespace(id="new", start=self.start)
        return self.there["new"]

    def start(self):
        raise docker.errors.APIError("it does not start")

    def remove_container(self, name, **_):
        if name in self.stuck:
            raise docker.errors.APIError("device or resource busy")
        if self.there.pop(name, None) is None:
            raise docker.errors.NotFound("it is gone")

    def close(self):
        pass


@pytest.fixture
def use(monkeypatch):
    """Leads this package to an engine, and forgets what it has left over."""
    monkeypatch.setattr(Containers, "left_over", set())
    monkeypatch.setattr(Containers, "reaped", True)
    return lambda engine: monkeypatch.setattr(docker, "from_env", lambda timeout: engine)


def test_one_that_cannot_be_removed_does_not_keep_the_others_nor_the_end_of_a_session(use, caplog):
    engine = Engine("a", "b", "c", stuck=["b"])
    with caplog.at_level(logging.WARNING):
        assert reap(engine) == 2
    assert list(engine.there) == ["b"]
    assert "device or resource busy" in caplog.text
    engine = Engine("a", "b", "c", stuck=["a"])
    use(engine)
    assert remove_session("label") == 2
    assert list(engine.there) == ["a"]


def test_a_start_goes_on_and_forgets_nothing_that_it_could_not_remove(use):
    engine = Engine("a", "b", stuck=["a", "new"])
    use(engine)
    Containers.left_over.update(["a", "b", "long gone"])
    with pytest.raises(EnvError, match="it does not start"):
        Containers().start(ContainerSpec("image", ()))
    assert Containers.left_over == {"a", "new"}
    engine.stuck = []
    with pytest.raises(EnvError, match="it does not start"):
        Containers().start(ContainerSpec("image", ()))
    assert not Containers.left_over
    assert not engine.there


def test_a_container_gets_no_more_cores_than_there_are(use):
    engine = Engine(stuck=[])
    use(engine)
    for wanted, given in ((64.0, 2_000_000_000), (0.5, 500_000_000)):
        with pytest.raises(EnvError, match="it does not start"):
            Containers().start(ContainerSpec("image", (), cpus=wanted))
        assert engine.options["nano_cpus"] == given


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


def test_without_an_engine_at_the_usual_place_ours_is_used_unless_another_is_named(own_engine, monkeypatch):
    with containers.connect(3.0).api as engine:
        assert engine.version()["Version"] == "ours"
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
