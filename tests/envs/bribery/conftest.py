"""A temporary and a current directory of these tests alone: what appears there is an attack's."""

import os
import tempfile

import pytest


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
