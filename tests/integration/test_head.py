"""Ray's head is killed in the middle of a run: the run ends by itself, and goes on where it was."""

import pytest

from tests.integration.runs import processes_of

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]


def test_a_run_whose_ray_head_was_killed_ends_by_itself_and_goes_on_with_resume(smoke, ending, tmp_path, monkeypatch):
    # Ray's processes go on without their head for a minute, in which this run would be over.
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "2")
    run = ending(smoke.again(tmp_path / "run", "iterations=4"))
    run.start()
    run.wait_for_rollout(2)
    (head,) = [process for process in processes_of(run.sessions) if process.name() == "gcs_server"]
    head.kill()
    assert run.wait() != 0

    assert run.go("resume=auto") == 0, run.said
    assert run.trajectories(range(4)) == smoke.run.trajectories(range(4))  # as if nothing had been
    run.assert_nothing_left()
