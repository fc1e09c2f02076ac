"""A training, from its configuration to its exit code."""

import logging
from pathlib import Path

import lightning as L
import torch
from omegaconf import DictConfig, OmegaConf

from arpo.callbacks.checkpoint import AtomicCheckpointIO, iteration_of
from arpo.callbacks.graceful_stop import GracefulStop, end_on_sigterm
from arpo.host.files import write_atomically
from arpo.host.session import Session
from arpo.run.build import build, flatten, required_model
from arpo.run.preflight import check_arguments, preflight
from arpo.run.start import ensure_model, find_checkpoint, forget_later, hold, refuse_to_overwrite

log = logging.getLogger(__name__)


def train(cfg: DictConfig) -> int:
    """Run a training from its configuration and return the exit code.

    Raises:
        ConfigError: When the run cannot start; the message says what to do.
    """
    run_dir = Path(cfg.paths.run_dir)
    preflight(OmegaConf.to_container(cfg.requires, resolve=True), required_model(cfg))  # type: ignore[arg-type]
    check_arguments(OmegaConf.to_container(cfg, resolve=True))
    with hold(run_dir):
        return _train(cfg, run_dir)


def _train(cfg: DictConfig, run_dir: Path) -> int:
    checkpoint = find_checkpoint(cfg.resume, cfg.paths.checkpoints)
    if checkpoint is None:
        refuse_to_overwrite(run_dir, cfg.resume)
    elif iteration_of(checkpoint) >= cfg.iterations:
        log.info("the run is finished: %s is of its last iteration, %d", checkpoint, cfg.iterations)
        return 0
    else:
        forget_later(run_dir, checkpoint)
    end_on_sigterm()
    if cfg.warmstart is not None:
        ensure_model(Path(cfg.model.path), cfg.warmstart, cfg.paths.output)
    torch.set_num_threads(cfg.threads)
    L.seed_everything(cfg.seed, verbose=False)
    session = Session.start()
    datamodule = None
    try:
        write_atomically(run_dir / "config.yaml", OmegaConf.to_yaml(cfg, resolve=True))
        datamodule = build(cfg.datamodule)
        module = build(cfg.module)
        trainer = build_trainer(cfg, checkpoint)
        trainer.fit(module, datamodule=datamodule, ckpt_path=checkpoint)
        return exit_code(trainer)
    finally:
        if isinstance(datamodule, L.LightningDataModule):
            datamodule.teardown("fit")  # Lightning leaves it out when the fit was interrupted
        session.close()


def build_trainer(cfg: DictConfig, checkpoint: Path | None) -> L.Trainer:
    """Build callbacks, loggers and the trainer."""
    resumed = 0 if checkpoint is None else iteration_of(checkpoint)
    callbacks = [build(node) for node in cfg.callbacks.values() if node and node.get("_target_")]
    loggers = [build(node, resume_step=resumed) for node in (cfg.get("logger") or {}).values() if node]
    hyperparameters = flatten(OmegaConf.to_container(cfg, resolve=True))
    for logger in loggers:
        logger.log_hyperparams(hyperparameters)
    trainer: L.Trainer = build(
        cfg.trainer,
        callbacks=callbacks,
        logger=loggers,
        plugins=[AtomicCheckpointIO()],
        default_root_dir=cfg.paths.run_dir,
    )
    return trainer


def exit_code(trainer: L.Trainer) -> int:
    """0, or what a shell expects of a process that a signal ended."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, GracefulStop) and callback.received is not None:
            return 128 + callback.received
    return 0
