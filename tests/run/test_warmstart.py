import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from hydra import compose, initialize_config_dir

from arpo.errors import ConfigError
from arpo.models.families.qwen2_5_vl import make_tiny
from arpo.run.build import compose as compose_file
from arpo.run.build import register_resolvers
from arpo.run.check import check_choices, check_training
from arpo.run.folder import run_name
from arpo.run.warmstart import (
    check_warmstart,
    ensure_model,
    policy_of,
    shared_with_warmstart,
    wait_or_kill,
    write_source,
)

ROOT = Path(__file__).parent.parent.parent


def test_a_checkpoint_that_no_warm_start_would_write_is_refused_before_it_runs(tmp_path):
    (tmp_path / "config.json").touch()
    check_warmstart(str(tmp_path), "warmstart_fake", "out")
    check_warmstart("/nope", None, "out")
    check_warmstart(policy_of("warmstart_fake", "out"), "warmstart_fake", "out")
    with pytest.raises(ConfigError, match=r"no checkpoint at model\.path=/nope, and experiment=warmstart_fake would"):
        check_warmstart("/nope", "warmstart_fake", "out")


def test_an_experiment_that_does_not_exist_is_no_warm_start(tmp_path):
    path = policy_of("warmstart_fkae", "out")
    with pytest.raises(ConfigError, match=r"warmstart=warmstart_fkae is no .*; choose one of warmstart_actions, war"):
        check_warmstart(path, "warmstart_fkae", "out")
    (tmp_path / "config.json").touch()
    check_warmstart(str(tmp_path), "warmstart_fkae", "out")  # it will not run


@pytest.fixture
def entry_point(tmp_path, monkeypatch):
    """Stands in for train.py: a script that does what a test says, and writes down how it was called."""

    def make(code: str) -> Path:
        script = tmp_path / "train.py"
        script.write_text(
            f"import sys\nfrom pathlib import Path\nroot = Path({str(tmp_path)!r})\n"
            f"(root / 'called').write_text(' '.join(sys.argv[1:]))\n{code}"
        )
        monkeypatch.setattr(sys, "argv", [str(script)])
        return tmp_path

    return make


def test_a_warm_start_that_was_killed_may_start_again(tmp_path):
    """The model that it had made takes shorter conversations than an engine would be asked for, by default."""
    make_tiny(tmp_path / "model", corpus=("wait",))
    register_resolvers()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("train", ["experiment=warmstart_fake", f"paths.run_dir={tmp_path}", "resume=auto"])
    check_training(cfg)


def test_a_missing_policy_is_made_by_the_warm_start(entry_point):
    root = entry_point("(root / 'policy').mkdir()\n(root / 'policy' / 'config.json').write_text('{}')")
    ensure_model(root / "policy", "warmstart_fake", "some/outputs")
    assert (root / "called").read_text() == "experiment=warmstart_fake paths.output=some/outputs resume=auto"


WRITES_ALL = """
for name in ("policy/config.json", "demonstrations/demonstration/iteration_000000.jsonl"):
    path = root / "warmstart_fake/default" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
"""


def learner(root, *words):
    """A run that learns from the recordings of its warm start."""
    return compose_file(
        "train", ["experiment=warmstart_actions", f"paths.output={root}", f"paths.run_dir={root}/run", *words]
    )


def test_a_run_that_learns_from_its_warm_start_s_recordings_has_it_run_before_its_tasks_are_checked(entry_point):
    root = entry_point(WRITES_ALL)
    cfg = learner(root)
    assert cfg.source == f"{root}/warmstart_fake/default/demonstrations"
    write_source(cfg, check_choices)
    assert (root / "called").read_text() == f"experiment=warmstart_fake paths.output={root} resume=auto"
    (root / "called").unlink()
    write_source(cfg, check_choices)  # they are there
    assert not (root / "called").exists()


def test_a_warm_start_that_was_killed_among_its_recordings_goes_on_first(entry_point):
    root = entry_point(WRITES_ALL)
    recordings = root / "warmstart_fake/default/demonstrations/demonstration"
    recordings.mkdir(parents=True)
    (recordings / "iteration_000000.jsonl").write_text("{}")
    write_source(learner(root), check_choices)
    assert (root / "called").exists()


def test_what_is_wrong_with_the_choices_of_a_run_is_said_before_its_warm_start_runs(entry_point):
    root = entry_point(WRITES_ALL)
    with pytest.raises(ConfigError, match="iterations must be a whole number"):
        write_source(learner(root, "iterations=0"), check_choices)
    assert not (root / "called").exists()


