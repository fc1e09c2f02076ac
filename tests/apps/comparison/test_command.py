"""`python -m arpo compare`: what it prints and writes, and what it refuses."""

import csv
import json
import re

import pytest

from arpo.apps.comparison.command import main
from tests.apps.comparison.folders import START, STUDY, WORDS, rebuild_replay_ablation, write_run


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The runs of experiments/replay_ablation, compared."""
    folder = rebuild_replay_ablation(tmp_path_factory.mktemp("outputs"))
    assert main([str(folder / "*")]) == 0
    return folder / "comparison"


@pytest.fixture(scope="module")
def summary():
    return json.loads((STUDY / "summary.json").read_text(encoding="utf-8"))


def table(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def said(capsys, caplog) -> str:
    """What was printed and logged, on one line."""
    return " ".join(f"{capsys.readouterr().out} {caplog.text}".split())


def pair(root, seeds=(0, 1), **options):
    for seed in seeds:
        write_run(root, f"replay=off,seed={seed}", [0.2] * 5, seed=seed, config={"replay": 0})
        write_run(root, f"replay=on,seed={seed}", [0.3] * 5, seed=seed, config={"replay": 1}, **options)
    return str(root / "*")


# --- the study of replay, to the digit ------------------------------------------------------------------------------

KEYS = {"evaluated_success": "evaluated_in_domain"}
"""What is called otherwise in the study."""


def test_every_run_is_measured_as_in_the_study(study, summary):
    found = {(row["arm"], row["seed"]): row for row in table(study / "runs.csv")}
    assert len(found) == len(summary["runs"]) == 10
    for run in summary["runs"]:
        row = found[f"replay={WORDS[run['arm']]}", str(run["seed"])]
        for key in run.keys() - {"arm", "seed"}:
            assert float(row[KEYS.get(key, key)]) == run[key], key


def test_the_means_and_the_differences_are_those_of_the_study(study, summary):
    found = {(row["arm"], row["minus"], row["measure"]): row for row in table(study / "summary.csv")}
    for arm, means in summary["arms"].items():
        for key in means.keys() - {"seeds"}:
            assert float(found[f"replay={WORDS[arm]}", "", KEYS.get(key, key)]["mean"]) == means[key], key
    for name, key in (("difference", "final_success"), ("evaluated_difference", "evaluated_in_domain")):
        row = found["replay=on", "replay=off", key]
        assert {bound: float(row[bound]) for bound in ("mean", "low", "high")} == summary[name]["student"]
        assert row["seeds"] == "5"


def test_the_curves_are_those_of_the_study(study):
    found = table(study / "curves.csv")
    measured = {(row["arm"], row["seed"], row["iteration"]): row for row in table(STUDY / "results.csv")}
    arms = {f"replay={word}": arm for arm, word in WORDS.items()}
    assert len(found) == len(measured) == 400
    for row in found:
        of_study = measured[arms[row["arm"]], row["seed"], row["iteration"]]
        assert float(row["rollout/success_rate"]) == float(of_study["success"])
        assert float(row["group/all_failed"]) == float(of_study["all_failed"])
        assert float(row["replay/injected"] or 0) == float(of_study["injected"])


def test_the_page_says_what_the_study_says(study):
    page = (study / "comparison.md").read_text(encoding="utf-8")
    readme = (STUDY / "README.md").read_text(encoding="utf-8")
    for words in (r"\+14\.2 points \[\+10\.0, \+18\.4\]", r"\+14\.5 points \[\+7\.7, \+21\.4\]"):
        assert re.search(words, readme)
        assert re.search(words, page)
    assert "Commit 4eb8cdc9bf; machine: 2 cores, 23.5 GB, no GPU; 2026-11-21." in page
    assert "| `replay` | null | ReplayInjection |" in page
    assert (study / "curves.png").stat().st_size > 10_000


# --- what is printed ------------------------------------------------------------------------------------------------


def test_tables_differences_and_curves_are_printed(tmp_path, capsys, caplog):
    caplog.set_level("INFO")
    assert main([pair(tmp_path)]) == 0
    text = said(capsys, caplog)
    assert (
        "replay=on, success in the last 5 iterations: +10.0 points [+10.0, +10.0], 2 paired seeds (0, 1); higher."
        in text
    )
    assert "● replay=off ▲ replay=on" in text
    assert re.search(r"│ replay=on │ 0, 1 │ 30\.0 % ± 0\.0 ", text)
    assert f"tables and curves are in {tmp_path / 'comparison'}" in text


def test_a_second_call_takes_its_own_folder_for_no_run(tmp_path):
    pattern = pair(tmp_path)
    assert main([pattern]) == 0
    first = (tmp_path / "comparison" / "summary.csv").read_text(encoding="utf-8")
    assert main([pattern]) == 0
    assert (tmp_path / "comparison" / "summary.csv").read_text(encoding="utf-8") == first
    assert "Left out" not in (tmp_path / "comparison" / "comparison.md").read_text(encoding="utf-8")


def test_another_arm_can_be_the_reference(tmp_path, capsys, caplog):
    assert main([pair(tmp_path), "--against", "replay=on"]) == 0
    assert "replay=off, success in the last 5 iterations: -10.0 points" in said(capsys, caplog)


def test_another_metric_can_be_compared(tmp_path):
    pattern = pair(tmp_path, metrics={"policy/entropy": 0.75})
    assert main([pattern, "--metric", "policy/entropy"]) == 0
    assert "policy/entropy" in (tmp_path / "comparison" / "curves.csv").read_text(encoding="utf-8").splitlines()[0]
    page = (tmp_path / "comparison" / "comparison.md").read_text(encoding="utf-8")
    assert "| policy/entropy, last 5 iterations | – | 0.7500 ± 0.0000 [0.7500, 0.7500] |" in page


# --- awkward runs ---------------------------------------------------------------------------------------------------


def test_what_was_left_out_is_named_with_the_reason(tmp_path, capsys, caplog):
    pattern = pair(tmp_path)
    write_run(tmp_path, "replay=on,seed=7", [0.9] * 3, seed=7, budget=5)
    (write_run(tmp_path, "replay=on,seed=8", [0.9] * 5, seed=8) / "metrics.jsonl").unlink()
    write_run(tmp_path, "replay=on,seed=9", [0.9] * 5, starts=[START | {"status": "running"}])
    assert main([pattern]) == 0
    text = said(capsys, caplog)
    for reason in (
        "left out: replay=on,seed=7: 3 of 5 iterations",
        "left out: replay=on,seed=8: there is no metrics.jsonl, so it has not begun",
        "left out: replay=on,seed=9: it has not ended, or was killed",
    ):
        assert reason in text
        assert reason.removeprefix("left out: ") in (tmp_path / "comparison" / "comparison.md").read_text(
            encoding="utf-8"
        )


def test_evaluations_of_offline_runs_are_compared_without_curves(tmp_path, capsys, caplog):
    for name, rate in (("dpo", 0.5), ("kto", 0.75)):
        write_run(tmp_path, name, [], budget=4, config={"name": name}, evaluations={4: {"in_domain": rate}})
    assert main([str(tmp_path / "*")]) == 0
    assert "kto, in_domain, evaluated after the last update: +25.0 points" in said(capsys, caplog)
    assert not (tmp_path / "comparison" / "curves.png").exists()


# --- refusals -------------------------------------------------------------------------------------------------------


def test_an_arm_that_is_not_comparable_is_shown_and_not_paired(tmp_path, capsys, caplog):
    pattern = pair(tmp_path)
    write_run(tmp_path, "iterations=6", [0.9] * 6, config={"replay": 0})
    assert main([pattern]) == 0
    text = said(capsys, caplog)
    assert "replay=on, success in the last 5 iterations: +10.0 points" in text
    reason = "they have different numbers of iterations (iterations: 5 and 6)"
    assert f"iterations=6 is not compared with replay=off: {reason}" in text
    assert {row["minus"] for row in table(tmp_path / "comparison" / "summary.csv") if row["arm"] != "replay=on"} == {
        ""
    }


def test_where_nothing_can_be_compared_the_exit_status_says_so(tmp_path):
    pattern = pair(tmp_path)
    write_run(tmp_path, "iterations=6", [0.9] * 6, config={"replay": 0})
    assert main([pattern, "--against", "iterations=6"]) == 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nothing/*"], "no run is at nothing/*: name folders of runs, or of several"),
        (["PAIR", "--against", "reply=on"], "there is no arm 'reply=on' to compare with, there are 'replay=off'"),
        (["PAIR", "--metric", "policy/entrpy"], "no run has logged the metric policy/entrpy"),
        (["PAIR", "--out", "FILE"], "cannot write the comparison to"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_status_2(tmp_path, capsys, caplog, words, reason):
    places = {"PAIR": pair(tmp_path / "runs"), "FILE": str(tmp_path / "file" / "folder")}
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main([places.get(word, word) for word in words]) == 2
    assert reason in said(capsys, caplog)


def test_what_is_not_known_of_an_arm_is_said(tmp_path, capsys, caplog):
    nothing = {"rollout/success_rate": float("nan"), "policy/entropy": 0.5}
    for seed in (0, 1):
        write_run(tmp_path, f"replay=off,seed={seed}", [0.2] * 5, seed=seed, config={"replay": 0})
        write_run(tmp_path, f"replay=on,seed={seed}", [0.3] * 5, seed=seed, config={"replay": 1}, metrics=nothing)
    assert main([str(tmp_path / "*")]) == 0
    assert "replay=on, success in the last 5 iterations: not known of one of the two." in said(capsys, caplog)
