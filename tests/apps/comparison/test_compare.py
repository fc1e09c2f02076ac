"""What is measured of a run, in numbers computed by hand."""

import pytest

from arpo.apps.comparison import compare as measures
from arpo.apps.comparison.runs import read_run
from tests.apps.comparison.folders import write_run

SUCCESS = "rollout/success_rate"
SUCCESSES = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]


def run(tmp_path, successes=SUCCESSES, **options):
    return read_run(write_run(tmp_path, "run", successes, **options))


def test_the_final_success_is_the_mean_of_the_last_five_iterations(tmp_path):
    assert measures.final(SUCCESS)(run(tmp_path)) == pytest.approx(0.3)  # (0.1 + 0.2 + 0.3 + 0.4 + 0.5) / 5


def test_a_final_success_with_a_gap_is_unknown_and_not_zero(tmp_path):
    assert measures.final(SUCCESS)(run(tmp_path, [0.5, float("nan"), 0.5])) is None


def test_a_metric_that_no_iteration_has_is_unknown_and_a_count_is_zero(tmp_path):
    silent = run(tmp_path)
    assert measures.mean_of("replay/injected")(silent) is None
    assert measures.count_of("replay/injected")(silent) == 0.0
    assert measures.mean_of("group/all_failed")(silent) == 0.5


def test_only_the_evaluation_after_the_last_update_counts(tmp_path):
    early = run(tmp_path, evaluations={0: {"in_domain": 0.9}, 3: {"in_domain": 0.8}})
    assert measures.evaluated("in_domain")(early) is None
    last = run(tmp_path / "other", evaluations={3: {"in_domain": 0.8}, 6: {"in_domain": 0.7}})
    assert measures.evaluated("in_domain")(last) == 0.7
    assert measures.evaluated("held_out")(last) is None


def test_a_run_without_iterations_has_no_curve_and_no_error(tmp_path):
    offline = run(tmp_path, [], budget=4, evaluations={4: {"in_domain": 0.75}})
    found = {measure.key: measure.of(offline) for measure in measures.usual([offline])}
    assert found["evaluated_in_domain"] == 0.75
    assert [found[key] for key in ("first_success", "final_success", "all_failed", "injected_per_iteration")] == [
        None
    ] * 4


def test_every_list_that_a_run_was_evaluated_on_is_measured(tmp_path):
    lists = ("in_domain", "held_out")
    runs = [run(tmp_path / name, evaluations={6: {name: 0.5}}) for name in lists]
    keys = [measure.key for measure in measures.usual(runs, ["policy/entropy"])]
    assert keys[:4] == ["first_success", "final_success", "evaluated_in_domain", "evaluated_held_out"]
    assert keys[-1] == "policy/entropy"
