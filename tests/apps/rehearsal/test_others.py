"""Rehearsals of the runs in one process, beside the paper's."""

import pytest

from tests.apps.rehearsal.play import check_played

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]


@pytest.mark.parametrize(("experiment", "size"), [("arpo_miniwob", 4), ("arpo_desktop32", 8), ("replay_ablation", 8)])
def test_the_run_is_played_killed_and_played_to_its_end(experiment, size, output):
    check_played(experiment, output, episodes=3 * 2 * size)  # 3 iterations of 2 groups


@pytest.mark.parametrize("experiment", ["dart_miniwob", "dart_desktop32"])  # one engine, and a fleet of two
def test_the_run_of_dart_asks_for_as_many_episodes_as_its_tasks_need(experiment, output):
    check_played(experiment, output, episodes=None)
