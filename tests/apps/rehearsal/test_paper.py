"""Rehearsals of the runs of both papers, and of one with an engine that does not come up."""

import pytest

from tests.apps.rehearsal.play import check_played, rehearse

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]


@pytest.mark.parametrize("experiment", ["arpo_subset32", "arpo_full"])
def test_the_paper_s_run_is_played_killed_and_played_to_its_end(experiment, output):
    check_played(experiment, output, episodes=48)  # 2 groups of 8 in each of 3 iterations


def test_the_run_of_dart_s_paper_is_played_on_two_nodes_with_a_fleet_that_is_never_out(output):
    check_played("dart_osworld", output, "replay.remembers=true", episodes=None)


def test_an_engine_that_does_not_come_up_fails_as_in_the_real_run(output):
    broken = "+engine.make_engine.engine_args.mm_processor_cache_type=fp0"
    code, said = rehearse(output, "experiment=arpo_subset32", "gpus=1", broken)
    assert code == 1, said
    assert "the rehearsal failed: the engine did not start in its Ray actor: ValidationError" in said
    assert "fp0" in said


def test_a_composition_that_would_be_refused_is_refused_in_the_same_words(output):
    code, said = rehearse(output, "experiment=arpo_subset32", "~callbacks.weight_sync")
    assert code == 2, said
    assert "no callback sends the policy to the engine" in said
