"""Policies that come with the code, and how one is put there."""

import json
import multiprocessing
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
    run = tmp_path / "warmstart_mine" / "default"
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


def flipped(directory):
    content = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


DAMAGES = {
    "weights": (flipped, WEIGHTS),
    "another text": (lambda of: (of / "config.json").write_text("{}"), r"config\.json"),
    "a lost file": (lambda of: (of / "tokenizer.json").unlink(), r"tokenizer\.json"),
    "one too many": (lambda of: (of / "adapter.bin").touch(), r"adapter\.bin"),
    "half a record": (lambda of: (of / MADE).write_text((of / MADE).read_text()[:40]), MADE),
    "a record without hashes": (lambda of: (of / MADE).write_text("{}"), MADE),
    "no record": (lambda of: (of / MADE).unlink(), MADE),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_damaged_is_refused_with_the_command_that_makes_it_and_nothing_is_written(packed, tmp_path, name):
    damage, words = DAMAGES[name]
    damage(packed[1])
    with pytest.raises(ConfigError, match=rf"is damaged: .*{words}.* python train.py experiment=warmstart_mine"):
        unpack("warmstart_mine", tmp_path / "policy")
    assert not (tmp_path / "policy").exists()


def test_a_place_that_cannot_be_written_is_named(packed, tmp_path):
    (tmp_path / "outputs").touch()
    with pytest.raises(ConfigError, match=r"cannot be written to .*outputs/policy"):
        unpack("warmstart_mine", tmp_path / "outputs" / "policy")


def test_a_checkout_that_nobody_may_write_gives_a_policy_that_its_owner_may(packed, tmp_path):
    for path in (packed[1], *packed[1].iterdir()):
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert unpack("warmstart_mine", tmp_path / "policy")
    packed[1].chmod(0o755)
    for path in (tmp_path / "policy", *(tmp_path / "policy").iterdir()):
        assert path.stat().st_mode & 0o200


def unpack_beside(shipped_at, directory, meeting):
    shipped.SHIPPED = shipped_at
    meeting.wait()
    for number in range(20):
        assert unpack("warmstart_mine", directory / str(number))
        assert (directory / str(number) / WEIGHTS).is_file()


def test_of_processes_that_start_at_once_one_unpacks_and_the_others_find_it(packed, tmp_path):
    context = multiprocessing.get_context("fork")
    meeting = context.Barrier(3)
    processes = [
        context.Process(target=unpack_beside, args=(packed[1].parent, tmp_path / "runs", meeting)) for _ in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert not list((tmp_path / "runs").glob("*.partial"))


def test_a_policy_of_another_version_of_the_code_stays_and_is_named(packed, tmp_path, caplog):
    ensure_model(tmp_path / "policy", "warmstart_mine", str(tmp_path))
    caplog.clear()
    ensure_model(tmp_path / "policy", "warmstart_mine", str(tmp_path))
    assert not caplog.records
    made = json.loads((packed[1] / MADE).read_text())
    (packed[1] / MADE).write_text(json.dumps(made | {"commit": "decade"}))
    ensure_model(tmp_path / "policy", "warmstart_mine", str(tmp_path))
    assert f"{tmp_path / 'policy'} came with another version of the code" in caplog.text


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


def test_only_the_experiment_as_it_stands_is_packed(packed, tmp_path):
    other = packed[0].rename(packed[0].with_name("seed=7"))
    with pytest.raises(ValueError, match="has overrides"):
        pack(other, tmp_path / "again")


@pytest.mark.parametrize("name", KNOWN)
def test_what_comes_with_the_code_is_whole_and_small(name, tmp_path):
    assert sum(path.stat().st_size for path in (SHIPPED / name).iterdir()) <= 4e6
    assert unpack(name, tmp_path / "policy")
    shutil.rmtree(tmp_path / "policy")
