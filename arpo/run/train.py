"""A training, from its configuration to its exit code."""

import logging
import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from omegaconf import DictConfig, OmegaConf
from torch.distributed.rendezvous import rendezvous
from typing_extensions import override

from arpo.callbacks.checkpoint import (
    AtomicCheckpointIO,
    GracefulStop,
    checkpoints,
    is_valid,
    iteration_of,
    newest_checkpoint,
    remove,
)
from arpo.callbacks.evaluation import Evaluation, evaluation_file
from arpo.callbacks.progress import changes, places
from arpo.datamodules.rollouts import RolloutDataModule
from arpo.errors import ConfigError
from arpo.host.files import write_atomically
from arpo.host.session import Session
from arpo.host.terminal import end_on_signals
from arpo.run.build import build
from arpo.run.evaluate import policy_directory
from arpo.run.folder import hold, rank
from arpo.run.loggers import finishing
from arpo.run.warmstart import WarmStart

log = logging.getLogger(__name__)

LEAVING_S = 60.0
"""The time that other ranks have to leave once all have trained."""
FOUND = "ARPO_RESUMED_CHECKPOINT"
"""The variable by which the first process hands its checkpoint to the others."""
CHECKING = timedelta(hours=4)
"""The longest wait of the others for it: a checkpoint of all weights of a 7B has 93 GiB."""
ATTEMPT = "TORCHELASTIC_RESTART_COUNT"
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def is_over(cfg: DictConfig, done: int) -> bool:
    """Return whether a run that has done so many iterations has nothing left to do, nor an evaluation at its end."""
    evaluations = OmegaConf.select(cfg, "callbacks.evaluation.directory")
    lacks_evaluation = evaluations is not None and not evaluation_file(evaluations, done).exists()
    return done > cfg.iterations or (done == cfg.iterations and not lacks_evaluation)


def _nothing_left(cfg: DictConfig, checkpoint: Path) -> bool:
    """Return whether a checkpoint is the end of its run; then the results are shown, and a missing export is made."""
    run_dir = Path(cfg.paths.run_dir)
    done, export = iteration_of(checkpoint), OmegaConf.select(cfg, "callbacks.export.directory")
    if done >= cfg.iterations and export is not None and rank() == 0 and not (Path(export) / "config.json").exists():
        policy_directory(checkpoint, Path(export))
    over = is_over(cfg, done)
    if over and rank() == 0:
        log.info("the run is finished: iterations=%d, and there is %s", cfg.iterations, checkpoint)
        results = [(f"success, {name}", change) for name, change in changes(run_dir / "eval")]
        for name, line in [*results, *places(run_dir)]:
            log.info("%s: %s", name, line)
    return over


def train(cfg: DictConfig) -> int:
    """Run a training that `check_training` has accepted, and return the exit code."""
    with hold(Path(cfg.paths.run_dir)):
        checkpoint = agreed_checkpoint(cfg.resume, cfg.paths.checkpoints)
        if checkpoint is not None and _nothing_left(cfg, checkpoint):
            return 0
        if checkpoint is not None and rank() == 0:
            forget_later(Path(cfg.paths.run_dir), checkpoint)
        end_on_signals()
        return _fit(cfg, checkpoint)


def _fit(cfg: DictConfig, checkpoint: Path | None) -> int:
    """Fit in a session, and return the exit code."""
    session = Session.start()
    datamodule = trainer = None
    patience_s = 0.0  # where the run fails, other ranks may wait for this one
    try:
        if (warmstart := WarmStart.of(cfg)) is not None:  # in the session: its process is to end with this one
            warmstart.ensure(Path(cfg.model.path), desktops=OmegaConf.select(cfg, "env.size"))
        torch.set_num_threads(cfg.threads)
        expand_segments()
        L.seed_everything(cfg.seed, verbose=False)
        if rank() == 0:  # `torchrun` starts all of them at the same moment
            write_atomically(Path(cfg.paths.run_dir) / "config.yaml", OmegaConf.to_yaml(cfg, resolve=True))
        datamodule = build(cfg.datamodule)
        module = build(cfg.module)
        trainer = build_trainer(cfg, checkpoint)
        if trainer.is_global_zero:
            _announce(trainer, datamodule, cfg)
        with finishing(trainer.loggers):
            trainer.fit(module, datamodule=datamodule, ckpt_path=checkpoint)
        patience_s = LEAVING_S
        return exit_code(trainer)
    finally:
        if isinstance(datamodule, L.LightningDataModule):
            datamodule.teardown("fit")  # Lightning leaves it out when the fit was interrupted
        if trainer is not None:
            leave_ranks(trainer, patience_s)
        session.close()


def _announce(trainer: L.Trainer, datamodule: object, cfg: DictConfig) -> None:
    """Log the places of a run that is about to start, and whether most of it is evaluations."""
    shown = places(Path(cfg.paths.run_dir), begins=isinstance(datamodule, RolloutDataModule))
    log.info("%s", "; ".join(f"{name}: {place}" for name, place in shown))
    if isinstance(datamodule, RolloutDataModule):
        evaluations = [each for each in trainer.callbacks if isinstance(each, Evaluation)]  # type: ignore[attr-defined]
        learned = cfg.iterations * datamodule.episodes_an_iteration
        mention_evaluations(evaluations, iterations=cfg.iterations, learned=learned)


def mention_evaluations(evaluations: Sequence[Evaluation], *, iterations: int, learned: int) -> None:
    """Log that the evaluations of a run play more episodes than it learns from, where they do."""
    played = sum(each.episodes(iterations) for each in evaluations)
    if played <= learned:
        return
    fewer = ["evaluation.rollouts_per_task=1"] * any(each.settings.rollouts_per_task > 1 for each in evaluations)
    fewer += ["callbacks.evaluation.at_start=false"] * any(each.at_start for each in evaluations)
    message = "the evaluations of this run play %d episodes, and its training %d: %s makes them fewer"
    log.info(message, played, learned, " or ".join([*fewer, "callbacks.evaluation=null"]))


