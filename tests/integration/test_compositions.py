"""Parts that each have their tests, started together by a command as a person types it.

Fleets of vLLM are in `test_sharded.py` and in the rehearsals of the paper's runs.
"""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]


def test_the_smoke_run_comes_to_its_end_with_transformers_in_place_of_vllm(smoke, ending, tmp_path):
    run = ending(smoke.again(tmp_path / "run", "iterations=2", "engine=hf"))
    assert run.go() == 0, run.said
    assert [line["step"] for line in run.metrics] == [0, 1, 2]
    assert all(line["engine/probe_gap"] <= 1e-4 for line in run.metrics[1:])
    run.assert_nothing_left()
