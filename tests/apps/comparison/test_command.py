"""`python -m arpo compare`: what it prints and writes, and what it refuses."""

import csv
import json
import re

import pytest

from arpo.__main__ import main as arpo
from tests.apps.comparison.folders import START, STUDY, WORDS, rebuild_replay_ablation, write_run


def main(*words) -> int:
    return arpo(["compare", *words])


def table(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def said(capsys, caplog):
    """What was printed and logged, on one line."""
    caplog.set_level("INFO")
    return lambda: " ".join(f"{capsys.readouterr().out} {caplog.text}".split())


def pair(root, **options):
    for seed in (0, 1):
        write_run(root, f"replay=off,seed={seed}", [0.2] * 5, seed=seed, config={"replay": 0})
        write_run(root, f"replay=on,seed={seed}", [0.3] * 5, seed=seed, config={"replay": 1}, **options)
    return str(root / "*")


def test_the_files_have_every_digit_of_the_study_and_the_page_says_what_it_says(tmp_path):
    """That the study is made again from what it measured is tested with the studies."""
    study = rebuild_replay_ablation(tmp_path) / "comparison"
    assert main(str(study.parent / "*")) == 0
    summary = json.loads((STUDY / "summary.json").read_text("utf-8"))
    keys = {"evaluated_success": "evaluated_in_domain"}  # what is called otherwise there
    found = {(row["arm"], row["seed"]): row for row in table(study / "runs.csv")}
    assert len(found) == len(summary["runs"]) == 10
    for run in summary["runs"]:
        row = found[f"replay={WORDS[run['arm']]}", str(run["seed"])]
        assert {key: float(row[keys.get(key, key)]) for key in run.keys() - {"arm", "seed"}}.items() <= run.items()
    sums = {(row["arm"], row["minus"], row["measure"]): row for row in table(study / "summary.csv")}
    for arm, means in summary["arms"].items():
        for key in means.keys() - {"seeds"}:
            assert float(sums[f"replay={WORDS[arm]}", "", keys.get(key, key)]["mean"]) == means[key], key
    for name, key in (("difference", "final_success"), ("evaluated_difference", "evaluated_in_domain")):
        row = sums["replay=on", "replay=off", key]
        assert {bound: float(row[bound]) for bound in ("mean", "low", "high")} == summary[name]["student"]
        assert row["seeds"] == "5"
    successes = [row["rollout/success_rate"] for row in table(study / "curves.csv")]
    assert sorted(successes) == sorted(row["success"] for row in table(STUDY / "results.csv"))
    page = (study / "comparison.md").read_text("utf-8")
    readme = (STUDY / "README.md").read_text("utf-8")
    for words in (r"\+14\.2 points \[\+10\.0, \+18\.4\]", r"\+14\.5 points \[\+7\.7, \+21\.4\]"):
        assert re.search(words, readme)
        assert re.search(words, page)
    assert "Commit 4eb8cdc9bf; machine: 2 cores, 23.5 GB, no GPU; 2026-11-21." in page
    assert "| `replay` | null | ReplayInjection |" in page
    assert (study / "curves.png").stat().st_size > 10_000


def test_a_table_and_differences_are_printed_and_a_second_call_takes_its_own_folder_for_no_run(tmp_path, said):
    pattern = pair(tmp_path)
    assert main(pattern) == 0
    text = said()
    difference = "+10.0 points [+10.0, +10.0], 2 paired seeds (0, 1); higher."
    assert f"replay=on, success in the last 5 iterations: {difference}" in text
    assert re.search(r"│ replay=on │ 30\.0 % ± 0\.0 .* │ 0, 1 │", text)
    assert f"tables and curves are in {tmp_path / 'comparison'}" in text
    first = (tmp_path / "comparison" / "summary.csv").read_text("utf-8")
    assert main(pattern) == 0
    assert (tmp_path / "comparison" / "summary.csv").read_text("utf-8") == first
    assert "Left out" not in (tmp_path / "comparison" / "comparison.md").read_text("utf-8")


def test_of_several_comparisons_those_are_shown_whose_p_value_survives_all_of_them(tmp_path, said):
    for seed in range(3):
        write_run(tmp_path, f"replay=off,seed={seed}", [0.2] * 5, seed=seed, config={"replay": 0})
        for arm, gains in (("on", (0.1, 0.15, 0.2)), ("pool", (0.1, 0.0, -0.1))):
            success = [0.2 + gains[seed]] * 5
            write_run(tmp_path, f"replay={arm},seed={seed}", success, seed=seed, config={"replay": arm})
    assert main(str(tmp_path / "*"), "--against", "replay=off") == 0
    text = said()
    # t^2 = 27 of 2 degrees of freedom: p = 1 - sqrt(27 / 29) = 0.0351, and twice that is 0.0702
    words = "+15.0 points [+2.6, +27.4], 3 paired seeds (0, 1, 2); not shown to differ (p 0.035, Holm of 2: 0.070)."
    assert words in text
    rows = {row["arm"]: row for row in table(tmp_path / "comparison" / "summary.csv") if row["minus"]}
    assert float(rows["replay=on"]["p_holm"]) == pytest.approx(2 * float(rows["replay=on"]["p_value"]))
    assert float(rows["replay=pool"]["p_holm"]) == pytest.approx(1.0)


def test_another_arm_can_be_the_reference_and_another_metric_compared(tmp_path, said):
    pattern = pair(tmp_path, metrics={"policy/entropy": 0.75, "rollout/success_rate": float("nan")})
    assert main(pattern, "--against", "replay=on", "--metric", "policy/entropy") == 0
    assert "replay=off, success in the last 5 iterations: not known of one of the two." in said()
    assert "policy/entropy" in (tmp_path / "comparison" / "curves.csv").read_text("utf-8").splitlines()[0]
    page = (tmp_path / "comparison" / "comparison.md").read_text("utf-8")
    assert "| policy/entropy, last 5 iterations | – | 0.7500 ± 0.0000 [0.7500, 0.7500] |" in page
    assert "| seeds | 0, 1 | 0, 1 |" in page


def test_evaluations_of_offline_runs_are_compared_without_curves(tmp_path, said):
    for name, rate in (("dpo", 0.5), ("kto", 0.75)):
        write_run(tmp_path, name, [], budget=4, config={"name": name}, evaluations={4: {"in_domain": rate}})
    assert main(str(tmp_path / "*")) == 0
    assert "kto, in_domain, evaluated after the last update: +25.0 points" in said()
    assert not (tmp_path / "comparison" / "curves.png").exists()


def test_what_was_left_out_and_what_is_not_comparable_is_named_with_the_reason(tmp_path, said):
    pattern = pair(tmp_path)
    write_run(tmp_path, "iterations=6", [0.9] * 6, config={"replay": 0})
    write_run(tmp_path, "replay=on,seed=7", [0.9] * 3, seed=7, budget=5)
    (write_run(tmp_path, "replay=on,seed=8", [0.9] * 5, seed=8) / "metrics.jsonl").unlink()
    write_run(tmp_path, "replay=on,seed=9", [0.9] * 5, starts=[START | {"status": "running"}])
    assert main(pattern) == 0
    text, page = said(), (tmp_path / "comparison" / "comparison.md").read_text("utf-8")
    for reason in (
        "replay=on,seed=7: 3 of 5 iterations",
        "replay=on,seed=8: metrics.jsonl is missing, so it has not begun or is no run",
        "replay=on,seed=9: it has not ended, or was killed",
    ):
        assert f"left out: {reason}" in text
        assert reason in page
    assert "replay=on, success in the last 5 iterations: +10.0 points" in text
    reason = "they have different numbers of iterations (iterations: 5 and 6)"
    assert f"iterations=6 is not compared with replay=off: {reason}" in text
    others = [row["minus"] for row in table(tmp_path / "comparison" / "summary.csv") if row["arm"] != "replay=on"]
    assert set(others) == {""}
    assert main(pattern, "--against", "iterations=6") == 2  # with which none can be compared


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nothing/*"], "no run is at nothing/*: name folders of runs, or of several"),
        (["PAIR", "--against", "reply=on"], "there is no arm 'reply=on' to compare with, there are 'replay=off'"),
        (["PAIR", "--metric", "policy/entrpy"], "no run has logged the metric policy/entrpy"),
        (["PAIR", "--out", "FILE"], "cannot write the comparison to"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_status_2(tmp_path, said, words, reason):
    places = {"PAIR": pair(tmp_path / "runs"), "FILE": str(tmp_path / "file" / "folder")}
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(*(places.get(word, word) for word in words)) == 2
    assert reason in said()
