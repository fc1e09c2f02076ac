import json
from types import MappingProxyType

import pytest

from arpo.callbacks.evaluation import Evaluation
from arpo.envs.fake import fake_tasks
from arpo.evaluation.settings import EvaluationSettings
from arpo.inference.scripted import ScriptedEngine
from arpo.run.loggers import JsonLinesLogger
from tests.callbacks.support import fit
from tests.rollout.support import red_clicker

LISTS = {"in_domain": fake_tasks(2, kinds=("click",)), "held_out": fake_tasks(3, seed=9, kinds=("click",))}


@pytest.fixture
def run(chat, make_collector, tmp_path):
    """Trains with an engine that solves every task; the pair is the trainer and the engine."""

    def train(*, iterations=3, respond=None, tasks=LISTS, loggers=(), how=MappingProxyType({}), **options):
        engine = ScriptedEngine(chat, respond or red_clicker(chat))
        collector = make_collector(engine=engine, start=False, group_size=2, max_steps=3)
        evaluation = Evaluation(tasks, tmp_path / "eval", EvaluationSettings(**how), **options)
        trainer = fit(tmp_path, collector, [evaluation], loggers=loggers, iterations=iterations)
        return trainer, engine

    return train


def evaluated(tmp_path):
    return [int(path.stem.removeprefix("iteration_")) for path in sorted((tmp_path / "eval").iterdir())]


@pytest.mark.parametrize(
    ("options", "when"),
    [
        ({}, [0, 3]),
        ({"every_n_iterations": 1}, [0, 1, 2, 3]),
        ({"every_n_iterations": 2}, [0, 2, 3]),
        ({"at_start": False}, [3]),
    ],
    ids=str,
)
def test_it_runs_at_the_start_every_n_iterations_and_at_the_end(run, tmp_path, options, when):
    run(**options)
    assert evaluated(tmp_path) == when


def test_success_is_logged_a_list_and_every_task_is_in_the_file(run, tmp_path):
    trainer, _ = run(iterations=1, respond=lambda request: "Action: wait()")
    assert trainer.callback_metrics["val/in_domain/success_rate"].item() == 0.0
    results = json.loads((tmp_path / "eval" / "iteration_000001.json").read_text())
    assert [score["name"] for score in results["held_out"]["tasks"]] == [task.id for task in LISTS["held_out"]]
    assert results["held_out"]["overall"]["episodes"] == 3


def test_the_settings_reach_the_engine(run, tmp_path):
    _, engine = run(iterations=1, how={"rollouts_per_task": 2, "temperature": 0.25})
    tried = [request for request in engine.requests if request.sampling.temperature == 0.25]
    assert len(tried) == 2 * (2 + 3) * 2  # two evaluations of 2 + 3 tasks, 2 rollouts each, one step a click
    results = json.loads((tmp_path / "eval" / "iteration_000001.json").read_text())
    assert results["in_domain"]["overall"]["episodes"] == 4


def test_an_empty_list_is_left_out(run, tmp_path):
    trainer, _ = run(iterations=1, tasks=LISTS | {"held_out": []})
    assert "val/held_out/success_rate" not in trainer.callback_metrics
    assert list(json.loads((tmp_path / "eval" / "iteration_000001.json").read_text())) == ["in_domain"]


def test_an_impossible_number_is_refused(tmp_path):
    with pytest.raises(ValueError, match="every_n_iterations must not be negative, got -1"):
        Evaluation(LISTS, tmp_path, EvaluationSettings(), every_n_iterations=-1)


def test_every_logger_gets_the_evaluation_of_the_untrained_policy_at_step_0(run, tmp_path):
    loggers = [JsonLinesLogger(tmp_path / f"{name}.jsonl") for name in ("one", "other")]
    trainer, _ = run(iterations=2, loggers=loggers)  # the evaluation at the end stands at another step
    for logger in loggers:
        first = json.loads(logger.path.read_text().splitlines()[0])
        assert first["step"] == 0
        assert (first["val/in_domain/success_rate"], first["val/held_out/success_rate"]) == (1.0, 1.0)
        assert first["time/evaluation"] > 0
    assert trainer.callback_metrics["val/held_out/success_rate"].item() == 1.0
    assert trainer.callback_metrics["time/evaluation"].item() > 0
