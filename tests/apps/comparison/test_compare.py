"""What is measured of a run, in numbers computed by hand."""

import pytest

from arpo.apps.comparison import compare as measures
from arpo.apps.comparison.runs import read_run
from tests.apps.comparison.folders import write_run

SUCCESS = "rollout/success_rate"
SUCCESSES = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]


def run(tmp_path, successes=SUCCESSES, **options):
    return read_run(write_run(tmp_path, "run", successes, **options))


def test_of_a_run_the_end_counts_and_what_was_not_measured_is_unknown(tmp_path):
    silent = run(tmp_path, evaluations={0: {"in_domain": 0.9}, 3: {"in_domain": 0.8}})
    assert measures.final(SUCCESS)(silent) == pytest.approx(0.3)  # (0.1 + 0.2 + 0.3 + 0.4 + 0.5) / 5
    assert measures.final(SUCCESS)(run(tmp_path / "gap", [0.5, float("nan"), 0.5])) is None  # unknown, and not 0
    assert measures.mean_of("replay/injected")(silent) is None
    assert measures.count_of("replay/injected")(silent) == 0.0
    assert measures.mean_of("group/all_failed")(silent) == 0.5
    assert measures.evaluated("in_domain")(silent) is None  # after the last update
    last = run(tmp_path / "other", evaluations={3: {"in_domain": 0.8}, 6: {"in_domain": 0.7}})
    assert measures.evaluated("in_domain")(last) == 0.7
    assert measures.evaluated("held_out")(last) is None


def test_a_run_without_iterations_has_no_curve_and_every_list_that_runs_were_evaluated_on_is_measured(tmp_path):
    offline = run(tmp_path, [], budget=4, evaluations={4: {"in_domain": 0.75}})
    found = {measure.key: measure.of(offline) for measure in measures.usual([offline])}
    assert found["evaluated_in_domain"] == 0.75
    assert {found[key] for key in ("first_success", "final_success", "all_failed", "injected_per_iteration")} == {None}
    runs = [run(tmp_path / name, evaluations={6: {name: 0.5}}) for name in ("in_domain", "held_out")]
    keys = [measure.key for measure in measures.usual(runs, ["policy/entropy"])]
    assert keys[:4] == ["first_success", "final_success", "evaluated_in_domain", "evaluated_held_out"]
    assert keys[-1] == "policy/entropy"
