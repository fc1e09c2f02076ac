import json

import pytest

from arpo.callbacks.checkpoint import AtomicCheckpointIO, IterationCheckpoint, checkpoints, iteration_of
from arpo.callbacks.evaluation import Evaluation
from arpo.callbacks.logs import IterationAxis, RolloutMetrics, RunRecord
from arpo.datamodules.rollouts import RolloutDataModule
from arpo.envs.fake import fake_tasks
from arpo.evaluation.settings import EvaluationSettings
from arpo.rollout.sampler import ShuffledTasks
from arpo.run.loggers import JsonLinesLogger
from arpo.run.train import WholeFit
from tests.callbacks.support import EngineFollows, IdleModule, fit, quiet_trainer
from tests.inference.scripted import ScriptedEngine
from tests.integration.runs import NOT_COMPARED
from tests.rollout.support import red_clicker

LISTS = {"in_domain": fake_tasks(2, kinds=("click",)), "held_out": fake_tasks(3, seed=9, kinds=("click",))}
USUAL = EvaluationSettings()


@pytest.fixture
def run(chat, make_collector, tmp_path):
    """Trains with an engine that solves every task; the pair is the trainer and the engine."""

    def train(*, iterations=3, respond=None, tasks=LISTS, loggers=(), settings=USUAL, **options):
        engine = ScriptedEngine(chat, respond or red_clicker(chat))
        collector = make_collector(engine=engine, start=False, group_size=2, max_steps=3)
        evaluation = Evaluation(tasks, tmp_path / "eval", settings, **options)
        trainer = fit(tmp_path, collector, [IterationAxis(), evaluation], loggers=loggers, iterations=iterations)
        return trainer, engine

    return train


def evaluated(tmp_path):
    return [int(path.stem.removeprefix("iteration_")) for path in sorted((tmp_path / "eval").iterdir())]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


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


def test_every_task_is_tried_as_the_settings_say_and_in_the_file_and_an_empty_list_is_left_out(run, tmp_path):
    settings = EvaluationSettings(rollouts_per_task=2, temperature=0.25)
    wait = {"respond": lambda request: "Action: wait()", "at_start": False}
    _, engine = run(iterations=1, tasks=LISTS | {"empty": []}, settings=settings, **wait)
    results = json.loads((tmp_path / "eval" / "iteration_000001.json").read_text())
    assert list(results) == ["in_domain", "held_out"]
    assert [score["name"] for score in results["held_out"]["tasks"]] == [task.id for task in LISTS["held_out"]]
    overall = results["held_out"]["overall"]
    assert (overall["episodes"], overall["success_rate"]) == (2 * 3, 0.0)
    assert len([each for each in engine.requests if each.sampling.temperature == 0.25]) == 2 * (2 + 3) * 3  # steps


def test_every_logger_gets_the_evaluations_at_the_start_and_at_the_end_in_the_line_of_their_iteration(run, tmp_path):
    loggers = [JsonLinesLogger(tmp_path / f"{name}.jsonl") for name in ("one", "other")]
    run(iterations=2, loggers=loggers, tasks=LISTS | {"empty": []})
    for logger in loggers:
        found = lines(logger.path)
        assert [line["step"] for line in found] == [0, 1, 2]
        assert ["time/evaluation" in line for line in found] == [True, False, True]
        for line in (found[0], found[2]):
            rates = {name: value for name, value in line.items() if name.startswith("val/")}
            assert rates == {"val/in_domain/success_rate": 1.0, "val/held_out/success_rate": 1.0}
            assert line["time/evaluation"] > 0
        assert found[2]["policy/version"] == 2.0


# --- the one at the end, and the checkpoint before it ---


class EndsWithTheEvaluation(JsonLinesLogger):
    """Is killed when the evaluation after some iteration is to be written down."""

    def __init__(self, path, iteration):
        super().__init__(path)
        self.iteration = iteration

    def log_metrics(self, metrics, step=None):
        if step == self.iteration and "time/evaluation" in metrics:
            raise SystemExit(130)
        super().log_metrics(metrics, step)


