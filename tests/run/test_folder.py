import logging
import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.run.folder import folder_name, hold, rank, remove_empty, run_name


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
        (["seed=2", "++resume=auto", "++iterations=9", "++paths.output=x", "++hydra.verbose=true"], "seed=2"),
        (["model.path=/data/UI-TARS 1.5"], "model.path=_data_UI-TARS_1.5-03eeaf6f3390d50d"),
        (["tasks.train.seeds=[1,2]"], "tasks.train.seeds=_1,2_-c8a28de6885cc89e"),
        (["model.path=模型"], "model.path=模型"),
    ],
    ids=str,
)
def test_a_run_is_named_by_what_makes_it_different(overrides, name):
    assert run_name(overrides) == name


PAIRS = [
    (["model.path=/x/m"], ["model.path=/x_m"]),
    (["model.path=/x_m"], ["model.path=_x_m"]),
    (["model.path=x m"], ["model.path=x  m"]),
    (['model.path="x"'], ["model.path='x'"]),
    (["model.path=X"], ["model.path=x"]),
    (["model.path=caf\u00e9"], ["model.path=cafe\u0301"]),
    (["model.path=\u00c5"], ["model.path=\u212b"]),
    (["seed=1", "seed=2"], ["seed=2", "seed=1"]),
    (["a=1,b=2"], ["a=1", "b=2"]),
    (["a=[1,2]"], ["a=[1", "2]"]),
    (["model.path=中" + "文" * 90], ["model.path=中" + "文" * 91]),
    (["a=\udc80"], ["a=\udc81"]),
    (["a=x\n"], ["a=x"]),
    (["~a"], ["_a"]),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_words_that_differ_give_folders_that_differ(one, other):
    assert run_name(one) != run_name(other)
    for words in (one, other):  # and a name that says less than its words is no name of other words
        name = run_name(words)
        assert [name] == words or run_name([name]) != name


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_a_name_is_legal_and_short_whatever_the_words_are(words):
    name = folder_name(*words)
    assert len(name.encode()) + len(".partial.lock") <= 255
    assert not re.search(r"[\x00-\x1f\x7f/\\\\\s:*?\"'<>|]", name)
    assert name[0] not in ".-"
    assert name == folder_name(*words)


@pytest.mark.parametrize("letter", ["中", "é", "a", "🙂", "/", " "])
def test_a_folder_of_that_name_can_be_made(tmp_path, letter):
    for count in (1, 79, 84, 85, 89, 100, 255, 5000):
        name = run_name([f"model.path={letter * count}"])
        assert len(name) <= 100
        os.mkdir(os.path.join(os.fsencode(tmp_path), name.encode()))  # as a run does it, whatever the locale here is


def test_two_evaluations_of_one_second_have_two_folders():
    code = "from arpo.run.folder import start_timestamp as now; print(now(), now())"
    said = [subprocess.check_output([sys.executable, "-c", code], encoding="utf-8").split() for _ in range(2)]
    assert [first == second for first, second in said] == [True, True]
    assert len({first for first, _ in said}) == 2


def test_a_folder_is_held_by_one_process_at_a_time_which_logs_into_it_beside_others_of_its_run(tmp_path, monkeypatch):
    code = f"from pathlib import Path; from arpo.run.folder import hold; hold(Path({str(tmp_path)!r})).__enter__()"

    def try_in_another_process() -> "subprocess.CompletedProcess[str]":
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert rank() == 0
    with hold(tmp_path):
        logging.getLogger("arpo").warning("inside")
        refused = try_in_another_process()
        monkeypatch.setenv("LOCAL_RANK", "2")
        assert rank() == 2
        with hold(tmp_path):
            assert (tmp_path / "train_process_2.log").exists()
    logging.getLogger("arpo").warning("after")
    monkeypatch.delenv("LOCAL_RANK")
    assert refused.returncode != 0
    assert "another process is working in" in refused.stderr
    assert try_in_another_process().returncode == 0
    assert "inside" in (tmp_path / "train.log").read_text()
    assert "after" not in (tmp_path / "train.log").read_text()


def test_the_folder_of_a_run_that_did_not_begin_disappears_with_the_empty_ones_around_it_below_the_output(tmp_path):
    output, mine = tmp_path / "out", tmp_path / "mine" / "run"
    run_dir = output / "smoke" / "default"
    for folder in (run_dir, mine):
        folder.mkdir(parents=True)
    (output / "other").touch()
    remove_empty(run_dir, output)
    assert [path.name for path in output.iterdir()] == ["other"]
    remove_empty(mine, output)  # which lies elsewhere
    remove_empty(mine, output)  # and is gone
    assert list((tmp_path / "mine").iterdir()) == []
    remove_empty(output, output)  # it holds something
    (output / "other").unlink()
    run_dir.mkdir(parents=True)
    remove_empty(run_dir, output)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
