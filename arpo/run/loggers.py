"""The loggers of a run: TensorBoard for eyes, one JSON line an iteration for programs; Lightning has others.

On the x axis stands the iteration: what was measured after n updates stands at n, the untrained policy at 0.
"""

import importlib
import json
import logging
import math
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch import loggers as lightning_loggers
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from arpo.bounds import NotNegativeInt, checked
from arpo.host.files import write_atomically

log = logging.getLogger(__name__)

LAYOUT: dict[str, list[str]] = {
    "success, training": ["rollout/success_rate"],
    "success, evaluation": ["val/.*/success_rate"],
    "groups without a signal": ["group/all_failed", "group/all_succeeded"],
    "replay": ["replay/injected", "replay/size", "replay/tasks"],
    "entropy": ["policy/entropy"],
    "largest ratio": ["train/ratio_max"],
    "KL divergence": ["train/approx_kl", "train/kl_reference"],
    "clipped tokens": ["train/clip_fraction_low", "train/clip_fraction_high"],
    "gradient norm": ["train/grad_norm"],
    "gap between engine and trainer": ["engine/logprob_gap_mean", "engine/logprob_gap_max"],
    "parse errors and truncation": ["rollout/parse_error", "rollout/truncated"],
    "steps an episode": ["rollout/steps"],
    "seconds an iteration": ["time/rollout", "time/wait", "time/update", "time/sync", "time/evaluation"],
    "policy lag": ["rollout/lag_mean", "rollout/lag_max"],
    "importance weights": ["policy/importance_mean", "policy/importance_max", "policy/weight_max"],
    "effective sample size, share cut": ["policy/importance_ess", "policy/weight_ess", "policy/weight_cut"],
    "environments in use": ["env/leased", "env/acting"],
    "requests of each engine": ["engine/replica_.*/in_flight", "engine/replica_.*/waiting"],
    "tokens a second of each engine": ["engine/replica_.*/tokens_per_s"],
    "caches of each engine": ["engine/replica_.*/prompt_cached", "engine/replica_.*/pictures_cached"],
    "pace": ["time/iteration"],
}
"""The charts of the one page that shows how a run goes, by their metrics; a metric may be a regular expression."""


class TensorBoardLogger(lightning_loggers.TensorBoardLogger):
    """TensorBoard's event files, straight in the folder of the run, with a page of important curves."""

    def __init__(self, save_dir: str | Path, *, resume_step: int = 0) -> None:
        """Name the folder of the run; what an interrupted one wrote beyond `resume_step` is hidden from the curves."""
        purge_step = resume_step + 1 if resume_step else 0  # a crash before the first checkpoint left points too
        super().__init__(save_dir, name="", version="", default_hp_metric=False, purge_step=purge_step)
        self._has_page = False

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if not self._has_page:
            page = {"ARPO": {title: ["Multiline", tags] for title, tags in LAYOUT.items()}}
            self.experiment.add_custom_scalars(page)
            self._has_page = True
        super().log_metrics(metrics, step)


@contextmanager
def finishing(loggers: Sequence[lightning_loggers.Logger]) -> Iterator[None]:
    """End what loggers have begun, however the block ends, or Weights & Biases would go on with it in the next run."""
    try:
        yield
    finally:
        for logger in loggers:
            if isinstance(logger, lightning_loggers.WandbLogger):
                logger.experiment.finish()
                importlib.import_module("wandb").teardown()


@checked
class JsonLinesLogger(lightning_loggers.Logger):
    """A file with one line `{"step": 12, "rollout/success_rate": 0.5, …}` an iteration, whole or absent.

    Values of one step that come in several portions become one line; one that is no finite number is null.
    """

    def __init__(self, path: str | Path, *, resume_step: NotNegativeInt = 0) -> None:
        """Name the file, which is touched with the first value: lines beyond `resume_step` are cut then."""
        super().__init__()
        self.path = Path(path)
        self.resume_step = resume_step
        self._row: dict[str, float | int | None] | None = None
        self._offset = 0

    @property
    @override
    def name(self) -> str:
        return ""

    @property
    @override
    def version(self) -> str:
        return ""

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if step is None:
            raise ValueError(f"a line of {self.path} needs the step that it belongs to, got none for {list(metrics)}")
        if self._row is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            cut_lines(self.path, self.resume_step)
            # The last line may get more values: the evaluation at the end was interrupted.
            lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
            self._offset = sum(map(len, lines[:-1]))
            self._row = json.loads(lines[-1]) if lines else {}
        values: dict[str, float | int | None] = {
            name: float(value) if math.isfinite(value) else None for name, value in metrics.items() if name != "epoch"
        }
        if self._row.get("step") == step:
            values = self._row | values
        elif self.path.exists():
            self._offset = self.path.stat().st_size
        self._row = {"step": step} | values
        with open(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644), "wb", buffering=0) as file:
            file.seek(self._offset)
            file.write(json.dumps(self._row, allow_nan=False).encode() + b"\n")  # one write: the old line or the new
            file.truncate()

    @override
    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the resolved configuration lies beside the file."""


def cut_lines(path: Path, last_step: int) -> None:
    """Keep the whole lines of a metrics file up to a step, none at step 0, and replace the file at once."""
    if not path.exists():
        return
    kept: list[str] = []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if last_step > 0 else []
    for line in lines:
        if not line.endswith("\n") or json.loads(line)["step"] > last_step:
            break
        kept.append(line)
    write_atomically(path, "".join(kept))
    log.info("%s: kept %d lines up to iteration %d", path, len(kept), last_step)
