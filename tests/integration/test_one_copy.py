"""Ten iterations of a run whose policy and engine share their weights are those of one with two copies."""

import pytest

from tests.integration.runs import KEEP, Run, assert_same_checkpoint

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    "words",
    [
        ("experiment=smoke", "deterministic=true"),
        pytest.param(("experiment=arpo_miniwob", "deterministic=true"), marks=pytest.mark.browser),
    ],
)
def test_ten_iterations_with_one_copy_of_the_weights_are_those_with_two(ending, sessions, tmp_path, words):
    places = ("iterations=10", f"paths.output={tmp_path}", "callbacks.evaluation=null", KEEP)
    one, two = (ending(Run(tmp_path / name, sessions, *words, *places)) for name in ("one", "two"))
    assert one.go() == 0, one.said
    assert "one copy for the policy and the engine: " in one.said
    assert two.go("engine.one_copy=false") == 0, two.said
    assert "one copy for the policy and the engine: " not in two.said
    learned = [run.learned for run in (one, two)]
    moved = [[line.get("engine/moved_bytes", 0.0) for line in run.metrics] for run in (one, two)]
    assert len(learned[0]) == 10
    assert learned[0] == learned[1]
    assert moved[0] == [0.0] * 10
    assert min(moved[1][1:]) > 0  # the first iteration counts the sync before it
    assert one.trajectories(range(10)) == two.trajectories(range(10))
    assert_same_checkpoint(one.checkpoints[-1], two.checkpoints[-1])
