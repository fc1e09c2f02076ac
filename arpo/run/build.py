"""From the configuration to objects, and what the configuration itself says."""

import math
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf

from arpo.errors import ArpoError, ConfigError
from arpo.run.before.misspelt import explain
from arpo.run.before.words import CONF, check_words
from arpo.run.folder import folder_name, moment, run_name
from arpo.run.warmstart import demonstrations_of, policy_of, recordings_of


def compose(name: str, overrides: Sequence[str]) -> DictConfig:
    """Return a file of conf/ with what a person typed; `paths.run_dir` is known only where Hydra starts a run."""
    check_words(overrides)
    register_resolvers()
    with hydra.initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
        try:
            return hydra.compose(name, [*overrides])
        except HydraException as error:
            refused = error
    raise ConfigError(explain(refused, name, overrides)) from refused


def register_resolvers() -> None:
    """Teach OmegaConf the functions that our YAML calls; idempotent."""
    OmegaConf.register_new_resolver("run_name", lambda overrides: run_name(list(overrides)), replace=True)
    OmegaConf.register_new_resolver("folder_name", lambda name: folder_name(str(name)), replace=True)
    of_folders: list[Callable[..., Any]] = [policy_of, demonstrations_of, recordings_of, run_title]
    functions: list[Callable[..., Any]] = [*of_folders, moment, images_at_once]
    of_numbers: list[Callable[..., Any]] = [gpu_range, node_gpus, node_engines, screenshots]
    for function in [*functions, *map(_of_numbers, of_numbers)]:
        OmegaConf.register_new_resolver(function.__name__, function, replace=True)


def run_title(run_dir: str) -> str:
    """Return the experiment and the name of a run, by its folder.

    >>> run_title("outputs/arpo_miniwob/replay=off,seed=2")
    'arpo_miniwob/replay=off,seed=2'
    """
    return "/".join(Path(run_dir).parts[-2:])


def gpu_range(first: int, end: int) -> list[int]:
    """Return the numbers of a node's GPUs from `first` up to `end`, which is not among them."""
    return list(range(first, end))


def node_gpus(gpus: int, nodes: int) -> int:
    """Return how many of all GPUs are on one node."""
    return gpus // nodes


def node_engines(serving_gpus: int, num_gpus: float) -> int:
    """Return how many engines of `num_gpus` GPUs those of a node serve with; one each where none is needed."""
    return int(serving_gpus / num_gpus) if num_gpus else serving_gpus


def screenshots(environments: int, images: int, replicas: int, nodes: int) -> int:
    """Return how many screenshots one replica has in use at once: `images` of each of its share of the episodes."""
    return max(math.ceil(environments / (replicas * nodes)) * images, 1)


def images_at_once(max_steps: object, image_window: object) -> int:
    """Return how many screenshots a response sees at most; 0 where no number says so: its own check names that one.

    >>> images_at_once(15, None), images_at_once(15, 5), images_at_once(3, 5)
    (15, 5, 3)
    """
    return min((number for number in (max_steps, image_window) if isinstance(number, int)), default=0)


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function for YAML, where it is 0 if a number is none or impossible: its own check names that one."""

    @wraps(function)
    def total(*values: object) -> Any:
        usable = all(isinstance(value, int | float) and value >= 0 for value in values)
        try:
            return function(*values) if usable else 0
        except ZeroDivisionError:
            return 0

    return total


SHARDED = "arpo.modules.strategy.ShardedStrategy"
WHOLE_MATRICES = ("arpo.modules.muon.MuonWithAdamW", "torch.optim.Muon")
"""Optimizers whose update of a matrix is not made of those of its parts."""
REFUSALS = (ArpoError, ValueError)
"""What a constructor raises that refuses its arguments."""


def build(node: Any, place: str = "", refusals: tuple[type[Exception], ...] = REFUSALS, **kwargs: Any) -> Any:
    """Build the object of a configuration node.

    Args:
        node: The node.
        place: Its key, where the node itself does not know it.
        refusals: Errors by which a constructor refuses its arguments; any other one is a bug, and passes.
        kwargs: Further arguments of the constructor.
    """
    try:
        return instantiate(node, _convert_="object", **kwargs)  # nobody behind here sees a DictConfig
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


def engines_sleep(cfg: DictConfig) -> bool:
    """Return whether engines share the trainer's GPUs, and sleep while it works."""
    return bool(OmegaConf.select(cfg, "callbacks.weight_sync.colocated", default=False))


def required_model(cfg: DictConfig) -> str | None:
    """Return the checkpoint directory that must exist: empty where nobody said, None where the run makes it."""
    if imitates(cfg) or cfg.warmstart is not None:
        return None
    return "" if OmegaConf.is_missing(cfg.model, "path") else str(cfg.model.path)


def check_numbers(cfg: DictConfig) -> None:
    """Check how many there are of what is counted, and that the GPUs can be shared out."""
    for name in ("iterations", "threads", "trainer.max_epochs", "trainer.num_nodes", "gpus"):
        number = OmegaConf.select(cfg, name)
        if not isinstance(number, int) or number < 1:
            raise ConfigError(f"{name} must be a whole number of at least 1, got {number}")
    _check_layout(cfg)


