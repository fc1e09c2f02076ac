"""The check of what a run asks of its model and optimizer."""

from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf

from arpo.errors import ConfigError
from arpo.host.ray import check_store
from arpo.inference.checkpoint import context_of, update_numbers
from arpo.inference.vllm import has_several_processes
from arpo.models.family import family_of
from arpo.models.policy import dtype_of
from arpo.models.tiny import CONTEXT
from arpo.models.tokenization import ChatTokenizer
from arpo.run.build import build, imitates, method_of


def check_context(cfg: DictConfig) -> None:
    """Check that conversations fit the model."""
    wanted = cfg.rollout.settings.max_context
    limit = context_of(cfg.model.path) or (cfg.model.make.get("context", CONTEXT) if "make" in cfg.model else None)
    if limit is not None and wanted > limit and not imitates(cfg):
        raise ConfigError(
            f"max_context={wanted} is above the {limit} tokens that the model was made for: lower "
            "rollout.settings.max_context"
        )


def check_learning(cfg: DictConfig) -> None:
    """Check that a method has the teacher that it wants, and batches of as many tokens."""
    settings, tasks = cfg.rollout.settings, OmegaConf.select(cfg, "datamodule.sampler.tasks_per_iteration")
    if tasks is not None and OmegaConf.select(cfg, "module.objective") is not None:
        members = settings.group_size + (OmegaConf.select(cfg, "replay.buffer.replaced") == "none")
        if complaint := method_of(cfg).complaint(tasks * members * settings.max_steps * settings.max_tokens):
            raise ConfigError(complaint)
    path = OmegaConf.select(cfg, "module.teacher.path")
    if path is not None and not (Path(path) / "config.json").exists():
        raise ConfigError(
            f"teacher={path} holds no policy: name a folder with config.json, such as policy/ of a warm start, or "
            "what evaluate.py writes with export=DIR"
        )
    if path is not None and (Path(cfg.model.path) / "config.json").exists():
        ChatTokenizer(cfg.model.path).check_teacher(ChatTokenizer(path))


def check_family(cfg: DictConfig) -> None:
    """Check that a checkpoint is of the family of the model that was chosen, which brings a prompt and a grammar."""
    path, family = str(cfg.model.path), cfg.model.get("family")
    if family is None or not (Path(path) / "config.json").exists():
        return
    found = family_of(path).model_type
    if found != family:
        raise ConfigError(
            f"model.path={path} is of the family {found}, and model= chose one of {family}, with another prompt and "
            f"another way to name points: choose a model of conf/model with `family: {found}`, or another path"
        )


def check_sync(cfg: DictConfig) -> None:
    """Check that there is room for the weights that a fleet of engines reads from Ray's object store.

    A model that is not there yet is one of the tiny ones that runs make.
    """
    path = str(cfg.model.path)
    if "make_engine" not in cfg.engine or imitates(cfg) or not (Path(path) / "config.json").exists():
        return
    rank = OmegaConf.select(cfg.model.policy, "lora.rank")
    arguments = OmegaConf.select(cfg.engine.make_engine, "engine_args") or {}
    in_files = rank is None and has_several_processes(arguments)
    check_store(
        update_numbers(path, rank) * dtype_of(cfg.model.policy.dtype).itemsize,
        copies=int(cfg.engine.replicas) if in_files else 0,
    )


def check_optimizer(cfg: DictConfig) -> None:
    """Try the optimizer on one parameter: the configuration leaves its parameters out until there is a policy."""
    node = OmegaConf.select(cfg, "module.optimizer")
    try:
        build(node)([("weight", torch.nn.Parameter(torch.zeros(1, 1)))])
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{error} (configuration key: module.optimizer)") from error
