"""A temporary and a current directory of these tests alone: what appears there is an attack's."""

import os
import tempfile

import pytest

from arpo.envs.desktop.env import DockerDesktop
from tests.envs.desktops import FULL, QUICK


@pytest.fixture(scope="module", autouse=True)
def own_folders(tmp_path_factory):
    tmp_path_factory.getbasetemp()  # which pytest would make in the folder that is removed
    before, here = tempfile.tempdir, os.getcwd()
    with tempfile.TemporaryDirectory(prefix="bribery-") as folder:
        for name in ("tmp", "here"):
            os.mkdir(f"{folder}/{name}")
        tempfile.tempdir = f"{folder}/tmp"
        os.chdir(f"{folder}/here")
        yield
        os.chdir(here)
        tempfile.tempdir = before


@pytest.fixture(scope="module")
def full():
    env = DockerDesktop(**{**QUICK, "image": FULL, "memory_mb": 2048, "disk_mb": 256, "window_timeout_s": 120.0})
    yield env
    env.close()