def check_update(cfg: DictConfig) -> None:
    """Check that an update can learn from what it is given."""
    optimizer = OmegaConf.select(cfg, "module.optimizer._target_")
    sharded = OmegaConf.select(cfg, "trainer.strategy._target_") == SHARDED
    if optimizer in WHOLE_MATRICES and sharded:
        raise ConfigError(
            f"module.optimizer._target_={optimizer} needs whole matrices, and trainer=fsdp has a part of each on a "
            "rank: take trainer=ddp, or AdamW"
        )
    if rolls_out(cfg) and "objective" in cfg.module:
        _check_groups(cfg)
        _check_warmup(cfg)
        if sharded and method_of(cfg).needs.values:
            raise ConfigError(
                f"module.objective._target_={cfg.module.objective._target_} needs a critic, which trainer=fsdp does "
                "not cut into shards: take trainer=ddp, or a method that needs no values"
            )


def method_of(cfg: DictConfig) -> Any:
    """Return the method of a run: it brings torch along, so it is asked where nothing else can tell."""
    return build(cfg.module.objective, "module.objective", (*REFUSALS, TypeError))


def _check_groups(cfg: DictConfig) -> None:
    """Check that there is something to learn from groups, and that their tokens are scored as they were sampled."""
    module, settings = cfg.module, cfg.rollout.settings
    if module.temperature != settings.temperature:
        raise ConfigError(
            f"module.temperature={module.temperature} must be rollout.settings.temperature={settings.temperature}: "
            "log-probabilities are of the distribution that was sampled; leave module.temperature out"
        )
    grows = OmegaConf.select(cfg, "replay.buffer.replaced") == "none"
    learns = module.optimizer.get("lr") != 0  # or it only collects
    if settings.group_size == 1 and learns and not grows and not method_of(cfg).learns_alone:
        raise ConfigError(
            "rollout.settings.group_size=1 leaves nothing to compare an episode with, so that every advantage is 0: "
            "set it to 2 or more, imitate successes with module.objective.imitation, take a method with a critic, or "
            "only collect, with module.optimizer.lr=0"
        )


def _check_warmup(cfg: DictConfig) -> None:
    """Check that iterations are left for the policy once the critic has learned alone."""
    warmup = cfg.module.get("critic_warmup")
    if isinstance(warmup, int) and warmup >= cfg.iterations:
        raise ConfigError(
            f"module.critic_warmup={warmup} leaves none of iterations={cfg.iterations} to the policy: raise "
            "iterations, or lower module.critic_warmup"
        )


def _check_layout(cfg: DictConfig) -> None:
    """Check that the GPUs can be shared out, and that nobody needs the engine while it sleeps."""
    if cfg.gpus % cfg.trainer.num_nodes:
        raise ConfigError(
            f"gpus={cfg.gpus} must be a multiple of trainer.num_nodes={cfg.trainer.num_nodes}: it counts all nodes"
        )
    on_node = cfg.gpus // cfg.trainer.num_nodes
    devices = cfg.trainer.devices
    ranks = len(devices) if isinstance(devices, list | ListConfig) else devices
    if cfg.requires.get("gpus") and isinstance(ranks, int) and ranks > on_node:
        raise ConfigError(
            f"trainer.devices={devices} wants {ranks} GPUs of a node, and gpus={cfg.gpus} with "
            f"trainer.num_nodes={cfg.trainer.num_nodes} are {on_node}: lower trainer.devices, or raise gpus"
        )
    if isinstance(ranks, int) and ranks > 1 and OmegaConf.select(cfg, "trainer.strategy") is None:
        raise ConfigError(
            f"trainer.devices={devices} are {ranks} processes: choose trainer=ddp or trainer=fsdp, or one device"
        )
    _check_engines(cfg, on_node)
    lag = OmegaConf.select(cfg, "rollout.settings.max_policy_lag")
    if engines_sleep(cfg) and lag:
        raise ConfigError(
            f"rollout.settings.max_policy_lag={lag} lets rollouts go on during an update, when the engines of "
            "layout=colocated sleep: take layout=split, or max_policy_lag=0"
        )
    if engines_sleep(cfg) and OmegaConf.select(cfg, "callbacks.judge._target_"):
        raise ConfigError(
            "judge=own asks the engine during an update, when the engines of layout=colocated sleep: take "
            "layout=split, or judge=off"
        )
    if cfg.engine.get("sync") == "rolling" and lag == 0:
        raise ConfigError(
            "engine.sync=rolling lets engines answer with the weights of before while others have new ones: set "
            "rollout.settings.max_policy_lag to 1 or more, or engine.sync=global"
        )


def _check_engines(cfg: DictConfig, on_node: int) -> None:
    """Check that the engines of a node find the GPUs that they want."""
    serving = cfg.get("serving_gpus", on_node)
    if "serving_gpus" in cfg and not 1 <= serving < on_node:
        raise ConfigError(
            f"serving_gpus={serving} must be at least 1 and leave some of the {on_node} GPU(s) of a node to train; "
            "with one GPU take layout=colocated"
        )
    for name in ("replicas", "nodes"):
        number = cfg.engine.get(name, 1)
        if isinstance(number, int) and number < 1:
            raise ConfigError(f"engine.{name} must be at least 1, got {number}")
    num_gpus = cfg.engine.get("num_gpus") or 1
    divided = OmegaConf.select(cfg.engine, "make_engine.engine_args.tensor_parallel_size") or 1
    if cfg.engine.get("num_gpus") and divided > max(num_gpus, 1):
        raise ConfigError(
            f"engine.num_gpus={num_gpus} gives each engine fewer GPUs than its tensor_parallel_size={divided} wants: "
            "set both to the same number"
        )
    if "replicas" in cfg.engine and cfg.engine.replicas * num_gpus > serving and cfg.requires.get("gpus"):
        raise ConfigError(
            f"engine.replicas={cfg.engine.replicas} with engine.num_gpus={num_gpus} want more than the {serving} GPUs "
            "of a node that serve"
        )
