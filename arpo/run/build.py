"""From the configuration to objects, and what the configuration itself says."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from arpo.errors import ArpoError, ConfigError
from arpo.run.choices import CONF, register_choices
from arpo.run.folder import folder_name, run_name, start_timestamp
from arpo.run.overrides import check_overrides, explain
from arpo.run.preflight import smallest_gpu_gib
from arpo.run.warmstart import demonstrations_of, policy_of, recordings_of


def compose(name: str, overrides: Sequence[str]) -> DictConfig:
    """Return a file of conf/ with overrides; `paths.run_dir` is known only where Hydra starts a run."""
    check_overrides(overrides)
    register_resolvers()
    with hydra.initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
        try:
            return hydra.compose(name, [*overrides])
        except HydraException as error:
            refused = error
    raise ConfigError(explain(refused, name, overrides)) from refused


def register_resolvers() -> None:
    """Register the functions that our YAML calls, and the choices that are no files of conf/; idempotent."""
    register_choices()
    for name, function in RESOLVERS.items():
        OmegaConf.register_new_resolver(name, function, replace=True)


def _of_run(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a warm start's name alone, which takes the rest from the whole configuration."""

    def resolve(warmstart: str | None, *_: object, _root_: DictConfig) -> Any:  # more arguments: as YAML once had them
        model = OmegaConf.select(_root_, "model.tiny")
        window, prompt = _root_.rollout.settings.image_window, _root_.prompt["_target_"]
        return function(warmstart, _root_.paths.output, window, model, prompt)

    return resolve


def run_title(run_dir: str) -> str:
    """Return the experiment and the name of a run, by its folder."""
    return "/".join(Path(run_dir).parts[-2:])


def images_at_once(max_steps: object, image_window: object, of_harness: object = None) -> int:
    """Return the most pictures that a response sees; 0 where one is no number: its own check names it."""
    if isinstance(of_harness, int):
        return of_harness
    return min((number for number in (max_steps, image_window) if isinstance(number, int)), default=0)


def screen_of(env: Mapping[str, Any]) -> list[int]:
    """Return width and height of the largest screen of a run, 1920 x 1080 for an environment that names none."""
    pools = (env.get("parts") or {"": env}).values()
    return list(max(((pool.get("make_env") or {}).get("screen") or [1920, 1080] for pool in pools), key=math.prod))


CARDS = (24, 40, 80)
"""GB in the names of the cards that `experiment=one_gpu` has numbers for."""
NAMED = 0.95
"""The least share of these that a program can allocate, in GiB."""


def for_card(memory_gib: float | None, choices: Sequence[Any]) -> Any:
    """Return the choice for a card of 24, 40 or 80 GB; None is the smallest GPU here, and where there is none, 80."""
    memory = memory_gib or smallest_gpu_gib() or CARDS[-1]
    large_enough = [choice for card, choice in zip(CARDS, choices, strict=True) if NAMED * card <= memory]
    return [choices[0], *large_enough][-1]


def share_beside(memory_gib: float | None, trainer_gib: Sequence[float]) -> float:
    """Return the share of a card that a trainer leaves to vLLM, in hundredths, by its need on each kind of card."""
    memory = memory_gib or smallest_gpu_gib() or CARDS[-1]
    needed: float = for_card(memory, trainer_gib)
    return max(1, math.floor(100 * (1 - needed / memory))) / 100


def _or_zero(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is 0 where a number is none or impossible: its own check names that one."""

    def total(*values: object) -> Any:
        usable = all(isinstance(value, int | float) and value >= 0 for value in values)
        try:
            return function(*values) if usable else 0
        except ZeroDivisionError:
            return 0

    return total


RESOLVERS: dict[str, Callable[..., Any]] = {
    "run_name": lambda overrides: run_name(list(overrides)),
    "folder_name": lambda name: folder_name(str(name)),
    "run_title": run_title,
    "moment": start_timestamp,
    "policy_of": _of_run(policy_of),
    "demonstrations_of": _of_run(demonstrations_of),
    "recordings_of": _of_run(recordings_of),
    "images_at_once": images_at_once,
    "pictures_of": _or_zero(lambda steps: max(steps + 1, 16)),  # an agent sees the screen before its first step too
    "for_card": for_card,
    "share_beside": share_beside,
    "gpu_range": _or_zero(lambda first, end: list(range(first, end))),
    "node_gpus": _or_zero(lambda gpus, nodes: gpus // nodes),
    "node_engines": _or_zero(lambda gpus, each: int(gpus / each) if each else gpus),  # one each where none is needed
    "environments_of": lambda parts: sum(part["size"] for part in parts.values()),  # of a mixture
    "screen_of": screen_of,
    # that one replica has in use: `images` of each of its share of the episodes
    "screenshots": _or_zero(
        lambda environments, images, replicas, nodes: max(math.ceil(environments / (replicas * nodes)) * images, 1)
    ),
}
REFUSALS = (ArpoError, ValueError)


def build(node: Any, place: str = "", refusals: tuple[type[Exception], ...] = REFUSALS, **kwargs: Any) -> Any:
    """Build the object of a configuration node, whose key is `place` where the node itself does not know it.

    Of the errors of its constructor, `refusals` are about its arguments; any other one is a bug, and passes.
    """
    try:
        return instantiate(node, _convert_="object", **kwargs)  # from here on there is no DictConfig
    except InstantiationException as error:
        cause = error.__cause__
        # Whatever Lightning raises, a TypeError among it, is about its arguments.
        refused = isinstance(cause, refusals) or "call to target 'lightning." in str(error)
        if refused or "Error locating target" in str(error):
            _, _, inner = str(error).partition("full_key: ")
            key = ".".join(part for part in (place, inner) if part)
            raise ConfigError(f"{cause} (configuration key: {key})") from error
        raise


def imitates(cfg: DictConfig) -> bool:
    """Return whether a run learns from demonstrations: it makes its model, and asks no engine anything."""
    return "make_model" in cfg.datamodule


def rolls_out(cfg: DictConfig) -> bool:
    """Return whether a run learns from rollouts of its own, and not from data that is there before it begins."""
    return "sampler" in cfg.datamodule


def engine_key(cfg: DictConfig) -> str:
    """Return the key of the engine itself, which a fleet has inside."""
    return "engine.make_engine" if "make_engine" in cfg.engine else "engine"


def engines_sleep(cfg: DictConfig) -> bool:
    """Return whether engines share the trainer's GPUs, and sleep while it works."""
    return bool(OmegaConf.select(cfg, "callbacks.weight_sync.colocated", default=False))


def required_model(cfg: DictConfig) -> str | None:
    """Return the checkpoint directory that must exist: empty where none is set, None where the run makes it."""
    if imitates(cfg) or cfg.warmstart is not None:
        return None
    return "" if OmegaConf.is_missing(cfg.model, "path") else str(cfg.model.path)


def method_of(cfg: DictConfig) -> Any:
    """Build the method of a run; it imports torch."""
    return build(cfg.module.objective, refusals=(*REFUSALS, TypeError))
