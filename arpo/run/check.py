"""The checks of a whole run by its configuration, before a warm start, an engine or an environment starts.

Cheap ones come first: what can be said without importing torch is said without it.
"""

import os
from pathlib import Path
from typing import Any

from hydra.utils import get_method
from omegaconf import DictConfig, ListConfig, OmegaConf

from arpo.errors import ConfigError
from arpo.host.environment import check_cluster
from arpo.run import rules
from arpo.run.arguments import LIGHT, check_arguments, try_constructors
from arpo.run.build import build, imitates, required_model
from arpo.run.effects import overrides_have_effects
from arpo.run.entry import quiet
from arpo.run.osworld import osworld_tasks_can_be_set_up
from arpo.run.overrides import near
from arpo.run.preflight import preflight
from arpo.run.resume import the_folder_holds_the_same_run
from arpo.run.rules import check_rules
from arpo.run.warmstart import SHIPPED

WITHOUT_A_TRAINER = ("env", "tasks", "prompt", "engine", "rollout", "selection", "evaluation")
"""The parts of a configuration that an evaluation builds."""
VOCABULARY = "warmstart_habits"
"""The policy of ours that stands where the one that is evaluated is behind an address."""
HELD_OUT = "held_out"
"""The beginning of the names of lists of tasks that no policy is trained on."""


def check_training(cfg: DictConfig) -> None:
    """Check that a training can run here; of several processes on a node, the first one checks for all."""
    quiet()
    place_callbacks(cfg)
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return
    check_choices(cfg)
    check_rules(cfg, [rules.the_checkpoint_is_of_the_family])
    try_constructors(cfg, parts=tuple(str(part) for part in cfg if part != "engine") if imitates(cfg) else ())
    check_rules(cfg, rules.MODEL, rules.STORED)
    for name in cfg.checks:
        get_method(name)(cfg)


def check_choices(cfg: DictConfig) -> None:
    """Check all of a training that does not depend on what its warm start writes."""
    place_callbacks(cfg)
    check_rules(cfg, rules.PLACE)
    check_cluster()
    preflight(OmegaConf.to_object(cfg.requires), required_model(cfg))  # type: ignore[arg-type]
    check_rules(cfg, rules.NUMBERS, rules.TRAINING)
    check_rules(cfg, [the_folder_holds_the_same_run, overrides_have_effects])
    check_rules(cfg, [osworld_tasks_can_be_set_up])  # it asks an engine and servers
    check_arguments(cfg, LIGHT)
    try_constructors(cfg, LIGHT)
    check_arguments(cfg)
    check_rules(cfg, rules.CLASSES)


def check_evaluation(cfg: DictConfig) -> None:
    """Check that an evaluation, a selection or an export can run here."""
    quiet()
    place_callbacks(cfg)
    if cfg.policy is not None:
        if not cfg.harness or not cfg.policy_model:
            raise ConfigError(
                f"policy={cfg.policy} is asked by a foreign agent, by name: add policy_model=NAME and "
                "harness=command or harness=function"
            )
        cfg.checkpoint = str(SHIPPED / VOCABULARY)  # of which no weight is read
    if OmegaConf.is_missing(cfg, "checkpoint"):
        raise ConfigError("no checkpoint is set: checkpoint=DIR/checkpoints/NAME.ckpt of a run, or a model directory")
    check_checkpoint(Path(cfg.checkpoint), cfg.export)
    if cfg.export is not None:
        return
    cfg.model.path = str(cfg.checkpoint)
    check_rules(cfg, [rules.tasks_suit_the_environment])
    if cfg.lists is None:
        cfg.lists = default_eval_lists(cfg.tasks)
    if not isinstance(cfg.lists, ListConfig) or not cfg.lists:
        raise ConfigError(f"lists={cfg.lists} must be names in brackets, such as lists=[{', '.join(cfg.tasks)}]")
    absent = [name for name in cfg.lists if name not in cfg.tasks]
    if absent:
        raise ConfigError(f"lists={list(cfg.lists)}: there is no list {absent[0]}, there are {', '.join(cfg.tasks)}")
    check_cluster()
    preflight(OmegaConf.to_object(cfg.requires), None)  # type: ignore[arg-type]
    check_rules(cfg, rules.NUMBERS, [rules.values_are_finite], [osworld_tasks_can_be_set_up])
    check_constructors(cfg, WITHOUT_A_TRAINER)
    if "selection" in cfg:
        build(cfg.selection).check_attempts(cfg.evaluation.rollouts_per_task)


def check_constructors(cfg: DictConfig, parts: tuple[str, ...] = ()) -> None:
    """Check the arguments of all constructors, light ones first, and what those of some parts say of the model."""
    check_rules(cfg, [rules.the_checkpoint_is_of_the_family])
    for rooms in (LIGHT, ("",)):
        check_arguments(cfg, rooms)
        try_constructors(cfg, rooms, parts)
    check_rules(cfg, rules.MODEL)


def default_eval_lists(tasks: DictConfig) -> list[str]:
    """Return the names of the lists on which a run is evaluated: of thousands of training tasks, a sample."""
    trained = "in_domain" if "in_domain" in tasks else "train"
    return [name for name in map(str, tasks) if name == trained or name.startswith(HELD_OUT)]


def check_checkpoint(checkpoint: Path, export: str | None) -> None:
    """Check that there is a policy to evaluate, and that an export has something to do and nothing to destroy."""
    is_model = rules.is_model(checkpoint)
    is_checkpoint = checkpoint.exists() and checkpoint.suffix == ".ckpt"  # a file, or a folder of shards
    if not is_model and not (is_checkpoint and (checkpoint.parent.parent / "config.yaml").exists()):
        raise ConfigError(
            f"checkpoint={checkpoint} is neither a Hugging Face directory nor a .ckpt inside the folder of its run"
        )
    if export is None:
        return
    if Path(export).exists() and (not Path(export).is_dir() or any(Path(export).iterdir())):
        raise ConfigError(f"export={export} exists and is not empty: name a new directory, or delete that one")
    if is_model:
        raise ConfigError(f"checkpoint={checkpoint} is a directory that engines load already: copy it instead")


def place_callbacks(cfg: DictConfig) -> None:
    """Move each callback whose node says `before: NAME` to its place, just before the one of that name."""
    nodes: Any = OmegaConf.to_container(cfg.callbacks, resolve=False)
    for name, node in list(nodes.items()):
        if isinstance(node, dict) and (place := node.pop("before", None)) is not None:
            others = [other for other in nodes if other != name]
            if place not in others:
                raise ConfigError(f"callbacks.{name}.before={place}: {near(place, others)}choose {', '.join(others)}")
            where = others.index(place)
            nodes = {each: nodes[each] for each in [*others[:where], name, *others[where:]]}
    cfg.callbacks = nodes
