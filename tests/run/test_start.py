import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from arpo.callbacks.checkpoint import AtomicCheckpointIO
from arpo.errors import ConfigError
from arpo.run.start import ensure_model, find_checkpoint, forget_later, hold, refuse_to_overwrite, run_name


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "default"),
        (["experiment=arpo_miniwob"], "default"),
        (["experiment=arpo_miniwob", "seed=2", "replay=off"], "replay=off,seed=2"),
        (["seed=2", "resume=auto", "paths.output=elsewhere", "hydra.verbose=true"], "seed=2"),
        (
            ["module.optimizer.lr=1e-5", "module.objective.clip_low=-0.1"],
            "module.objective.clip_low=-0.1,module.optimizer.lr=1e-5",
        ),
        (["seed=2", "iterations=100"], "seed=2"),
        (["model.path=/data/UI-TARS 1.5"], "model.path=_data_UI-TARS_1.5"),
        (["tasks.train.seeds=[1,2]"], "tasks.train.seeds=_1,2_"),
    ],
    ids=str,
)
def test_a_run_is_named_by_what_makes_it_different(overrides, name):
    assert run_name(overrides) == name


def test_the_order_of_overrides_makes_no_other_run():
    assert run_name(["seed=1", "replay=off"]) == run_name(["replay=off", "seed=1"])


def test_a_name_is_never_too_long_for_a_folder_and_still_its_own():
    names = {run_name([f"tasks.train.pages=[{'click-test,' * 40}{last}]"]) for last in "ab"}
    assert len(names) == 2
    assert all(len(name) <= 100 for name in names)


def save(path: Path) -> Path:
    AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(3)}, path)
    return path


def test_a_new_run_has_no_checkpoint(tmp_path):
    save(tmp_path / "iteration_000001.ckpt")
    assert find_checkpoint(None, tmp_path) is None


def test_resume_auto_finds_the_newest_of_this_run_or_begins(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        assert find_checkpoint("auto", tmp_path / "missing") is None
    assert "starting from the beginning" in caplog.text
    save(tmp_path / "iteration_000009.ckpt")
    newest = save(tmp_path / "iteration_000010.ckpt")
    assert find_checkpoint("auto", tmp_path) == newest


def test_resume_takes_a_file_and_says_when_it_is_not_there(tmp_path):
    path = save(tmp_path / "iteration_000001.ckpt")
    assert find_checkpoint(str(path), tmp_path) == path
    with pytest.raises(ConfigError, match=r"resume=.*gone\.ckpt: there is no such checkpoint; resume=auto"):
        find_checkpoint(str(tmp_path / "gone.ckpt"), tmp_path)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = save(tmp_path / "other" / "checkpoints" / "iteration_000001.ckpt")
    with pytest.raises(ConfigError, match=r"belongs to another run than .*mine\. Go on there"):
        find_checkpoint(str(path), tmp_path / "mine" / "checkpoints")


def test_a_run_of_which_every_checkpoint_is_damaged_does_not_begin_anew(tmp_path):
    (tmp_path / "iteration_000001.ckpt").write_bytes(b"half")
    with pytest.raises(ConfigError, match=r"every checkpoint in .* is damaged"):
        find_checkpoint("auto", tmp_path)


def test_what_lies_beyond_the_checkpoint_that_is_resumed_is_removed(tmp_path):
    kept, *later = [save(tmp_path / "checkpoints" / f"iteration_{number:06d}.ckpt") for number in (35, 40, 50)]
    evaluations = [tmp_path / "eval" / f"iteration_{number:06d}.json" for number in (0, 35, 50)]
    evaluations[0].parent.mkdir()
    for path in evaluations:
        path.write_text("{}")
    forget_later(tmp_path, kept)
    assert [path.exists() for path in (kept, *later)] == [True, False, False]
    assert [path.exists() for path in evaluations] == [True, True, False]


def test_a_folder_is_held_by_one_process_at_a_time(tmp_path):
    code = f"from pathlib import Path; from arpo.run.start import hold; hold(Path({str(tmp_path)!r})).__enter__()"

    def try_in_another_process() -> "subprocess.CompletedProcess[str]":
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    with hold(tmp_path):
        refused = try_in_another_process()
    assert refused.returncode != 0
    assert "another process is working in" in refused.stderr
    assert try_in_another_process().returncode == 0


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path):
    refuse_to_overwrite(tmp_path / "missing", None)
    (tmp_path / "metrics.jsonl").touch()
    refuse_to_overwrite(tmp_path, None)  # a run that ended before its first iteration leaves an empty file
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    refuse_to_overwrite(tmp_path, "auto")
    with pytest.raises(ConfigError, match=r"already holds a run\. Continue it with resume=auto"):
        refuse_to_overwrite(tmp_path, None)


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


def test_a_missing_policy_is_made_by_the_warm_start(entry_point):
    root = entry_point("(root / 'policy').mkdir()\n(root / 'policy' / 'config.json').write_text('{}')")
    ensure_model(root / "policy", "warmstart_fake", "some/outputs")
    assert (root / "called").read_text() == "experiment=warmstart_fake paths.output=some/outputs resume=auto"


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
