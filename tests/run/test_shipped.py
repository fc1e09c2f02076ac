"""Policies that come with the code, and how one is put there."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from arpo.errors import ConfigError
from arpo.models.families.qwen2_5_vl import make_tiny
from arpo.run import shipped
from arpo.run.shipped import MADE, SHIPPED, WEIGHTS, unpack
from arpo.run.warmstart import ensure_model
from experiments.warmstarts.pack import pack

KNOWN = sorted(path.parent.name for path in SHIPPED.glob(f"*/{MADE}"))
GIT = {"commit": "c0ffee", "dirty": False}


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """A policy that was packed by the script, as that of `warmstart_mine`; and the run that made it."""
    run = tmp_path / "run"
    make_tiny(run / "policy", corpus=("wait",), hidden=64)
    start = {"status": "finished", "git": GIT, "command": ["train.py", "experiment=warmstart_mine"], "machine": {}}
    (run / "run.json").write_text(json.dumps({"starts": [start]}))
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path / "shipped")
    pack(run, tmp_path / "shipped" / "warmstart_mine")
    return run, tmp_path / "shipped" / "warmstart_mine"


def test_a_packed_policy_is_unpacked_in_float32_rounded_to_float16(packed, tmp_path):
    run, directory = packed
    assert unpack("warmstart_mine", tmp_path / "policy")
    made, got = load_file(run / "policy" / WEIGHTS), load_file(tmp_path / "policy" / WEIGHTS)
    assert made.keys() == got.keys()
    for name, tensor in got.items():
        assert torch.equal(tensor, made[name].half().float())
    for file in run.joinpath("policy").iterdir():
        assert file.name == WEIGHTS or (tmp_path / "policy" / file.name).read_bytes() == file.read_bytes()
    assert json.loads((directory / MADE).read_text())["command"] == "train.py experiment=warmstart_mine"


def test_damaged_weights_are_refused_with_the_command_that_makes_them_and_nothing_is_written(packed, tmp_path):
    file = packed[1] / WEIGHTS
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with pytest.raises(ConfigError, match=r"is damaged.* python train.py experiment=warmstart_mine"):
        unpack("warmstart_mine", tmp_path / "policy")
    assert not (tmp_path / "policy").exists()


def test_a_run_starts_from_a_packed_policy_without_a_warm_start(packed, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["no/such/script"])
    ensure_model(tmp_path / "policy", "warmstart_mine", str(tmp_path))
    assert (tmp_path / "policy" / "config.json").exists()
    assert not unpack("warmstart_other", tmp_path / "other")
    with pytest.raises(ConfigError, match="the warm start failed"):  # conversations of another length: another policy
        ensure_model(tmp_path / "windowed", "warmstart_mine", str(tmp_path), image_window=2)


@pytest.mark.parametrize(
    ("change", "words"), [({"status": "running"}, "is running"), ({"git": GIT | {"dirty": True}}, "changed")]
)
def test_only_a_finished_warm_start_of_committed_code_is_packed(packed, tmp_path, change, words):
    run, _ = packed
    (start,) = json.loads((run / "run.json").read_text())["starts"]
    (run / "run.json").write_text(json.dumps({"starts": [start | change]}))
    with pytest.raises(ValueError, match=words):
        pack(run, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("name", KNOWN)
def test_what_comes_with_the_code_is_whole_and_small(name, tmp_path):
    assert sum(path.stat().st_size for path in (SHIPPED / name).iterdir()) <= 4e6
    assert unpack(name, tmp_path / "policy")
    shutil.rmtree(tmp_path / "policy")
