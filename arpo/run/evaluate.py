"""An evaluation, from its configuration to tables, or an export of a policy."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf

from arpo.callbacks.export import export_policy
from arpo.callbacks.graceful_stop import end_on_sigterm
from arpo.display.live import showing
from arpo.display.progress_line import evaluation_line
from arpo.display.tables import print_result
from arpo.errors import ConfigError
from arpo.evaluation.evaluate import evaluate_tasks
from arpo.evaluation.settings import EvaluationSettings
from arpo.host.files import write_atomically
from arpo.host.session import Session
from arpo.models.policy import Policy
from arpo.rollout.runtime import RolloutRuntime
from arpo.run.build import build
from arpo.run.preflight import check_arguments, preflight
from arpo.run.select import select
from arpo.types import Task

log = logging.getLogger(__name__)


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
    with showing(lambda: evaluation_line(runtime.status())):
        results = {
            name: evaluate_tasks(runtime, listed, settings, name=name) for name, listed in tasks.items() if listed
        }
    path = Path(cfg.paths.run_dir) / "results.json"
    write_atomically(path, json.dumps({name: result.to_json() for name, result in results.items()}, indent=1))
    for result in results.values():
        print_result(result)
    log.info("every task's result is in %s", path)


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
