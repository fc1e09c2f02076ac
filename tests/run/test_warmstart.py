import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from omegaconf import DictConfig
from safetensors.torch import load_file

from arpo.errors import ConfigError
from arpo.models.families.qwen2_5_vl import make_tiny
from arpo.run import warmstart
from arpo.run.build import compose
from arpo.run.check import check_choices, check_training
from arpo.run.folder import run_name
from arpo.run.warmstart import MADE, SHIPPED, WEIGHTS, WarmStart, stop, unpack, write_source
from experiments.warmstarts.pack import pack
from tests.forks import ROOT
from tests.host.watchdogs import wait_until


@pytest.fixture
def entry_point(tmp_path, monkeypatch):
    """Stands in for train.py: a script that does what a test says, and writes down how it was called."""

    def make(code: str) -> Path:
        script = tmp_path / "train.py"
        imports = f"import sys\nfrom pathlib import Path\nroot = Path({str(tmp_path)!r})\n"
        script.write_text(f"{imports}(root / 'called').write_text(' '.join(sys.argv[1:]))\n{code}")
        monkeypatch.setattr(sys, "argv", [str(script)])
        return tmp_path

    return make


def test_a_warm_start_that_was_killed_may_start_again(tmp_path):
    """The model that it had made takes shorter conversations than an engine would be asked for, by default."""
    make_tiny(tmp_path / "model", corpus=("wait",))
    check_training(compose("train", ["experiment=warmstart_fake", f"paths.run_dir={tmp_path}", "resume=auto"]))


def test_a_missing_policy_is_made_by_the_warm_start_with_as_many_desktops_as_the_run_in_the_same_folder(entry_point):
    root = entry_point(WRITES_POLICY)
    WarmStart("warmstart_fake", "some/outputs").ensure(root / "policy")
    assert (root / "called").read_text() == "experiment=warmstart_fake paths.output=some/outputs resume=auto"
    shutil.rmtree(root / "policy")
    windowed = WarmStart("warmstart_fake", "some/outputs", 2)
    windowed.ensure(root / "policy", desktops=4)
    words = (root / "called").read_text().split()
    folder = "some/outputs/warmstart_fake/rollout.settings.image_window=2"
    assert f'hydra.run.dir="{folder}"' in words
    assert compose("train", words[:-1]).env.size == 4
    assert windowed.policy == f"{folder}/policy"


WRITES_POLICY = "(root / 'policy').mkdir()\n(root / 'policy' / 'config.json').write_text('{}')"
WRITES_ALL = """
for name in ("policy/config.json", "demonstrations/demonstration/iteration_000000.jsonl"):
    path = root / "warmstart_fake/default" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
"""


def composed(experiment: str, *words: str) -> DictConfig:
    return compose("train", [f"experiment={experiment}", "paths.output=out", *words])


def learner(root, *words):
    """A run that learns from the recordings of its warm start."""
    return composed("warmstart_actions", f"paths.output={root}", f"paths.run_dir={root}/run", *words)


@pytest.mark.parametrize("killed", [False, True])
def test_a_run_that_learns_from_its_warm_start_s_recordings_has_it_run_or_go_on_before_its_tasks_are_checked(
    entry_point, killed
):
    root = entry_point(WRITES_ALL)
    cfg = learner(root)
    assert cfg.source == f"{root}/warmstart_fake/default/demonstrations"
    with pytest.raises(ConfigError, match="iterations must be a whole number"):
        write_source(learner(root, "iterations=0"), check_choices)
    assert not (root / "called").exists()
    if killed:  # among its recordings
        recordings = root / "warmstart_fake/default/demonstrations/demonstration"
        recordings.mkdir(parents=True)
        (recordings / "iteration_000000.jsonl").write_text("{}")
    write_source(cfg, check_choices)
    assert (root / "called").read_text() == f"experiment=warmstart_fake paths.output={root} resume=auto"
    (root / "called").unlink()
    write_source(cfg, check_choices)  # they are there
    assert not (root / "called").exists()


