import logging
import subprocess
import sys
from pathlib import Path

import pytest

from arpo.errors import ConfigError
from arpo.run.folder import check_resume, hold, rank, refuse_to_overwrite, remove_empty, run_name


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


def test_resume_takes_a_file_and_says_when_it_is_not_there(tmp_path):
    path = touch(tmp_path / "iteration_000001.ckpt")
    check_resume(str(path), tmp_path)
    check_resume("auto", tmp_path)
    check_resume(None, tmp_path)
    with pytest.raises(ConfigError, match=r"resume=.*gone\.ckpt: there is no such checkpoint; resume=auto"):
        check_resume(str(tmp_path / "gone.ckpt"), tmp_path)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = touch(tmp_path / "other" / "checkpoints" / "iteration_000001.ckpt")
    with pytest.raises(ConfigError, match=r"belongs to another run than .*mine\. Continue there"):
        check_resume(str(path), tmp_path / "mine" / "checkpoints")


def test_a_folder_is_held_by_one_process_at_a_time(tmp_path):
    code = f"from pathlib import Path; from arpo.run.folder import hold; hold(Path({str(tmp_path)!r})).__enter__()"

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


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_a_run_that_holds_its_folder_logs_into_it(tmp_path):
    with hold(tmp_path):
        logging.getLogger("arpo").warning("inside")
    logging.getLogger("arpo").warning("after")
    assert "inside" in (tmp_path / "train.log").read_text()
    assert "after" not in (tmp_path / "train.log").read_text()


def test_another_process_of_the_same_run_does_not_take_the_folder(tmp_path, monkeypatch):
    assert rank() == 0
    with hold(tmp_path):
        monkeypatch.setenv("LOCAL_RANK", "2")
        assert rank() == 2
        with hold(tmp_path):
            assert (tmp_path / "train_process_2.log").exists()


def test_the_folder_of_a_run_that_did_not_begin_disappears_with_the_empty_ones_around_it(tmp_path):
    run_dir = tmp_path / "out" / "smoke" / "default"
    run_dir.mkdir(parents=True)
    (tmp_path / "out" / "other").touch()
    remove_empty(run_dir, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["other"]
    (tmp_path / "out" / "other").unlink()
    run_dir.mkdir(parents=True)
    remove_empty(run_dir, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_removed_above_a_folder_that_lies_elsewhere(tmp_path):
    run_dir = tmp_path / "mine" / "run"
    run_dir.mkdir(parents=True)
    remove_empty(run_dir, tmp_path / "out")
    assert (tmp_path / "mine").is_dir()
    assert not run_dir.exists()
    remove_empty(run_dir, tmp_path / "out")  # nothing is there any more


def test_a_folder_that_holds_anything_stays(tmp_path):
    (tmp_path / "file").touch()
    remove_empty(tmp_path, tmp_path)
    assert (tmp_path / "file").exists()
