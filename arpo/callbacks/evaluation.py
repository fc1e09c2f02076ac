"""Evaluation while training: fixed task lists, and settings of their own."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import lightning as L
from typing_extensions import override

from arpo.errors import ConfigError
from arpo.evaluation.evaluate import evaluate_tasks
from arpo.evaluation.settings import EvaluationSettings
from arpo.host.files import write_atomically
from arpo.rollout.hooks import on_rank_zero, runtime_of
from arpo.types import Task

log = logging.getLogger(__name__)


class Evaluation(L.Callback):
    """Evaluation of the current policy on fixed tasks at the start, every n iterations and at the end.

    Logs `val/<list>/success_rate` for every list and writes `eval/iteration_<n>.json` with every task's result.

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
        every_n_iterations: int = 0,
        at_start: bool = True,
    ) -> None:
        if every_n_iterations < 0:
            raise ConfigError(f"every_n_iterations must not be negative, got {every_n_iterations}")
        self.tasks = {name: list(listed) for name, listed in tasks.items() if listed}
        self.directory = Path(directory)
        self.settings = settings
        self.every_n_iterations = every_n_iterations
        self.at_start = at_start
        self.durations: list[float] = []
        """Seconds of every evaluation of this process."""

    @override
    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch == 0 and self.at_start:
            metrics = self._evaluate(trainer, iteration=0)
            if trainer.is_global_zero:
                for logger in trainer.loggers:
                    logger.log_metrics(metrics, step=0)

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        iteration = trainer.current_epoch + 1
        if self.is_due(iteration, trainer.max_epochs):
            metrics = self._evaluate(trainer, iteration)
            pl_module.log_dict(metrics, on_step=False, on_epoch=True, batch_size=1, rank_zero_only=True)

    def is_due(self, iteration: int, last: int | None) -> bool:
        """Return whether an iteration, from 1, ends with an evaluation; `last` is the last one of the run."""
        return iteration == last or bool(self.every_n_iterations and iteration % self.every_n_iterations == 0)

    def _evaluate(self, trainer: L.Trainer, iteration: int) -> dict[str, float]:
        return on_rank_zero(trainer, lambda: self._results(trainer, iteration), elsewhere={})

    def _results(self, trainer: L.Trainer, iteration: int) -> dict[str, float]:
        started = time.monotonic()
        metrics: dict[str, float] = {}
        results = {}
        for name, tasks in self.tasks.items():
            result = evaluate_tasks(runtime_of(trainer), tasks, self.settings, iteration=iteration, name=name)
            results[name] = result.to_json()
            metrics[f"val/{name}/success_rate"] = result.success_rate
            log.info("iteration %d, %s: success %.1f %%", iteration, name, 100 * result.success_rate)
        self.durations.append(time.monotonic() - started)
        metrics["time/evaluation"] = self.durations[-1]
        write_atomically(self.directory / f"iteration_{iteration:06d}.json", json.dumps(results, indent=1))
        return metrics
