"""An evaluation, from its configuration to tables; a choice of tasks by it; or an export of a policy."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from arpo.callbacks.checkpoint import export_policy, iteration_of, load_policy
from arpo.callbacks.progress import evaluation_line
from arpo.endpoint.remote import RemotePolicy
from arpo.errors import CheckpointError
from arpo.evaluation.card import model_card
from arpo.evaluation.evaluate import evaluate_tasks
from arpo.evaluation.scores import OWN_LOOP
from arpo.evaluation.selection import chosen_config, select_tasks
from arpo.evaluation.settings import EvaluationSettings
from arpo.host.files import write_atomically
from arpo.host.session import Session
from arpo.host.terminal import end_on_signals, print_table, showing
from arpo.models.policy import Policy
from arpo.rollout.runtime import RolloutRuntime
from arpo.run.build import build
from arpo.run.folder import logging_to
from arpo.types import Task

log = logging.getLogger(__name__)

POLICY_KEY = "ARPO_POLICY_KEY"
"""The variable that holds the key of a policy behind an address."""


def evaluate(cfg: DictConfig) -> int:
    """Evaluate a policy on task lists, or choose tasks by it, as `check_evaluation` has accepted."""
    end_on_signals()
    with logging_to(Path(cfg.paths.run_dir) / "evaluate.log"), Session.start() as session:
        checkpoint = Path(cfg.checkpoint)
        if cfg.export is not None:
            policy_directory(checkpoint, Path(cfg.export), card=card_of(checkpoint))
            return 0
        write_atomically(Path(cfg.paths.run_dir) / "config.yaml", OmegaConf.to_yaml(recorded(cfg), resolve=True))
        directory = policy_directory(checkpoint, session.directory / "policy")
        if cfg.policy is not None:
            cfg.engine = {"_target_": "arpo.inference.hf.HfEngine", "_partial_": True, "path": str(directory)}  # idle
        cfg.model.path = str(directory)
        tasks = {name: build(cfg.tasks[name]) for name in cfg.lists}
        runtime: RolloutRuntime = build(cfg.rollout)
        if cfg.policy is not None:
            runtime.remote = RemotePolicy(cfg.policy, cfg.policy_model, os.environ.get(POLICY_KEY, ""))
        try:
            runtime.start()
            if "selection" in cfg:
                select(cfg, runtime, tasks)
            else:
                report(cfg, runtime, tasks)
        finally:
            runtime.close()
    return 0


def recorded(cfg: DictConfig) -> DictConfig:
    """Return the configuration as it is kept: the vocabulary of a checkpoint lies where its run has taken it from."""
    kept = cfg.copy()
    checkpoint = Path(cfg.checkpoint)
    if not (checkpoint / "config.json").exists():
        kept.model.path = OmegaConf.select(OmegaConf.load(checkpoint.parent.parent / "config.yaml"), "model.path")
    return kept


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
        passes = ", ".join(f"pass@{k} {100 * value:.1f} %" for k, value in result.pass_at_ks.items())
        title = result.name if result.agent == OWN_LOOP else f"{result.name}, played by {result.agent}"
        print_table(result.table(), title=title, caption=passes)
    log.info("every task's result is in %s", path)


def select(cfg: DictConfig, runtime: RolloutRuntime, tasks: Mapping[str, Sequence[Task]]) -> None:
    """Choose from each list, write the tasks that stay as a group of `conf/tasks`, and print a table a list."""
    run_dir = Path(cfg.paths.run_dir)
    groups: Any = OmegaConf.to_container(cfg.tasks, resolve=False)
    settings: EvaluationSettings = build(cfg.evaluation)
    judged = {}
    for name, listed in tasks.items():
        with showing(lambda: evaluation_line(runtime.status())):
            selection = select_tasks(runtime, listed, build(cfg.selection), settings, name=name)
        groups = chosen_config(groups, name, selection.kept)
        judged[name] = selection.to_json()
        print_table(selection.table(), title=name, caption=f"{len(selection.kept)} of {len(listed)} tasks are kept")
    write_atomically(run_dir / "selection.json", json.dumps(judged, indent=1))
    header = (
        f"# Tasks chosen by {settings.rollouts_per_task} attempts of {cfg.checkpoint} at each; see selection.json.\n"
    )
    write_atomically(run_dir / "selected.yaml", header + OmegaConf.to_yaml(groups))
    log.info("copy %s to conf/tasks/NAME.yaml and train with tasks=NAME", run_dir / "selected.yaml")


def policy_directory(checkpoint: Path, export: Path, card: str = "") -> Path:
    """Return a directory that engines load: the checkpoint itself, or what `export` becomes from a `.ckpt`."""
    if (checkpoint / "config.json").exists():
        return checkpoint
    config = checkpoint.parent.parent / "config.yaml"
    policy: Policy = build(OmegaConf.select(OmegaConf.load(config), "model.policy"))()
    load_policy(policy, checkpoint)
    export_policy(policy, export, card=card)
    return export


def card_of(checkpoint: Path) -> str:
    """Return the model card of a checkpoint in the folder of its run; a renamed one has no known iteration."""
    try:
        iteration = iteration_of(checkpoint)
    except CheckpointError:
        iteration = None
    return model_card(checkpoint.parent.parent, iteration)
