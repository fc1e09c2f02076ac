import json

import pytest

from arpo.evaluation.scores import Score, evaluate, pass_at_k
from arpo.types import Outcome, Task
from tests.rollout.trajectories import make_trajectory


def score(trajectories, tasks, name="evaluation", success_threshold=0.5, lost=0):
    return evaluate(trajectories, tasks, name=name, success_threshold=success_threshold, lost=lost)


def interval(successes: int, n: int) -> tuple[float, float]:
    return Score("any", n, successes, task_reward=0.0, steps=1.0, outcomes={}).interval


def test_the_wilson_interval_and_pass_at_k_by_hand():
    # p=0, n=4: (z²/8 ± z·√(z²/64)) / (1 + z²/4) = (0.480182 ± 0.480182) / 1.960365
    assert interval(0, 4) == pytest.approx((0.0, 0.489891), abs=1e-6)
    assert interval(4, 4) == pytest.approx((1 - 0.489891, 1.0), abs=1e-6)
    assert pass_at_k(4, 2, 1) == 0.5
    assert pass_at_k(4, 2, 2) == pytest.approx(5 / 6)  # of 6 pairs, 1 holds both failures
    assert pass_at_k(4, 2, 3) == 1.0  # two failures do not fill three places
    assert pass_at_k(4, 0, 4) == 0.0
    for n, c, k in ((4, 2, 5), (4, 5, 1), (4, 2, 0)):
        with pytest.raises(ValueError, match=r"pass@k needs"):
            pass_at_k(n, c, k)


TASKS = [Task("b1", "", domain="b"), Task("a1", "", domain="a"), Task("a2", "", domain="a"), Task("lost", "", "c")]


def example():
    def episode(task_id, reward, outcome=Outcome.FINISHED, steps=2):
        return make_trajectory(task_id=task_id, domain=task_id[0], task_reward=reward, outcome=outcome, steps=steps)

    trajectories = [
        episode("b1", 1.0),
        episode("a2", 0.0, Outcome.MAX_STEPS, steps=4),
        episode("a1", 1.0),
        episode("a1", 0.4, Outcome.PARSE_ERROR),
        episode("a2", 0.0, Outcome.MAX_STEPS, steps=4),
        episode("b1", 0.0),
    ]
    return score(trajectories, TASKS, name="held_out", lost=2)


def test_an_evaluation_counts_by_task_by_domain_and_over_all():
    result = example()
    assert result.success_rate == 2 / 6
    assert result.overall.interval == interval(2, 6)
    assert result.overall.task_reward == pytest.approx(2.4 / 6)  # partial credit counts here and not above
    assert result.overall.steps == pytest.approx(16 / 6)
    assert result.overall.outcomes == {"finished": 3, "max_steps": 2, "parse_error": 1}
    assert [(score.name, score.successes, score.episodes) for score in result.domains] == [("b", 1, 2), ("a", 1, 4)]
    assert [(score.name, score.successes) for score in result.tasks] == [("b1", 1), ("a1", 1), ("a2", 0)]
    assert result.lost == 2


def test_pass_at_k_is_averaged_over_tasks_and_ks_double_up_to_the_most_episodes():
    # pass@1 of a1, b1, a2: 1/2, 1/2, 0; pass@2: 1, 1, 0
    assert example().pass_at_ks == pytest.approx({1: 1 / 3, 2: 2 / 3})
    with pytest.raises(ValueError, match="the most are 2"):
        example().pass_at(3)
    assert list(score([make_trajectory(task_id="a1", domain="a")] * 6, TASKS).pass_at_ks) == [1, 2, 4, 6]


def test_a_result_is_json_and_a_table():
    result = example()
    told = json.loads(json.dumps(result.to_json()))
    assert told["overall"]["success_rate"] == pytest.approx(1 / 3)
    assert told["pass_at"] == pytest.approx({"1": 1 / 3, "2": 2 / 3})
    header, *rows = result.table()
    assert [row[0] for row in rows] == ["b", "a", "all"]
    assert all(len(row) == len(header) for row in rows)
    assert rows[-1][2] == "33.3 %"


def test_a_raised_threshold_makes_partial_credit_a_failure_and_nothing_and_strangers_are_refused():
    partial = [make_trajectory(task_id="a1", domain="a", task_reward=0.6)]
    assert score(partial, TASKS).success_rate == 1.0
    assert score(partial, TASKS, success_threshold=0.6).success_rate == 0.0
    for episodes, said in (([], "no episode"), ([make_trajectory(task_id="other")], "not evaluated")):
        with pytest.raises(ValueError, match=said):
            score(episodes, TASKS)
