"""Parts that each have their tests, started together by a command as a person types it.

Fleets of vLLM are in `test_sharded.py` and in the rehearsals of the paper's runs.
"""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]


def test_the_smoke_run_comes_to_its_end_with_transformers_in_place_of_vllm(smoke, ending, tmp_path):
    run = ending(smoke.again(tmp_path / "run", "iterations=2", "engine=hf"))
    assert run.go() == 0, run.said
    assert [line["step"] for line in run.metrics] == [0, 1, 2]
    assert all(line["engine/logprob_gap_mean"] <= 1e-4 for line in run.metrics[1:])
    run.assert_nothing_left()


def test_a_window_of_screenshots_is_sampled_and_trained_alike(smoke, ending, tmp_path):
    """The engine's log-probabilities are the trainer's: both read the same ids and the same screenshots."""
    how = (
        "rollout.settings.image_window=1",
        "module.objective.estimator=step_grpo",
        "module.objective.correction=tis_token",
        "module.objective.high_entropy_steps=0.8",
    )
    run = ending(smoke.again(tmp_path / "run", "iterations=2", *how))
    assert run.go() == 0, run.said
    trajectories = run.trajectories([0, 1])
    assert {trajectory.image_window for trajectory in trajectories} == {1}
    assert max(len(trajectory.steps) for trajectory in trajectories) > 1
    for line in run.metrics[1:]:
        assert line["engine/logprob_gap_max"] <= 1e-3
        assert line["policy/weight_ess"] > 0.999
        assert 0.7 < line["policy/trained_steps"] < 1
        assert line["rollout/lag_max"] == 0
    run.assert_nothing_left()
