"""What is missing is said, all of it, with what to do about it."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from arpo.errors import ConfigError
from arpo.run.preflight import ENGINE_TIMEOUT_S, missing_here, preflight


def missing(requires, model_path=None):
    with pytest.raises(ConfigError) as error:
        preflight(requires, model_path)
    return str(error.value)


class Engine(ThreadingHTTPServer):
    """A Docker engine that has one image and a directory, and may hang."""

    daemon_threads = False  # closing the server waits for those that hang

    def __init__(self, directory):
        super().__init__(("127.0.0.1", 0), Answer)
        self.hangs, self.ends = threading.Event(), threading.Event()
        info = {"ServerVersion": "20.10", "Driver": "overlay2", "NCPU": 2, "DockerRootDir": str(directory)}
        self.answers = {"version": {"ApiVersion": "1.44"}, "info": info, "json": {"Config": {"Labels": None}}}
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.server.hangs.is_set():
            self.server.ends.wait()
            return  # and no answer: nobody reads it any more
        path = self.path.partition("?")[0]
        route = path.rpartition("/")[2]
        has_it = route != "json" or path.endswith("/images/arpo/desktop:plain/json")
        content = json.dumps(self.server.answers[route] if has_it else {"message": "no such image"}).encode()
        self.send_response(200 if has_it else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """The engine of this machine; there is no `docker` command."""
    with Engine(tmp_path) as engine:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{engine.server_port}")
        monkeypatch.setenv("PATH", str(tmp_path / "empty"))
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        yield engine
        engine.ends.set()
        engine.shutdown()


def test_gpus_are_counted():
    found = torch.cuda.device_count()
    preflight({"gpus": found}, None)
    assert f"it needs {found + 1} NVIDIA GPU(s), and torch sees {found}" in missing({"gpus": found + 1})


@pytest.mark.parametrize(
    ("driver", "cuda", "remedy"),
    [
        ("NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu", "13.0", "CUDA 13.0 needs the driver 580 or newer, and"),
        ("NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release", "13.0", "and this one is 570.86.15"),
        ("NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun", "13.0", "look at CUDA_VISIBLE_DEVICES"),
        ("NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu", "12.8", "look at CUDA_VISIBLE_DEVICES"),
        ("NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu", None, "its torch is built for CPUs, run `make setup`"),
        ("", "13.0", "use a GPU machine"),
        (None, "13.0", "use a GPU machine"),
    ],
)
def test_a_gpu_that_torch_does_not_see_has_a_reason(monkeypatch, tmp_path, driver, cuda, remedy):
    monkeypatch.setattr("arpo.run.preflight.DRIVER", tmp_path / "version")
    monkeypatch.setattr("torch.version.cuda", cuda)
    if driver is not None:
        (tmp_path / "version").write_text(f"NVRM version: {driver}\nGCC version: gcc 12.2.0\n")
    assert remedy in missing({"gpus": 99})


@pytest.mark.parametrize(("driver", "refused"), [("570.86.15", True), ("580.65.06", False)])
def test_a_driver_that_is_too_old_is_refused_though_torch_counts_its_gpus(monkeypatch, tmp_path, driver, refused):
    monkeypatch.setattr("arpo.run.preflight.DRIVER", tmp_path / "version")
    (tmp_path / "version").write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Thu\n")
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("arpo.run.preflight.count_gpus", lambda: 8)
    assert any("needs the driver" in line for line in missing_here({"gpus": 8}, None)) == refused


def test_a_machine_of_gpus_needs_what_compiles_kernels(monkeypatch, tmp_path):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    message = missing({"gpus": 99})
    assert "a C compiler" in message
    assert f"there is no {tmp_path / 'Python.h'}: install python3-dev" in message
    for name in ("gcc", "Python.h"):
        (tmp_path / name).touch(mode=0o755)
    assert "compiler" not in missing({"gpus": 99})
    preflight({}, None)


def test_docker_needs_an_engine_that_answers_within_ten_seconds_and_its_image(engine, monkeypatch):
    silent = "it needs a Docker engine: no Docker engine answers"
    preflight({"docker": True, "image": "arpo/desktop:plain"}, None)
    preflight({"docker": False}, None)
    assert "it needs the image arpo/desktop:new, which" in missing({"docker": True, "image": "arpo/desktop:new"})
    engine.hangs.set()
    assert silent in missing({"docker": True, "budget": HUGE})
    assert 3 * ENGINE_TIMEOUT_S < 10  # it is asked for its version, for what it has, and for an image
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    assert silent in missing({"docker": True})


def test_files_are_named_by_what_they_are_and_a_checkpoint_must_be_there_unless_the_run_writes_it(
    tmp_path, tiny_model
):
    gone = str(tmp_path / "gone")
    preflight({"files": {"task files": str(tmp_path)}}, tiny_model)
    preflight({}, None)
    assert f"task files, and there is nothing at {gone}" in missing({"files": {"task files": gone}})
    assert "it needs task files (set ROOT)" in missing({"files": {"task files (set ROOT)": None}})
    assert f"{tmp_path} has no config.json: set model.path" in missing({}, tmp_path)
    message = missing({}, "")
    assert "no path is set: set model.path" in message
    assert "experiment=warmstart_miniwob" in message


def test_everything_that_is_missing_is_said_at_once_and_then_what_works_anywhere(tmp_path):
    message = missing({"gpus": 99, "files": {"files": None}}, tmp_path)
    assert all(f"\n  - it needs {what}" in message for what in ("99 NVIDIA", "files", "a checkpoint"))
    assert message.endswith("trains a tiny policy on real web pages.")


HUGE = {"desktops": 10**6, "memory_mb": 4608, "cores": 4, "disk_mb": 2048}


def test_machines_that_cannot_fit_are_refused_with_how_many_would_and_others_are_logged(monkeypatch, caplog):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert missing({"budget": HUGE}).count("1000000 desktops need") == 3  # memory, cores, disk
    caplog.set_level("INFO")
    preflight({"budget": {"desktops": 1, "memory_mb": 1, "cores": 1, "disk_mb": 1}}, None)
    assert any(record.getMessage().startswith("1 desktops: 0 GiB of memory") for record in caplog.records)


def test_on_a_cluster_desktops_are_the_business_of_its_nodes(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    needs = {"docker": True, "kvm": True, "budget": HUGE, "node_files": {"a disk": str(tmp_path / "gone")}}
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    preflight(needs, None)
    assert "it needs a disk (set DISK)" in missing({"node_files": {"a disk (set DISK)": None}})
    monkeypatch.delenv("RAY_ADDRESS")
    message = missing(needs)
    assert all(word in message for word in ("no Docker engine", "desktops need", "a disk, and there is nothing at"))
