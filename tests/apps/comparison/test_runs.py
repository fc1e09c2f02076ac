"""Runs as crashes, people and other programs leave them."""

import pytest

from arpo.apps.comparison.runs import find_runs, read_run, read_runs
from arpo.errors import ConfigError
from arpo.run.folder import run_name
from tests.apps.comparison.folders import START, write_run


def test_a_run_is_read_with_its_evaluations_and_times_and_overrides_unless_its_name_was_cut(tmp_path):
    run = read_run(write_run(tmp_path, "replay=on,seed=3", [0.5, 0.75], seed=3, evaluations={2: {"in_domain": 0.8}}))
    assert (run.seed, run.budget, run.overrides, run.unfinished) == (3, 2, {"replay": "on"}, "")
    assert [line["step"] for line in run.iterations] == [1, 2]
    assert run.evaluations == {2: {"in_domain": 0.8}}
    assert run.wall_s == 100.0
    assert run.commits == {"0123456789"}
    words = [f"rollout.settings.key_{number}=1" for number in range(9)]
    assert read_run(write_run(tmp_path, run_name(words), [0.5])).overrides is None
    assert read_run(write_run(tmp_path, "seed=0", [0.5])).overrides == {}


def test_a_folder_of_runs_stands_for_the_runs_in_it(tmp_path):
    folder = write_run(tmp_path / "study", "seed=0", [0.5])
    (tmp_path / "study" / "comparison").mkdir()
    (tmp_path / "study" / "multirun.yaml").write_text("")
    for pattern in ("study", "study/*", "study/seed=0", "stu*", "study/seed=?"):
        assert find_runs([str(tmp_path / pattern)]) == [folder], pattern


@pytest.mark.parametrize("pattern", ["nothing/*", "empty", "empty/*", "a file"])
def test_a_pattern_without_a_run_is_named(tmp_path, pattern):
    write_run(tmp_path, "seed=0", [0.5])
    (tmp_path / "empty").mkdir()
    (tmp_path / "a file").write_text("")
    with pytest.raises(ConfigError, match=rf"no run is at .*{pattern.replace('*', '.')}: name folders of runs"):
        find_runs([str(tmp_path / "seed=0"), str(tmp_path / pattern)])


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("metrics.jsonl", None, "metrics.jsonl is missing, so it has not begun or is no run"),
        ("config.yaml", None, "config.yaml is missing, so it has not begun or is no run"),
        ("config.yaml", "seed: 1", "config.yaml lacks the seed or the iterations, so it is not of a training"),
        ("run.json", '{"starts": [{}]}', "run.json is broken"),
        ("eval/iteration_000001.json", "{", "eval/iteration_000001.json is broken"),
        ("metrics.jsonl", '{"step": 1}\n{"step": 2, "roll\n{"step": 3}', "line 2 of metrics.jsonl is broken"),
        (
            "metrics.jsonl",
            '{"step": 0, "train/loss": 6.4}\n',
            "it has neither rollouts nor evaluations, like a warm start",
        ),
    ],
)
def test_what_cannot_be_compared_is_left_out_with_the_reason(tmp_path, name, text, reason):
    folder = write_run(tmp_path, "seed=0", [0.5])
    (folder / "eval").mkdir()
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)
    runs, left_out = read_runs([folder])
    assert (runs, list(left_out)) == ([], [f"seed=0: {reason}"])


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        (["finished", "running"], "it has not ended, or was killed"),
        (["finished", "stopped after iteration 2"], "it ended early: stopped after iteration 2"),
        (["RuntimeError: boom", "finished"], ""),  # its last start counts
        (None, ""),  # a run without a record is known by its iterations
    ],
)
def test_a_run_that_says_so_has_not_ended_though_every_iteration_is_there(tmp_path, statuses, said):
    starts = [START | {"status": status} for status in statuses or ()]
    folder = write_run(tmp_path, "seed=0", [0.5, 0.5], starts=starts)
    if statuses is None:
        (folder / "run.json").unlink()
        assert (read_run(folder).commits, read_run(folder).wall_s) == (frozenset(), 0)
    assert read_run(folder).unfinished == said
