"""From a composed configuration to a run; used by both entry points."""

import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
import transformers
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from arpo.callbacks.checkpoint import AtomicCheckpointIO, iteration_of
from arpo.callbacks.export import export_policy
from arpo.callbacks.graceful_stop import GracefulStop, end_on_sigterm
from arpo.errors import ArpoError, ConfigError
from arpo.evaluation.evaluate import evaluate_tasks
from arpo.evaluation.scores import EvaluationResult
from arpo.evaluation.selection import chosen_config, select_tasks
from arpo.evaluation.settings import EvaluationSettings
from arpo.host.session import Session
from arpo.models.policy import Policy
from arpo.rollout.runtime import RolloutRuntime
from arpo.run.preflight import check_arguments, preflight
from arpo.run.start import ensure_model, find_checkpoint, forget_later, hold, refuse_to_overwrite, run_name
from arpo.types import Task

log = logging.getLogger(__name__)


def register_resolvers() -> None:
    """Teach OmegaConf what our YAML uses; idempotent."""
    OmegaConf.register_new_resolver("run_name", lambda overrides: run_name(list(overrides)), replace=True)


def quiet() -> None:
    """Silence what libraries say about themselves, so that what a run says can be read."""
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch.trainer.connectors.checkpoint_connector").setLevel(logging.WARNING)
    logging.getLogger("vllm").setLevel(logging.ERROR)
    for message in (
        ".*sync_dist=True.*",  # vLLM initialises torch.distributed with one process; there is nothing to sync
        ".*isinstance\\(treespec, LeafSpec\\).*",
        ".*torch.distributed.reduce_op.*",
        ".*IterableDataset. has .__len__. defined.*",
        ".*does not have many workers.*",
        ".*You have overridden `transfer_batch_to_device`.*",
    ):
        warnings.filterwarnings("ignore", message=message)


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
        (run_dir / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
        datamodule = build(cfg.datamodule)
        module = build(cfg.module)
        trainer = build_trainer(cfg, checkpoint)
        trainer.fit(module, datamodule=datamodule, ckpt_path=checkpoint)
        return exit_code(trainer)
    finally:
        if isinstance(datamodule, L.LightningDataModule):
            datamodule.teardown("fit")  # Lightning leaves it out when the fit was interrupted
        session.close()


def evaluate(cfg: DictConfig) -> int:
    """Evaluate a policy on task lists, or choose tasks by it: conf/evaluate.yaml and conf/select.yaml.

    Raises:
        ConfigError: When the checkpoint cannot be read or the run cannot start here.
    """
    if OmegaConf.is_missing(cfg, "checkpoint"):
        raise ConfigError("say what to evaluate: checkpoint=DIR/checkpoints/NAME.ckpt of a run, or a model directory")
    check_export(cfg.export, Path(cfg.checkpoint))
    end_on_sigterm()
    with Session.start() as session:
        directory = policy_directory(Path(cfg.checkpoint), Path(cfg.export or session.directory / "policy"))
        if cfg.export is not None:
            log.info("the policy is in %s", directory)
            return 0
        cfg.model.path = str(directory)
        preflight(OmegaConf.to_container(cfg.requires, resolve=True), directory)  # type: ignore[arg-type]
        check_arguments(OmegaConf.to_container(cfg, resolve=True))
        tasks = {name: build(cfg.tasks[name]) for name in cfg.lists}
        runtime: RolloutRuntime = build(cfg.rollout)
        try:
            runtime.start()
            if "selection" in cfg:
                select(cfg, runtime, tasks)
            else:
                report(cfg, runtime, tasks)
        finally:
            runtime.close()
    return 0


def report(cfg: DictConfig, runtime: RolloutRuntime, tasks: Mapping[str, Sequence[Task]]) -> None:
    """Evaluate on each list, write `results.json`, and print a table a list."""
    settings: EvaluationSettings = build(cfg.evaluation)
    results = {name: evaluate_tasks(runtime, listed, settings, name=name) for name, listed in tasks.items() if listed}
    path = Path(cfg.paths.run_dir) / "results.json"
    path.write_text(json.dumps({name: result.to_json() for name, result in results.items()}, indent=1))
    for result in results.values():
        show(result)
    log.info("every task's result is in %s", path)


def select(cfg: DictConfig, runtime: RolloutRuntime, tasks: Mapping[str, Sequence[Task]]) -> None:
    """Choose from each list, write the tasks that stay as a group of `conf/tasks`, and print a table a list."""
    run_dir = Path(cfg.paths.run_dir)
    groups: Any = OmegaConf.to_container(cfg.tasks, resolve=False)
    settings: EvaluationSettings = build(cfg.evaluation)
    judged = {}
    for name, listed in tasks.items():
        selection = select_tasks(runtime, listed, build(cfg.selection), settings, name=name)
        groups = chosen_config(groups, name, selection.kept)
        judged[name] = selection.to_json()
        print_table(selection.table(), title=name, caption=f"{len(selection.kept)} of {len(listed)} tasks are kept")
    (run_dir / "selection.json").write_text(json.dumps(judged, indent=1))
    header = (
        f"# Tasks chosen by {settings.rollouts_per_task} attempts of {cfg.checkpoint} at each; see selection.json.\n"
    )
    (run_dir / "selected.yaml").write_text(header + OmegaConf.to_yaml(groups))
    log.info("copy %s to conf/tasks/NAME.yaml and train with tasks=NAME", run_dir / "selected.yaml")


def show(result: EvaluationResult) -> None:
    """Print a table a domain."""
    passes = ", ".join(f"pass@{k} {100 * value:.1f} %" for k, value in result.pass_at_ks.items())
    print_table(result.table(), title=result.name, caption=passes)


def print_table(rows: Sequence[Sequence[str]], *, title: str, caption: str) -> None:
    """Print rows of text, the header first."""
    header, *body = rows
    table = Table(*header, title=title, caption=caption)
    for row in body:
        table.add_row(*row)
    Console().print(table)


def check_export(export: str | None, checkpoint: Path) -> None:
    """Check that an export has something to do, and nothing to destroy.

    Raises:
        ConfigError: When the directory is in use, or the checkpoint is an exported one already.
    """
    if export is None:
        return
    if Path(export).exists() and (not Path(export).is_dir() or any(Path(export).iterdir())):
        raise ConfigError(f"export={export} exists and is not empty: name a new directory, or delete that one")
    if (checkpoint / "config.json").exists():
        raise ConfigError(f"checkpoint={checkpoint} is a directory that engines load already: copy it instead")


def policy_directory(checkpoint: Path, export: Path) -> Path:
    """Give a directory that engines load: the checkpoint itself, or what `export` becomes from a `.ckpt`.

    Raises:
        ConfigError: When there is nothing to read.
    """
    if (checkpoint / "config.json").exists():
        return checkpoint
    config = checkpoint.parent.parent / "config.yaml"
    if not checkpoint.is_file() or not config.exists():
        raise ConfigError(
            f"checkpoint={checkpoint} is neither a Hugging Face directory nor a .ckpt inside the folder of its run"
        )
    policy: Policy = build(OmegaConf.select(OmegaConf.load(config), "model.policy"))()
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
    policy.load_state_dict({name.removeprefix("policy."): tensor for name, tensor in state.items()})
    export_policy(policy, export)
    return export


def build(node: Any, **kwargs: Any) -> Any:
    """Build the object of a configuration node.

    Raises:
        ConfigError: When a constructor refuses its arguments, with its own words and the node's place.
    """
    try:
        return instantiate(node, **kwargs)
    except InstantiationException as error:
        if isinstance(error.__cause__, ArpoError | ValueError):
            place = str(error).rpartition("full_key: ")[2]
            raise ConfigError(f"{error.__cause__} (configuration key: {place})") from error
        raise


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


def required_model(cfg: DictConfig) -> str | None:
    """Give the checkpoint directory that must exist already: empty where nobody said, None where the run makes it."""
    if "make_model" in cfg.datamodule or cfg.warmstart is not None:
        return None
    return "" if OmegaConf.is_missing(cfg.model, "path") else str(cfg.model.path)


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Give a nested configuration as one level of dotted names, for loggers that show a table."""
    if not isinstance(tree, dict):
        return {prefix: tree if isinstance(tree, int | float | str | bool) else json.dumps(tree)}
    parts = (flatten(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in tree.items())
    return {name: value for part in parts for name, value in part.items()}
