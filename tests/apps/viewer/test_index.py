"""What the index of a run has beside its episodes."""

import json

from arpo.apps.run_files import read_files
from arpo.apps.viewer import index


def settings_of(run):
    return index.settings_of(read_files(run).config, run)


def curves_of(run):
    return index.curves_of(read_files(run))


def evaluations_of(run):
    return index.evaluations_of(read_files(run))


def origin_of(run):
    return index.origin_of(read_files(run))


def test_a_run_without_its_files_has_defaults(tmp_path):
    settings = settings_of(tmp_path)
    assert (settings.success_threshold, settings.model) == (0.5, None)
    assert (curves_of(tmp_path), evaluations_of(tmp_path), origin_of(tmp_path)) == ({}, [], [])


def test_the_model_is_found_from_where_the_run_was_started(tmp_path):
    run, model = tmp_path / "outputs" / "x" / "default", tmp_path / "outputs" / "warm" / "policy"
    run.mkdir(parents=True)
    model.mkdir(parents=True)
    (model / "tokenizer.json").touch()
    (run / "config.yaml").write_text(
        "model: {path: outputs/warm/policy}\nrollout: {settings: {success_threshold: 0.25}}\n"
    )
    settings = settings_of(run)
    assert settings.success_threshold == 0.25
    assert settings.model == model


def test_a_configuration_that_is_no_yaml_or_names_nothing_breaks_nothing(tmp_path):
    for text in (
        "{",
        "model: 5",
        "[1]",
        "model: {path: nowhere}",
        f"model: {{path: {'long' * 2000}}}",
        "rollout: {settings: {success_threshold: .nan}}",
        f"rollout: {{settings: {{success_threshold: 1{'0' * 400}}}}}",
    ):
        (tmp_path / "config.yaml").write_text(text)
        assert settings_of(tmp_path) == index.Settings(0.5, None)


def test_curves_are_read_from_whole_lines_and_a_repeated_iteration_counts_once(tmp_path):
    lines = [{"step": 1, "policy/entropy": 0.5}, {"step": 2, "policy/entropy": 9}, {"step": 2, "policy/entropy": 0.25}]
    text = "\n".join(map(json.dumps, lines)) + '\nnot json\n{"step": 3, "policy/entropy": NaN}\n{"step": 4, "pol'
    (tmp_path / "metrics.jsonl").write_text(text)
    assert curves_of(tmp_path) == {"policy/entropy": [[1, 0.5], [2, 0.25]]}


def test_evaluations_come_from_their_files_and_odd_ones_are_left_out(tmp_path):
    overall = {"success_rate": 0.5, "interval_low": 0.25, "interval_high": 0.75, "episodes": 8}
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "iteration_000010.json").write_text(json.dumps({"held_out": {"overall": overall, "lost": 1}}))
    (tmp_path / "eval" / "iteration_000020.json").write_text("{")
    (tmp_path / "eval" / "iteration_000030.json").write_text(
        json.dumps({"held_out": {"overall": {"success_rate": 0.5}}})
    )
    (tmp_path / "results.json").write_text(json.dumps({"tasks": {"overall": overall, "lost": 0}}))
    assert evaluations_of(tmp_path) == [
        [10, "held_out", 0.5, 0.25, 0.75, 8, 1],
        [0, "tasks", 0.5, 0.25, 0.75, 8, 0],
    ]


def test_the_origin_is_that_of_the_last_start(tmp_path):
    starts = [
        {"command": ["old.py"]},
        {"command": ["train.py", "seed=1,2"], "git": {"commit": "abc"}, "status": "finished"},
    ]
    (tmp_path / "run.json").write_text(json.dumps({"starts": starts}))
    assert origin_of(tmp_path) == [["command", "python train.py seed=1,2"], ["commit", "abc"], ["status", "finished"]]
