"""Lightning's own loggers beside ours: `logger=csv`, `logger=wandb`."""

import csv
import json
from importlib.util import find_spec
from pathlib import Path

import lightning as L
import psutil
import pytest
from omegaconf import DictConfig, OmegaConf
from torch.utils.data import DataLoader

from arpo.errors import ConfigError
from arpo.run.build import compose
from arpo.run.loggers import JsonLinesLogger, TensorBoardLogger, finishing
from arpo.run.rules import check_rules, loggers_are_installed
from arpo.run.train import build_logger, build_trainer


def composed(choice: str, run_dir: Path, *words: str) -> DictConfig:
    cfg = compose("train", [f"logger={choice}", "paths.run_dir=run", *words])  # the same words are composed once
    cfg.paths.run_dir = str(run_dir)
    return cfg


class Counting(L.LightningModule):
    """Logs how many epochs there were."""

    def training_step(self, batch, index):
        return None

    def on_train_epoch_end(self):
        self.log("epochs", float(self.current_epoch + 1))

    def configure_optimizers(self):
        return None


def train(choice: str, run_dir: Path, *words: str, resumed: Path | None = None) -> L.Trainer:
    """A run of three iterations with the loggers of a choice, as `train.py` builds them."""
    cfg = composed(choice, run_dir, *words)
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    small = {
        "callbacks": {},
        "logger": OmegaConf.to_container(cfg.logger, resolve=True),
        "paths": {"run_dir": str(run_dir)},
        "trainer": {"_target_": "lightning.Trainer", "accelerator": "cpu", "max_epochs": 3, **quiet},
    }
    trainer = build_trainer(OmegaConf.create(small), resumed)
    with finishing(trainer.loggers):
        trainer.fit(Counting(), DataLoader([0]))
    return trainer


def epochs(path: Path) -> list[float]:
    with path.open(newline="") as file:
        return [float(row["epochs"]) for row in csv.DictReader(file) if row["epochs"]]


def test_a_table_is_written_beside_what_every_run_writes_and_a_resumed_run_has_a_second_one(tmp_path):
    train("csv", tmp_path)
    assert epochs(tmp_path / "csv" / "version_0" / "metrics.csv") == [1, 2, 3]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["epochs"] for line in lines] == [1, 2, 3]
    assert list(tmp_path.glob("events.out.tfevents.*"))
    trainer = train("csv", tmp_path, resumed=Path("iteration_000002.ckpt"))
    (ours,) = (logger for logger in trainer.loggers if isinstance(logger, JsonLinesLogger))
    assert ours.resume_step == 2
    assert any(isinstance(logger, TensorBoardLogger) for logger in trainer.loggers)
    for version in range(2):
        assert epochs(tmp_path / "csv" / f"version_{version}" / "metrics.csv") == [1, 2, 3]


def test_a_table_has_an_iteration_as_soon_as_it_is_logged(tmp_path):
    logger = build_logger(composed("csv", tmp_path).logger.csv, 0)
    for step in (1, 2):
        logger.log_metrics({"epochs": float(step)}, step=step)
        assert epochs(tmp_path / "csv" / "version_0" / "metrics.csv") == list(range(1, step + 1))


def test_a_missing_package_is_a_sentence_that_says_what_to_install(tmp_path):
    nothing = composed("default", tmp_path)
    nothing.logger = None
    for cfg in (nothing, composed("default", tmp_path), composed("csv", tmp_path)):  # what every machine has
        check_rules(cfg, [loggers_are_installed])
    if find_spec("wandb") is not None:
        pytest.skip("wandb is installed")
    with pytest.raises(ConfigError, match=r"logger=wandb needs the package wandb, .*`uv pip install wandb`"):
        check_rules(composed("wandb", tmp_path), [loggers_are_installed])


def test_a_run_is_called_there_by_its_experiment_and_overrides(tmp_path):
    cfg = composed("wandb", tmp_path / "arpo_miniwob" / "replay=off,seed=2")
    assert cfg.logger.wandb.name == "arpo_miniwob/replay=off,seed=2"
    assert set(cfg.logger) == {"tensorboard", "json_lines", "wandb"}


@pytest.mark.slow
def test_two_runs_of_one_process_are_two_runs_there(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("seed=0", "seed=1"):
        (tmp_path / name).mkdir()
        train("wandb", tmp_path / name, "logger.wandb.offline=true")
    for name in ("seed=0", "seed=1"):
        assert len(list((tmp_path / name / "wandb").glob("offline-run-*/run-*.wandb"))) == 1
    alive = [child.name() for child in psutil.Process().children(recursive=True)]
    assert not [name for name in alive if "wandb" in name]