def test_a_policy_without_recordings_is_told_what_writes_both(entry_point):
    root = entry_point("raise SystemExit(1)")
    (root / "warmstart_fake/default/policy").mkdir(parents=True)
    (root / "warmstart_fake/default/policy/config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"no trajectories in source=.*experiment=warmstart_fake` writes both"):
        write_source(learner(root), check_choices)
    assert not (root / "called").exists()


@pytest.mark.parametrize("words", [["source=elsewhere"], ["warmstart=null"], ["experiment=smoke"]])
def test_nothing_runs_before_the_checks_where_the_recordings_are_not_the_warm_start_s(entry_point, words):
    root = entry_point("raise SystemExit(1)")
    write_source(learner(root, *words), check_choices)
    assert not (root / "called").exists()


def test_a_stage_samples_with_an_engine_that_every_machine_has():
    """The run that goes on from it tells it nothing of its own engine."""
    assert learner("out").engine._target_ == "arpo.inference.hf.HfEngine"


@pytest.mark.parametrize("words", [["model=tiny_qwen3"], ["rollout.settings.image_window=2"]])
def test_the_recordings_are_those_of_the_warm_start_that_knows_the_run(words):
    cfg = compose_file("train", ["experiment=warmstart_actions", "paths.output=out", *words])
    assert cfg.source == f"out/warmstart_fake/{run_name(words)}/demonstrations"
    assert cfg.model.path == f"out/warmstart_fake/{run_name(words)}/policy"


def test_a_warm_start_tells_demonstrations_in_the_image_window_of_the_run(entry_point):
    root = entry_point("(root / 'policy').mkdir()\n(root / 'policy' / 'config.json').write_text('{}')")
    ensure_model(root / "policy", "warmstart_fake", "outputs", image_window=2)
    assert "rollout.settings.image_window=2" in (root / "called").read_text().split()
    cfg = compose_file("train", ["experiment=dart_miniwob", "rollout.settings.image_window=2", "paths.output=out"])
    folder = f"out/warmstart_miniwob_fixed/{run_name(['rollout.settings.image_window=2'])}"
    assert (cfg.model.path, list(cfg.experience)) == (f"{folder}/policy", [f"{folder}/demonstrations"])


def test_a_warm_start_makes_the_model_of_the_run(entry_point):
    root = entry_point("(root / 'policy').mkdir()\n(root / 'policy' / 'config.json').write_text('{}')")
    ensure_model(root / "policy", "warmstart_fake", "outputs", model="tiny_qwen3")
    assert "model=tiny_qwen3" in (root / "called").read_text().split()
    cfg = compose_file("train", ["experiment=dart_miniwob", "model=tiny_qwen3", "paths.output=out"])
    folder = "out/warmstart_miniwob_fixed/model=tiny_qwen3"
    assert (cfg.model.path, list(cfg.experience)) == (f"{folder}/policy", [f"{folder}/demonstrations"])
    cfg = compose_file("train", ["experiment=warmstart_miniwob", "model=tiny_qwen3"])
    assert cfg.datamodule.collector.family == "qwen3_vl"


def test_the_arms_of_the_study_of_methods_replay_the_demonstrations_of_the_warm_start_that_knows_them():
    words = ["model=tiny_qwen3", "rollout.settings.image_window=2"]
    cfg = compose_file("train", ["experiment=methods", "preset=dart_paper", "paths.output=out", *words])
    assert list(cfg.experience) == [f"out/warmstart_sparse/{run_name(words)}/demonstrations"]
    stage = compose_file("train", ["experiment=methods", "warmstart=warmstart_sparse_actions", "paths.output=out"])
    assert list(stage.experience) == ["out/warmstart_sparse/default/demonstrations"]


def test_a_warm_start_learns_to_answer_the_prompt_of_the_run(entry_point):
    root = entry_point("(root / 'policy').mkdir()\n(root / 'policy' / 'config.json').write_text('{}')")
    words = ["experiment=dart_miniwob", "prompt=compact_computer_use", "paths.output=out"]
    cfg = compose_file("train", words)
    ensure_model(root / "policy", "warmstart_fake", "outputs", *shared_with_warmstart(cfg))
    assert "prompt=compact_computer_use" in (root / "called").read_text().split()
    folder = "out/warmstart_miniwob_fixed/prompt=compact_computer_use"
    assert (cfg.model.path, list(cfg.experience)) == (f"{folder}/policy", [f"{folder}/demonstrations"])
    both = compose_file("train", [*words, "model=tiny_qwen3"]).model.path
    assert both == "out/warmstart_miniwob_fixed/model=tiny_qwen3,prompt=compact_computer_use/policy"
    usual = compose_file("train", [words[0], "prompt=compact", words[2]])
    assert usual.model.path == "out/warmstart_miniwob_fixed/default/policy"
    own = compose_file("train", [*words, "prompt._target_=arpo.agent.prompt.Prompt"])
    assert own.model.path == usual.model.path  # no word chooses it


def test_a_warm_start_has_as_many_desktops_as_the_run_and_writes_to_the_same_folder(entry_point):
    root = entry_point("(root / 'policy').mkdir()\n(root / 'policy' / 'config.json').write_text('{}')")
    ensure_model(root / "policy", "warmstart_fake", "some/outputs", 2, desktops=4)
    words = (root / "called").read_text().split()
    assert "env.size=4" in words
    folder = "some/outputs/warmstart_fake/rollout.settings.image_window=2"
    assert f'hydra.run.dir="{folder}"' in words
    cfg = compose_file("train", words[:-1])
    assert cfg.env.size == 4
    assert policy_of("warmstart_fake", "some/outputs", 2) == f"{folder}/policy"


def test_a_policy_that_is_there_is_not_made_again(entry_point):
    root = entry_point("sys.exit(1)")
    (root / "config.json").write_text("{}")
    ensure_model(root, "warmstart_fake", "outputs")
    assert not (root / "called").exists()


def test_a_warm_start_that_fails_ends_the_run_with_its_name(entry_point):
    root = entry_point("sys.exit(3)")
    with pytest.raises(ConfigError, match=r"warm start failed.*experiment=warmstart_fake"):
        ensure_model(root / "policy", "warmstart_fake", "outputs")


def test_a_policy_that_no_warm_start_writes_is_named(entry_point):
    root = entry_point("")
    with pytest.raises(ConfigError, match=r"still nothing at model\.path=.*elsewhere.*writes elsewhere"):
        ensure_model(root / "elsewhere", "warmstart_fake", "outputs")


STUBBORN = """
import os, signal, sys
from pathlib import Path
from arpo.run.warmstart import ensure_model
root = Path(sys.argv[0]).parent
if len(sys.argv) == 1:
    import logging
    logging.basicConfig(level="INFO")
    ensure_model(root / "policy", "warmstart_fake", "outputs")
signal.signal(signal.SIGINT, signal.SIG_IGN)
signals = {signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
print("warming up", flush=True)
signal.sigwait(signals)
print("finishing this iteration", flush=True)
signal.sigwait(signals)
"""


def test_sigint_to_the_run_alone_is_answered_at_once_and_ends_the_warm_start(tmp_path):
    """`kill -INT` reaches the run and not its child, which gets a SIGTERM from it, and a second one if it goes on."""
    script = tmp_path / "train.py"
    script.write_text(STUBBORN)
    process = subprocess.Popen(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    said = []
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if "warming up" in line:
                process.send_signal(signal.SIGINT)
    text = "".join(said)
    assert "stopping the warm start, which may take" in text
    assert "finishing this iteration" in text
    assert process.returncode == -signal.SIGINT, text  # a KeyboardInterrupt that nothing turns into words here


INTERRUPTED = """
import logging, os, sys, time
from pathlib import Path
from omegaconf import OmegaConf
from arpo.run.entry import explained
from arpo.run.warmstart import ensure_model
root = Path(sys.argv[0]).parent
with explained(OmegaConf.create({"paths": {"run_dir": str(root / "run"), "output": str(root)}})):
    if len(sys.argv) == 1:
        ensure_model(root / "policy", "warmstart_fake", "outputs")
    (root / "child.new").write_text(str(os.getpid()))
    (root / "child.new").rename(root / "child")
    time.sleep(60)
"""


def test_ctrl_c_in_a_warm_start_ends_in_a_sentence_and_leaves_no_child(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(INTERRUPTED)
    process = subprocess.Popen(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # as a terminal does: Ctrl-C reaches this process and its child, and nobody else
    )
    try:
        deadline = time.monotonic() + 30
        while not (tmp_path / "child").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
    assert "stopped by Ctrl-C" in said
    assert "Traceback" not in said
    assert process.returncode == 130
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))


TERMINATED = """
import os, sys, time
from pathlib import Path
from arpo.run.build import compose
from arpo.run.entry import explained
from arpo.run.warmstart import write_source
root = Path(sys.argv[0]).parent
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
    script = tmp_path / "train.py"
    script.write_text(TERMINATED)
    with subprocess.Popen(
        [sys.executable, script], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not psutil.pid_exists(child)


def test_a_process_that_does_not_end_in_time_is_killed_and_waited_for():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    wait_or_kill(process, 0.1)
    assert process.returncode == -signal.SIGKILL  # known only to somebody who has waited


def test_a_second_ctrl_c_kills_what_is_waited_for():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        wait_or_kill(process, 30)
    assert process.returncode == -signal.SIGKILL
