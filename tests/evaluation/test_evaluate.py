"""Evaluations: apart from training, comparable, and honest about what was lost."""

from itertools import pairwise

import pytest

from arpo.envs.fake import fake_tasks
from arpo.errors import RolloutError
from arpo.evaluation.evaluate import evaluate_tasks
from arpo.evaluation.settings import EvaluationSettings
from arpo.rollout.harness import Function
from arpo.types import Outcome
from tests.inference.scripted import ScriptedEngine
from tests.rollout.support import TASKS, PickyDesktop, solver


def test_an_evaluation_is_apart_from_training(chat, make_collector):
    engine = solver(chat)
    collector = make_collector(engine=engine)
    runtime = collector.runtime
    settings = EvaluationSettings(rollouts_per_task=2, temperature=0.6)
    result = evaluate_tasks(runtime, TASKS, settings, iteration=5, name="held_out")
    assert (result.success_rate, result.overall.episodes, result.lost) == (0.5, 8, 0)  # it never does the second click
    assert [score.name for score in result.domains] == ["fake-click", "fake-sequence"]
    assert [score.success_rate for score in result.domains] == [1.0, 0.0]
    assert result.pass_at_ks == {1: 0.5, 2: 0.5}
    assert {request.sampling.temperature for request in engine.requests} == {0.6}
    stored = {trajectory.id for trajectory in runtime.store.read("eval", 5)}
    assert stored == {f"eval-5/held_out/{task}/{member}" for task in range(4) for member in range(2)}
    assert runtime.store.read("train", 5) == []
    assert collector.statistics.state_dict() == {}


def test_evaluations_differ_by_the_policy_alone(chat, make_runtime):
    runtime = make_runtime()

    def seeds(seed=0, **changes):
        settings = EvaluationSettings(rollouts_per_task=2, temperature=1.0, seed=seed)
        result = evaluate_tasks(runtime, TASKS, settings, **changes)
        return [trajectory.seed for trajectory in result.trajectories]

    assert seeds(iteration=1) == seeds(iteration=2, name="again")
    assert len(set(seeds())) == 8
    assert set(seeds()).isdisjoint(seeds(seed=1))


def test_an_evaluation_mixes_a_list_that_goes_by_domain_and_gives_its_results_in_that_order(chat, make_runtime):
    tasks = fake_tasks(8, kinds=["click"]) + fake_tasks(8, kinds=["sequence"])
    result = evaluate_tasks(make_runtime(engine=solver(chat)), tasks, EvaluationSettings(1))
    assert [score.name for score in result.tasks] == [task.id for task in tasks]
    assert [score.name for score in result.domains] == ["fake-click", "fake-sequence"]
    begun = [trajectory.domain for trajectory in result.trajectories]  # in the order of their numbers
    assert sum(one != other for one, other in pairwise(begun)) >= 3


@pytest.mark.parametrize(("protocol", "solved"), [("hard", 0.0), ("standard", 1.0)])
def test_the_protocol_decides_about_infeasible_tasks(chat, make_runtime, protocol, solved):
    runtime = make_runtime(engine=ScriptedEngine(chat, lambda request: "Action: wait()"))
    tasks = fake_tasks(2, kinds=["infeasible"])
    result = evaluate_tasks(runtime, tasks, EvaluationSettings(1, temperature=0.0, protocol=protocol))
    assert result.success_rate == solved
    assert {trajectory.outcome for trajectory in result.trajectories} == {Outcome.MAX_STEPS}


def test_a_result_names_the_agent_that_played(chat, make_runtime):
    agent = Function(function="tests.rollout.agents.acts")
    played = make_runtime(harness=agent, engine=ScriptedEngine(chat, lambda request: "Well."), directory="foreign")
    results = [evaluate_tasks(runtime, TASKS[:1], EvaluationSettings(1)) for runtime in (played, make_runtime())]
    assert [result.to_json()["agent"] for result in results] == ["tests.rollout.agents.acts", "own"]


def test_lost_episodes_of_an_evaluation_count_nowhere(chat, make_runtime):
    runtime = make_runtime(engine=solver(chat), make_env=PickyDesktop)
    result = evaluate_tasks(runtime, TASKS[:2], EvaluationSettings(3))
    assert (result.success_rate, result.overall.episodes, result.lost) == (1.0, 3, 3)
    with pytest.raises(RolloutError, match=r"lost all 3 episodes.*checker is broken"):
        evaluate_tasks(runtime, TASKS[1:2], EvaluationSettings(3))