def test_nothing_runs_before_the_checks_where_the_recordings_are_not_the_warm_start_s_or_its_policy_is_there(
    entry_point,
):
    root = entry_point("raise SystemExit(1)")
    for words in (["source=elsewhere"], ["warmstart=null"], ["experiment=smoke"]):
        write_source(learner(root, *words), check_choices)
    (root / "warmstart_fake/default/policy").mkdir(parents=True)
    (root / "warmstart_fake/default/policy/config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"no trajectories in source=.*experiment=warmstart_fake` writes both"):
        write_source(learner(root), check_choices)
    assert not (root / "called").exists()


@pytest.mark.parametrize(
    ("word", "known"),
    [
        ("rollout.settings.image_window=2", {"image_window": 2}),
        ("model=tiny_qwen3", {"model": "tiny_qwen3"}),
        ("prompt=compact_computer_use", {"prompt": "arpo.agent.prompt.Prompt.compact_computer_use"}),
    ],
)
def test_a_warm_start_knows_the_image_window_the_model_and_the_prompt_of_the_run(entry_point, word, known):
    root = entry_point(WRITES_POLICY)
    WarmStart("warmstart_fake", "outputs", **known).ensure(root / "policy")
    assert word in (root / "called").read_text().split()
    cfg = composed("dart_miniwob", word)
    folder = f"out/warmstart_miniwob_fixed/{run_name([word])}"
    assert (cfg.model.path, list(cfg.experience)) == (f"{folder}/policy", [f"{folder}/demonstrations"])


def test_the_recordings_are_those_of_the_warm_start_that_knows_the_run():
    words = ["model=tiny_qwen3", "rollout.settings.image_window=2"]
    for known in ([words[0]], [words[1]]):
        cfg, folder = composed("warmstart_actions", *known), f"out/warmstart_fake/{run_name(known)}"
        assert (cfg.source, cfg.model.path) == (f"{folder}/demonstrations", f"{folder}/policy")
        assert cfg.engine._target_ == "arpo.inference.hf.HfEngine"  # which every machine has
    cfg = composed("methods", "preset=dart_paper", *words)
    assert list(cfg.experience) == [f"out/warmstart_sparse/{run_name(words)}/demonstrations"]
    stage = composed("methods", "warmstart=warmstart_sparse_actions")
    assert list(stage.experience) == ["out/warmstart_sparse/default/demonstrations"]
    other, own = "prompt=compact_computer_use", "prompt._target_=arpo.agent.prompt.Prompt"  # no word chooses that
    for known, name in (
        ([words[0], other], f"{words[0]},{other}"),
        (["prompt=compact"], "default"),
        ([other, own], "default"),
    ):
        assert composed("dart_miniwob", *known).model.path == f"out/warmstart_miniwob_fixed/{name}/policy"
    assert composed("warmstart_miniwob", "model=tiny_qwen3").datamodule.collector.family == "qwen3_vl"


def test_a_policy_that_is_there_is_not_made_again_and_a_failure_or_a_missing_one_is_named(entry_point):
    warmstart = WarmStart("warmstart_fake", "outputs")
    root = entry_point("sys.exit(3)")
    with pytest.raises(ConfigError, match=r"warm start failed.*experiment=warmstart_fake"):
        warmstart.ensure(root / "policy")
    (root / "called").unlink()
    (root / "config.json").write_text("{}")
    warmstart.ensure(root)
    assert not (root / "called").exists()
    entry_point("")
    with pytest.raises(ConfigError, match=r"still nothing at model\.path=.*elsewhere.*writes elsewhere"):
        warmstart.ensure(root / "elsewhere")


STUBBORN = """
from arpo.run.warmstart import WarmStart
if len(sys.argv) == 1:
    logging.basicConfig(level="INFO")
    WarmStart("warmstart_fake", "outputs").ensure(root / "policy")
signal.signal(signal.SIGINT, signal.SIG_IGN)
signals = {signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
print("warming up", flush=True)
signal.sigwait(signals)
print("finishing this iteration", flush=True)
signal.sigwait(signals)
"""


def program(tmp_path: Path, code: str, **options: Any) -> "subprocess.Popen[str]":
    """Start a `train.py` with this code, to which `root` is its folder."""
    script = tmp_path / "train.py"
    imports = "import logging, os, signal, sys, time\nfrom pathlib import Path\n"
    script.write_text(f"{imports}root = Path(sys.argv[0]).parent\n{code}")
    return subprocess.Popen([sys.executable, script], env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, **options)


def test_sigint_to_the_run_alone_is_answered_at_once_and_ends_the_warm_start(tmp_path):
    """`kill -INT` reaches the run and not its child, which gets a SIGTERM from it, and a second one if it goes on."""
    said = []
    with program(tmp_path, STUBBORN, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for line in process.stdout:
            said.append(line)
            if "warming up" in line:
                process.send_signal(signal.SIGINT)
    text = "".join(said)
    assert "stopping the warm start, which may take" in text
    assert "finishing this iteration" in text
    assert process.returncode == -signal.SIGINT, text  # a KeyboardInterrupt that nothing turns into words here


INTERRUPTED = """
from omegaconf import OmegaConf
from arpo.run.entry import explained
from arpo.run.warmstart import WarmStart
with explained(OmegaConf.create({"paths": {"run_dir": str(root / "run"), "output": str(root)}})):
    if len(sys.argv) == 1:
        WarmStart("warmstart_fake", "outputs").ensure(root / "policy")
    (root / "child.new").write_text(str(os.getpid()))
    (root / "child.new").rename(root / "child")
    time.sleep(60)
"""


def test_ctrl_c_in_a_warm_start_ends_in_a_sentence_and_leaves_no_child(tmp_path):
    # As a terminal does: Ctrl-C reaches this process and its child, and nobody else.
    process = program(tmp_path, INTERRUPTED, stderr=subprocess.PIPE, start_new_session=True)
    try:
        wait_until((tmp_path / "child").exists)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
    assert "stopped by Ctrl-C" in said
    assert "Traceback" not in said
    assert process.returncode == 130
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))


TERMINATED = """
from arpo.run.build import compose
from arpo.run.entry import explained
from arpo.run.warmstart import write_source
if len(sys.argv) == 1:
    words = [f"paths.output={root}", f"paths.run_dir={root}/run"]
    cfg = compose("train", ["experiment=warmstart_actions", *words])
    with explained(cfg):
        write_source(cfg, lambda _: None)
print(os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.mark.long
def test_a_run_that_is_told_to_end_asks_the_warm_start_that_writes_its_recordings_to_end(tmp_path):
    with program(tmp_path, TERMINATED, stdout=subprocess.PIPE) as process:
        child = int(process.stdout.readline())
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not psutil.pid_exists(child)


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_process_that_does_not_end_is_killed_and_waited_for_after_its_graces_or_a_second_ctrl_c(interrupted):
    sleeps = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", sleeps], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    if interrupted:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            stop(process, (30.0, 30.0))
    else:
        stop(process, (0.1, 0.1))
    assert process.returncode == -signal.SIGKILL  # known only to a parent that has waited
    process.stdout.close()


# --- policies that come with the code ---

GIT = {"commit": "c0ffee", "dirty": False}


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """A policy that was packed by the script, as that of `warmstart_mine`; and the run that made it."""
    run = tmp_path / "warmstart_mine" / "default"
    make_tiny(run / "policy", corpus=("wait",), hidden=64)
    start = {"status": "finished", "git": GIT, "command": ["train.py", "experiment=warmstart_mine"], "machine": {}}
    (run / "run.json").write_text(json.dumps({"starts": [start]}))
    monkeypatch.setattr(warmstart, "SHIPPED", tmp_path / "shipped")
    pack(run, tmp_path / "shipped" / "warmstart_mine")
    return run, tmp_path / "shipped" / "warmstart_mine"


def test_a_packed_policy_is_unpacked_in_float32_rounded_to_float16_for_its_owner_to_write(packed, tmp_path):
    run, directory = packed
    for path in (directory, *directory.iterdir()):  # a checkout that nobody may write
        path.chmod(0o555 if path.is_dir() else 0o444)
    unpack("warmstart_mine", tmp_path / "policy")
    directory.chmod(0o755)
    for path in (tmp_path / "policy", *(tmp_path / "policy").iterdir()):
        assert path.stat().st_mode & 0o200
    made, got = load_file(run / "policy" / WEIGHTS), load_file(tmp_path / "policy" / WEIGHTS)
    assert made.keys() == got.keys()
    for name, tensor in got.items():
        assert torch.equal(tensor, made[name].half().float())
    for file in run.joinpath("policy").iterdir():
        assert file.name == WEIGHTS or (tmp_path / "policy" / file.name).read_bytes() == file.read_bytes()
    assert json.loads((directory / MADE).read_text())["command"] == "train.py experiment=warmstart_mine"


@pytest.mark.parametrize("damage", ["half of the weights", "no weights", "no place"])
def test_what_is_damaged_or_has_no_place_is_refused_and_nothing_is_written(packed, tmp_path, damage):
    weights, policy = packed[1] / WEIGHTS, tmp_path / "outputs" / "policy"
    match damage:
        case "half of the weights":
            weights.write_bytes(weights.read_bytes()[:1000])
        case "no weights":
            weights.unlink()
        case "no place":
            policy.parent.touch()
    with pytest.raises(ConfigError, match=r"the policy of .*warmstart_mine cannot be written to .*outputs/policy"):
        unpack("warmstart_mine", policy)
    assert not policy.exists()


def unpack_beside(shipped_at, directory, meeting):
    warmstart.SHIPPED = shipped_at
    meeting.wait()
    for number in range(20):
        unpack("warmstart_mine", directory / str(number))
        assert (directory / str(number) / WEIGHTS).is_file()


def test_of_processes_that_start_at_once_one_unpacks_and_the_others_find_it(packed, tmp_path):
    context = multiprocessing.get_context("fork")
    given = (packed[1].parent, tmp_path / "runs", context.Barrier(3))
    processes = [context.Process(target=unpack_beside, args=given) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert not list((tmp_path / "runs").glob("*.partial"))


def test_a_run_starts_from_a_packed_policy_without_a_warm_start(packed, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["no/such/script"])
    WarmStart("warmstart_mine", str(tmp_path)).ensure(tmp_path / "policy")
    assert (tmp_path / "policy" / "config.json").exists()
    with pytest.raises(ConfigError, match="the warm start failed"):  # conversations of another length: another policy
        WarmStart("warmstart_mine", str(tmp_path), image_window=2).ensure(tmp_path / "windowed")


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        ({"status": "running"}, "default", "is running"),
        ({"git": GIT | {"dirty": True}}, "default", "changed"),
        ({}, "seed=7", "has overrides"),
    ],
)
def test_only_a_finished_warm_start_of_committed_code_without_overrides_is_packed(
    packed, tmp_path, change, name, words
):
    run = packed[0].rename(packed[0].with_name(name))
    (start,) = json.loads((run / "run.json").read_text())["starts"]
    (run / "run.json").write_text(json.dumps({"starts": [start | change]}))
    with pytest.raises(ValueError, match=words):
        pack(run, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("name", sorted(path.parent.name for path in SHIPPED.glob(f"*/{MADE}")))
def test_what_comes_with_the_code_is_whole_and_small(name, tmp_path):
    assert sum(path.stat().st_size for path in (SHIPPED / name).iterdir()) <= 4e6
    unpack(name, tmp_path / "policy")
    shutil.rmtree(tmp_path / "policy")
