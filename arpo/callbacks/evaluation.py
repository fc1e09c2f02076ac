"""Evaluation while training: fixed task lists, and settings of their own."""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import lightning as L
from typing_extensions import override

from arpo.bounds import NotNegativeInt, checked
from arpo.evaluation.evaluate import evaluate_tasks
from arpo.evaluation.settings import EvaluationSettings
from arpo.host.files import write_atomically
from arpo.rollout.hooks import broadcast, on_rank_zero, runtime_of
from arpo.types import Task

log = logging.getLogger(__name__)


@checked
class Evaluation(L.Callback):
    """Evaluation of the current policy on fixed tasks at the start, every n iterations and at the end.

    Logs `val/<list>/success_rate` for every list and writes `eval/iteration_<n>.json` with every task's result.

    The evaluation at the end follows the checkpoint of the last iteration, so that nothing that ends it costs an
    iteration. A run that was asked to stop leaves it out, and makes up for it when it goes on.

    Args:
        tasks: Task lists by name, such as `in_domain` and `held_out`; an empty list is left out.
        directory: Where the JSON files go.
        settings: How the tasks are tried.
        every_n_iterations: How often; 0 evaluates at the start and the end only.
        at_start: Evaluate the policy before the first update too.
    """

    def __init__(
        self,
        tasks: Mapping[str, Sequence[Task]],
        directory: str | Path,
        settings: EvaluationSettings,
        *,
        every_n_iterations: NotNegativeInt = 0,
        at_start: bool = True,
    ) -> None:
        self.tasks = {name: list(listed) for name, listed in tasks.items() if listed}
        self.directory = Path(directory)
        self.settings = settings
        self.every_n_iterations = every_n_iterations
        self.at_start = at_start
        self.durations: list[float] = []
        """Seconds of every evaluation of this process."""

    @override
    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        done = trainer.current_epoch
        if done:  # the last evaluation of a run that was stopped and goes on now may be missing
            missing = not evaluation_file(self.directory, done).exists()
            due = self.is_due(done, None) and broadcast(missing)
        else:
            due = self.at_start
        if due:
            self._evaluate(trainer, done, partial(_log_at, trainer, done))

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        iteration = trainer.current_epoch + 1
        if iteration != trainer.max_epochs and self.is_due(iteration, trainer.max_epochs):
            log_metrics = partial(pl_module.log_dict, on_step=False, on_epoch=True, batch_size=1, rank_zero_only=True)
            self._evaluate(trainer, iteration, log_metrics)

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        last = trainer.current_epoch
        if last == trainer.max_epochs and not trainer.should_stop:
            self._evaluate(trainer, last, partial(_log_at, trainer, last))

    def is_due(self, iteration: int, last: int | None) -> bool:
        """Return whether an iteration, from 1, ends with an evaluation; `last` is the last one of the run."""
        return iteration == last or bool(self.every_n_iterations and iteration % self.every_n_iterations == 0)

    def episodes(self, iterations: int) -> int:
        """Return the number of episodes that all evaluations of a run play."""
        times = self.at_start + sum(self.is_due(number, iterations) for number in range(1, iterations + 1))
        return times * self.settings.rollouts_per_task * sum(map(len, self.tasks.values()))

    def _evaluate(self, trainer: L.Trainer, iteration: int, log_metrics: Callable[[dict[str, float]], None]) -> None:
        on_rank_zero(trainer, lambda: self._judge(trainer, iteration, log_metrics), elsewhere=None)

    def _judge(self, trainer: L.Trainer, iteration: int, log_metrics: Callable[[dict[str, float]], None]) -> None:
        """Evaluate, log the metrics, and then write the file, which says that all of it was done."""
        started = time.monotonic()
        metrics: dict[str, float] = {}
        results = {}
        for name, tasks in self.tasks.items():
            result = evaluate_tasks(runtime_of(trainer), tasks, self.settings, iteration=iteration, name=name)
            results[name] = result.to_json()
            metrics[f"val/{name}/success_rate"] = result.success_rate
            log.info("iteration %d, %s: success %.1f %%", iteration, name, 100 * result.success_rate)
        self.durations.append(time.monotonic() - started)
        log_metrics(metrics | {"time/evaluation": self.durations[-1]})
        write_atomically(evaluation_file(self.directory, iteration), json.dumps(results, indent=1))


def evaluation_file(directory: str | Path, iteration: int) -> Path:
    """Return the file of the results of the evaluation after an iteration."""
    return Path(directory) / f"iteration_{iteration:06d}.json"


def _log_at(trainer: L.Trainer, iteration: int, metrics: dict[str, float]) -> None:
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=iteration)