def expand_segments() -> None:
    """Let PyTorch's allocator grow its segments, unless the user has set it up: sequences differ in length.

    The pieces that are left between tensors of other sizes took 8 to 11 GiB of a GPU at 64K tokens (experiments/gpu).
    It is no variable, which the engines in Ray's actors would inherit.
    """
    if not any(name in os.environ for name in ALLOCATOR):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def leave_ranks(trainer: L.Trainer, patience_s: float) -> None:
    """Wait until the processes of other ranks that Lightning has started here are gone: the session would end them."""
    launcher = trainer.strategy.launcher
    if not isinstance(launcher, _SubprocessScriptLauncher):
        return
    others = list(launcher.procs)
    launcher.procs.clear()  # Lightning's observer looks at this very list
    deadline = time.monotonic() + patience_s
    for number, process in enumerate(others, start=1):
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        if patience_s and process.returncode != 0:
            how = "is still there" if process.returncode is None else f"left with exit status {process.returncode}"
            log.warning("all iterations are done, and process %d of the run %s", number, how)


def build_trainer(cfg: DictConfig, checkpoint: Path | None) -> L.Trainer:
    """Build callbacks, loggers and the trainer."""
    resumed = 0 if checkpoint is None else iteration_of(checkpoint)
    callbacks = [build(node) for node in cfg.callbacks.values() if node and node.get("_target_")]
    loggers = [build_logger(node, resumed) for node in (cfg.get("logger") or {}).values() if node]
    settings: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]  # a mapping it is
    for logger in loggers:
        logger.log_hyperparams(settings)
    own = {"plugins": [AtomicCheckpointIO()], "default_root_dir": cfg.paths.run_dir}
    return WholeFit.put_into(build(cfg.trainer, callbacks=callbacks, logger=loggers, **own))


class WholeFit(_FitLoop):
    """A fit whose start and end callbacks hear of even where no iteration is left, but the evaluation at the end."""

    @classmethod
    def put_into(cls, trainer: L.Trainer) -> L.Trainer:
        """Let a trainer fit so, and return it."""
        loop = cls(trainer, min_epochs=trainer.min_epochs, max_epochs=trainer.max_epochs)
        loop.epoch_loop, trainer.fit_loop = trainer.fit_loop.epoch_loop, loop
        return trainer

    @property
    @override
    def skip(self) -> bool:
        return self.trainer.limit_train_batches == 0


def build_logger(node: DictConfig, resumed: int) -> Logger:
    """Build a logger; ours hide what an interrupted run wrote beyond the iteration that it goes on from."""
    ours = str(node.get("_target_")).startswith("arpo.run.loggers.")
    logger: Logger = build(node, resume_step=resumed) if ours else build(node)
    return logger


def exit_code(trainer: L.Trainer) -> int:
    """Return 0, or what a shell expects of a process that a signal ended."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, GracefulStop) and callback.received is not None:
            return 128 + callback.received
    return 0


def agreed_checkpoint(resume: str | None, directory: str | Path) -> Path | None:
    """Return the checkpoint to go on from; one process reads it, and the others take its path.

    Processes that Lightning starts inherit the environment of the one that has looked. `torchrun` starts all at once,
    and has a store in which they wait for it. Where there is neither, as with Slurm, each looks for itself.
    """
    if resume is None:
        return None
    store: Any = None
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store, _, _ = next(rendezvous("env://"))
        store.set_timeout(CHECKING)
    key = f"{FOUND}/{os.environ.get(ATTEMPT, '0')}"  # the store outlives the processes
    if rank() != 0 and store is not None:
        path: str = store.get(key).decode()
        # The last one that reads it removes it, or it would still be there for processes that `torchrun` starts again:
        # it counts their attempts, but not those that begin because nodes came or went.
        if store.add(f"{key}/read", 1) == int(os.environ["WORLD_SIZE"]) - 1:
            store.delete_key(key)
            store.delete_key(f"{key}/read")
        return Path(path) if path else None
    if rank() != 0 and FOUND in os.environ:
        return Path(os.environ[FOUND]) if os.environ[FOUND] else None
    found = find_checkpoint(resume, directory)
    os.environ[FOUND] = str(found or "")
    if store is not None:
        store.set(key, os.environ[FOUND])
    return found


def find_checkpoint(resume: str | None, directory: str | Path) -> Path | None:
    """Return the checkpoint that `resume` names, for `auto` the newest valid one of the directory; None to begin."""
    if resume is None:
        return None
    if resume == "auto":
        found = newest_checkpoint(directory)
        if found is None and checkpoints(Path(directory)):
            raise ConfigError(
                f"every checkpoint in {directory} is damaged. Put one back from a copy, or delete the run's folder to "
                "start again"
            )
        log.info("resume=auto: %s", found or "no checkpoint yet, starting from the beginning")
        return found
    path = Path(resume)
    if not is_valid(path):
        raise ConfigError(f"resume={path} is damaged: name an earlier one; resume=auto finds the newest whole one")
    return path


def forget_later(run_dir: Path, checkpoint: Path) -> None:
    """Remove checkpoints and evaluations of later iterations: the run takes another way from here."""
    for path in [*checkpoints(checkpoint.parent), *(run_dir / "eval").glob("iteration_*.json")]:
        if iteration_of(path) > iteration_of(checkpoint):
            log.info("%s lies beyond the checkpoint that the run continues from: removed", path)
            remove(path)