@pytest.fixture
def go(chat, make_collector, tmp_path):
    """Trains in a folder for some iterations, from the checkpoint of the one in which it stood if it has any."""

    def train(name, *, iterations=2, ends_with=0, stops_in=0, resume=0, every_n_iterations=0):
        directory = tmp_path / name
        engine = ScriptedEngine(chat, red_clicker(chat))
        collector = make_collector(engine=engine, start=False, group_size=2, max_steps=3, directory=f"{name}/episodes")
        module = IdleModule()

        def at_step():
            trained.append(module.policy_version + 1)
            module.trainer.should_stop = module.policy_version + 1 == stops_in

        trained, module.at_step = [], at_step
        path = directory / "metrics.jsonl"
        ends = EndsWithTheEvaluation(path, ends_with)
        evaluation = Evaluation(LISTS, directory / "eval", EvaluationSettings(), every_n_iterations=every_n_iterations)
        checkpoint = IterationCheckpoint(directory / "checkpoints", every_n_iterations=100, keep=3)
        callbacks = [IterationAxis(), RolloutMetrics(), evaluation, RunRecord(directory), checkpoint, EngineFollows()]
        logger = ends if ends_with else JsonLinesLogger(path, resume_step=resume)
        options = {"enable_checkpointing": True, "plugins": [AtomicCheckpointIO()], "logger": [logger]}
        trainer = WholeFit.put_into(quiet_trainer(callbacks, iterations, default_root_dir=directory, **options))
        data = RolloutDataModule(collector, ShuffledTasks(fake_tasks(2), tasks_per_iteration=2, seed=0))
        found = directory / "checkpoints" / f"iteration_{resume:06d}.ckpt"
        trainer.fit(module, data, ckpt_path=found if resume else None)
        return trained

    return train


def learned(directory):
    """What stands in a run's lines, but for how fast it went."""
    found = lines(directory / "metrics.jsonl")
    return [{name: value for name, value in line.items() if not name.startswith(NOT_COMPARED)} for line in found]


def saved(directory):
    return [iteration_of(path) for path in checkpoints(directory / "checkpoints")]


def status(directory):
    return json.loads((directory / "run.json").read_text())["starts"][-1]["status"]


def test_a_run_that_is_killed_in_the_evaluation_at_its_end_has_its_last_checkpoint_and_only_evaluates_again(
    go, tmp_path
):
    assert go("whole") == [1, 2]
    cut = tmp_path / "cut"
    with pytest.raises(SystemExit):
        go("cut", ends_with=2)
    assert saved(cut) == [1, 2]
    assert evaluated(cut) == [0]
    assert "time/evaluation" not in lines(cut / "metrics.jsonl")[-1]
    before = (cut / "checkpoints" / "iteration_000002.ckpt").stat().st_mtime_ns
    assert go("cut", resume=2) == []
    assert evaluated(cut) == evaluated(tmp_path / "whole") == [0, 2]
    assert learned(cut) == learned(tmp_path / "whole")
    assert status(cut) == "finished"
    assert (cut / "checkpoints" / "iteration_000002.ckpt").stat().st_mtime_ns == before  # nor is it written again


@pytest.mark.parametrize(("iterations", "every", "more"), [(2, 0, []), (3, 2, [3])], ids=["as long", "longer"])
def test_a_run_that_is_asked_to_stop_leaves_an_evaluation_to_the_one_that_goes_on_as_long_or_longer(
    go, tmp_path, iterations, every, more
):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert go("whole", iterations=iterations, every_n_iterations=every) == [1, 2, *more]
    assert go("stopped", stops_in=2, every_n_iterations=every) == [1, 2]
    assert saved(stopped) == [1, 2]
    assert evaluated(stopped) == [0]
    assert status(stopped) == "stopped after iteration 2"  # which no comparison takes for finished
    assert go("stopped", iterations=iterations, resume=2, every_n_iterations=every) == more
    assert evaluated(stopped) == evaluated(whole) == [0, 2, *more]
    assert learned(stopped) == learned(whole)
    assert status(stopped) == "finished"
