"""The check of a whole run from its configuration, before a warm start, an engine or an environment starts.

Cheap checks come first: whatever can be said without importing torch is said without it.
"""

import math
import os
import pydoc
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from arpo.errors import ConfigError
from arpo.host.environment import check_cluster
from arpo.rollout.storage import TrajectoryStore, store_of
from arpo.run.arguments import STAGES, check_arguments, try_constructors
from arpo.run.before.effects import check_effects
from arpo.run.before.misspelt import near
from arpo.run.before.osworld import check_osworld
from arpo.run.before.resume import check_same_run, mention_former_folder
from arpo.run.before.trainer import check_trainer
from arpo.run.build import build, check_numbers, check_update, imitates, required_model
from arpo.run.entry import quiet
from arpo.run.folder import check_resume, rank, refuse_to_overwrite
from arpo.run.preflight import missing_login, preflight
from arpo.run.shipped import comes_with_the_code
from arpo.run.warmstart import check_warmstart, demonstrations_of, shared_with_warmstart

EXAMPLES = {
    "fake": "fake",
    "miniwob": "miniwob_16",
    "desktop": "desktop32",
    "osworld": "osworld_subset32",
    "recorded": "recorded",
}
"""Tasks for each environment of ours, to recommend."""
LOADERS = {"arpo.rollout.recorded.recorded_tasks": "recorded"}
"""Functions that return tasks of an environment of ours from elsewhere, because they read what a run wrote."""
REWARDS_STEPS = ("recorded",)
"""Environments of ours that reward single steps."""
USUAL_METHOD = "arpo.methods.grpo.GRPO"
"""That of nearly every run; it needs no rewards of steps, and a check that asks it brings torch along."""
OPTIONAL = {"lightning.pytorch.loggers.WandbLogger": "wandb"}
"""Packages that requirements.txt leaves out, by who needs them."""
WITHOUT_A_TRAINER = ("env", "tasks", "prompt", "engine", "rollout", "selection", "evaluation")
"""The parts of a configuration that an evaluation builds."""
LEARNS_FROM = {
    "arpo.modules.sft.SFTModule": "successes",
    "arpo.modules.offline.dpo.DPOModule": "pairs",
    "arpo.modules.offline.kto.KTOModule": "every_episode",
}
"""The examples that a module of ours learns from offline: a function of `arpo.datamodules.examples`."""
HELD_OUT = "held_out"
"""So begin the names of the lists of tasks that nobody trains on."""


def check_training(cfg: DictConfig) -> None:
    """Check that a training can run here; of several processes on a node, the first one checks for all."""
    quiet()
    place_callbacks(cfg)
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return
    check_choices(cfg)
    check_constructors(cfg, tuple(str(part) for part in cfg if part != "engine") if imitates(cfg) else ())
    check_callbacks(cfg)
    check_examples(cfg)
    from arpo.run.model import check_sync

    if rank() == 0:
        check_sync(cfg)


def check_choices(cfg: DictConfig) -> None:
    """Check what can be said of a training before it is known what its warm start writes."""
    check_tasks(cfg)
    check_resume(cfg.resume, cfg.paths.checkpoints)
    refuse_to_overwrite(Path(cfg.paths.run_dir), cfg.resume)
    check_loggers(cfg)
    check_cluster()
    preflight(_plain(cfg.requires), required_model(cfg))
    check_method(cfg)
    check_values(cfg)
    check_trainer(cfg)
    check_osworld(cfg, list(cfg.tasks))
    check_update(cfg)
    check_same_run(cfg)
    if HydraConfig.initialized():
        hydra = HydraConfig.get()
        mention_former_folder(cfg, hydra.overrides.task)
        check_effects(cfg, hydra.overrides.task, others=hydra.mode == RunMode.MULTIRUN)
    check_pool(cfg)
    check_source(cfg)
    if cfg.warmstart is not None:
        check_warmstart(str(cfg.model.path), cfg.warmstart, cfg.paths.output, *shared_with_warmstart(cfg))
    check_step_rewards(cfg)


def check_evaluation(cfg: DictConfig) -> None:
    """Check that an evaluation, a selection or an export can run here."""
    quiet()
    place_callbacks(cfg)
    if OmegaConf.is_missing(cfg, "checkpoint"):
        raise ConfigError("say what to evaluate: checkpoint=DIR/checkpoints/NAME.ckpt of a run, or a model directory")
    check_checkpoint(Path(cfg.checkpoint))
    check_export(cfg.export, Path(cfg.checkpoint))
    if cfg.export is not None:
        return
    cfg.model.path = str(cfg.checkpoint)
    check_tasks(cfg)
    if cfg.lists is None:
        cfg.lists = judged(cfg.tasks)
    if not isinstance(cfg.lists, ListConfig) or not cfg.lists:
        raise ConfigError(f"lists={cfg.lists} must be names in brackets, such as lists=[{', '.join(cfg.tasks)}]")
    absent = [name for name in cfg.lists if name not in cfg.tasks]
    if absent:
        raise ConfigError(f"lists={list(cfg.lists)}: there is no list {absent[0]}, there are {', '.join(cfg.tasks)}")
    check_cluster()
    preflight(_plain(cfg.requires), None)
    check_values(cfg)
    check_osworld(cfg, cfg.lists)
    check_constructors(cfg, WITHOUT_A_TRAINER)
    if "selection" in cfg:
        build(cfg.selection).check_attempts(cfg.evaluation.rollouts_per_task)


def judged(tasks: DictConfig) -> list[str]:
    """Return the names of the lists on which a run is evaluated: of thousands of training tasks, a sample."""
    trained = "in_domain" if "in_domain" in tasks else "train"
    return [name for name in map(str, tasks) if name == trained or name.startswith(HELD_OUT)]


def check_checkpoint(checkpoint: Path) -> None:
    """Check that there is a policy to evaluate."""
    if (checkpoint / "config.json").exists():
        return
    is_checkpoint = checkpoint.exists() and checkpoint.suffix == ".ckpt"  # a file, or a folder of shards
    if not is_checkpoint or not (checkpoint.parent.parent / "config.yaml").exists():
        raise ConfigError(
            f"checkpoint={checkpoint} is neither a Hugging Face directory nor a .ckpt inside the folder of its run"
        )


def check_export(export: str | None, checkpoint: Path) -> None:
    """Check that an export has something to do, and nothing to destroy."""
    if export is None:
        return
    if Path(export).exists() and (not Path(export).is_dir() or any(Path(export).iterdir())):
        raise ConfigError(f"export={export} exists and is not empty: name a new directory, or delete that one")
    if (checkpoint / "config.json").exists():
        raise ConfigError(f"checkpoint={checkpoint} is a directory that engines load already: copy it instead")


def check_values(cfg: DictConfig) -> None:
    """Check what belongs to no constructor, and what two of them must agree on."""
    check_model(cfg)
    try:
        plain = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        problem = str(error.msg).partition("\n")[0]
        raise ConfigError(f"{problem} (configuration key: {error.full_key})") from error
    _check_finite(plain)
    check_numbers(cfg)
    if not isinstance(cfg.seed, int) or not 0 <= cfg.seed < 2**32:
        raise ConfigError(f"seed must be a whole number from 0 to {2**32 - 1}, got {cfg.seed}")
    one_process = OmegaConf.select(cfg, "trainer.strategy") is None
    if not one_process and not imitates(cfg) and cfg.engine.get("_target_") == "arpo.inference.vllm.VllmEngine":
        raise ConfigError(
            "a trainer of several processes cannot have vLLM in one of them: choose engine=fleet, or trainer=default"
        )


def _check_finite(tree: object, place: str = "") -> None:
    """Check that no number is infinite or none at all, whatever it is for: that of an optimizer, of a callback."""
    if isinstance(tree, float) and not math.isfinite(tree):
        raise ConfigError(f"{place}={tree} must be a finite number")
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inside:
        _check_finite(value, f"{place}.{key}" if place else str(key))


def check_loggers(cfg: DictConfig) -> None:
    """Check that the packages of loggers are installed that no run needs, and that somebody is logged in."""
    for name, node in (cfg.get("logger") or {}).items():
        package = OPTIONAL.get(node.get("_target_")) if isinstance(node, DictConfig) else None
        if package is not None and find_spec(package) is None:
            raise ConfigError(
                f"logger={name} needs the package {package}, which is not installed: `uv pip install {package}`, then "
                "try again; or take logger=default"
            )
        if package == "wandb" and not node.get("offline"):
            host = missing_login(os.environ, Path.home(), Path.cwd())
            if host is not None:
                raise ConfigError(
                    f"logger={name} sends to {host}, where nobody is logged in: run `wandb login`, or write to this "
                    f"disk alone with logger.{name}.offline=true"
                )


def check_tasks(cfg: DictConfig) -> None:
    """Check that the tasks were written for the environment, where both are ours."""
    env = _room(OmegaConf.select(cfg, "env.make_env._target_"))
    for name, node in cfg.tasks.items():
        room = _room_of_tasks(node)
        if env is not None and room is not None and room != env:
            raise ConfigError(
                f"tasks.{name} are tasks of {room}, which the environment {env} cannot run: choose tasks for it"
                f"{f', such as tasks={EXAMPLES[env]}' if env in EXAMPLES else ''}, or env={room}"
            )


def _room_of_tasks(node: object) -> str | None:
    """Return which environment of ours tasks were written for, also where another loader chooses among them."""
    if not isinstance(node, DictConfig):
        return None
    return _room(node.get("_target_")) or _room_of_tasks(node.get("tasks"))


def _room(target: str | None) -> str | None:
    """Return which environment of ours a target belongs to."""
    if target in LOADERS:
        return LOADERS[target]
    return str(target).split(".")[2] if str(target).startswith("arpo.envs.") else None


def check_pool(cfg: DictConfig) -> None:
    """Check that the successes that were collected beforehand are there, or that the warm start will write them.

    A run that goes on has copies of them in its own folder.
    """
    if not isinstance(cfg.experience, ListConfig | list):  # a resolver gives a plain one
        raise ConfigError(f"experience={cfg.experience} must be directories in brackets: experience=[DIR], or []")
    pool = OmegaConf.select(cfg, "replay.pool") is not None
    if pool and cfg.experience and OmegaConf.select(cfg, "module.replayed_old_logprobs") == "stored":
        raise ConfigError(
            "module.replayed_old_logprobs=stored wants the log-probabilities with which a replayed trajectory was "
            "sampled, and those in experience may have none, such as a script's: take "
            "module.replayed_old_logprobs=recompute, or replay=on"
        )
    if cfg.resume is not None and any(Path(cfg.paths.checkpoints).glob("iteration_*")):
        return
    if pool and not cfg.experience and not cfg.replay.remembers:
        preset = OmegaConf.select(cfg, "preset_of.name")
        raise ConfigError(
            f"replay=pool{f', which preset={preset} chooses,' if preset else ''} begins with the successes in "
            "experience and remembers no others, and experience=[] names none, so that nothing would ever be "
            "replayed: set experience=[DIR] or replay.remembers=true, or choose replay=off"
        )
    shared = shared_with_warmstart(cfg)
    own = demonstrations_of(cfg.warmstart, cfg.paths.output, *shared)
    unpacked = not any(shared) and comes_with_the_code(cfg.warmstart)
    made = unpacked or (Path(str(cfg.model.path)) / "config.json").exists()
    to_come = [] if made else own
    for directory in cfg.experience if pool else ():
        if directory in to_come or TrajectoryStore(str(directory)).iterations():
            continue
        raise ConfigError(
            f"experience: {directory} holds no trajectories; name the trajectories/ of a run or of an "
            "evaluation, or the demonstrations/ of a warm start, or choose replay=on"
            + f"; python train.py experiment={cfg.warmstart} makes them"
            * (directory in own)
        )


def check_method(cfg: DictConfig) -> None:
    """Check that the module learns from what the data module gives it."""
    module, offline = cfg.module.get("_target_"), "source" in cfg.datamodule
    _check_preset(cfg)
    if offline or imitates(cfg):
        _check_no_rollouts(cfg)
    methods = "experiment=offline_rs, offline_dpo or offline_kto"
    if offline and module == "arpo.modules.grpo.GRPOModule":
        raise ConfigError(f"module=grpo learns from rollouts, and datamodule=trajectories has none: take {methods}")
    if not offline and module in [target for target, examples in LEARNS_FROM.items() if examples != "successes"]:
        raise ConfigError(f"module={module} learns from stored episodes, not from rollouts: take {methods}")
    if not offline:
        return
    room = "arpo.datamodules.examples."
    wanted = LEARNS_FROM.get(module)
    given = cfg.datamodule.examples.get("_target_")
    if wanted and given != room + wanted and given in [room + examples for examples in LEARNS_FROM.values()]:
        raise ConfigError(
            f"datamodule.examples._target_={given} is not what this module learns from: take {room}{wanted}, or "
            f"{methods}"
        )
    batch_size = cfg.datamodule.batch_size
    if wanted == "every_episode" and isinstance(batch_size, int) and batch_size < 2:
        raise ConfigError(
            "module=kto compares each episode with another one of its batch: datamodule.batch_size=2 or more"
        )


def _check_no_rollouts(cfg: DictConfig) -> None:
    """Check that nothing was chosen that acts on rollouts; the default, replay=on, is not built."""
    usual = OmegaConf.select(cfg, "replay.buffer._target_") == "arpo.replay.ReplayBuffer"
    for name in ("entropulse", "judge") if usual else ("replay", "entropulse", "judge"):
        if OmegaConf.select(cfg, f"{name}._target_"):
            raise ConfigError(f"{name} acts on rollouts, of which this run has none: leave it out")


def _check_preset(cfg: DictConfig) -> None:
    """Check that a preset has numbers for the method that was chosen, or for one like it."""
    preset, chosen = cfg.get("preset_of"), OmegaConf.select(cfg, "module.objective._target_")
    if preset is None or chosen == preset.objective:
        return
    wanted, found = pydoc.locate(preset.objective), pydoc.locate(str(chosen))
    if not (isinstance(wanted, type) and isinstance(found, type) and issubclass(found, wanted)):
        raise ConfigError(
            f"preset={preset.name} has numbers for {preset.objective}, and this run learns by "
            f"{chosen or cfg.module.get('_target_')}: leave out the preset, and an experiment that "
            "brings it, or the method"
        )


def check_source(cfg: DictConfig) -> None:
    """Check that the episodes that are learned from offline are there, and that the steps can be shared out."""
    if "source" not in cfg.datamodule:
        return
    source = str(cfg.datamodule.source)
    if not source or not TrajectoryStore(store_of(source)).iterations():
        raise ConfigError(
            f"source={source} holds no episodes to learn from: name the folder of a run, such as "
            "source=outputs/arpo_miniwob/default, which `python train.py experiment=arpo_miniwob` writes"
        )
    if isinstance(cfg.datamodule.steps, int) and cfg.datamodule.steps % cfg.iterations:
        raise ConfigError(
            f"datamodule.steps={cfg.datamodule.steps} must be a multiple of iterations={cfg.iterations}: each has as "
            "many"
        )


def check_examples(cfg: DictConfig) -> None:
    """Check that the stored episodes make examples, before a warm start that would be for nothing."""
    if "source" not in cfg.datamodule:
        return
    from arpo.algorithms.rewards import is_worth_replaying
    from arpo.datamodules.examples import read_examples
    from arpo.modules.base import PolicyModule

    module = pydoc.locate(str(cfg.module.get("_target_")))
    data, threshold = cfg.datamodule, cfg.rollout.settings.success_threshold
    read_examples(
        TrajectoryStore(store_of(str(data.source))),
        build(data.examples),
        lambda trajectory: is_worth_replaying(trajectory, threshold=threshold),
        first=data.first,
        outcomes=data.outcomes,
        seed=data.seed,
        least=module.least_examples if isinstance(module, type) and issubclass(module, PolicyModule) else 1,
    )


def check_constructors(cfg: DictConfig, parts: tuple[str, ...] = ()) -> None:
    """Check the arguments of all constructors, light ones first.

    Args:
        cfg: The configuration.
        parts: Keys at its top that count; all by default.
    """
    if "make" not in cfg.model:
        from arpo.run.model import check_family

        check_family(cfg)
    for rooms in STAGES:
        check_arguments(cfg, rooms)
        try_constructors(cfg, rooms, parts)
    from arpo.run.model import check_context, check_learning, check_optimizer

    check_learning(cfg)
    check_context(cfg)
    check_optimizer(cfg)


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


def check_model(cfg: DictConfig) -> None:
    """Check that the model answers as its prompt asks, which a tiny one learns to, as its warm start does."""
    trained, asked = cfg.model.get("grammar"), build(cfg.prompt, "prompt").grammar
    if trained not in (None, asked):
        raise ConfigError(
            f"prompt._target_={cfg.prompt._target_} asks for answers in the grammar {asked}, and the model was "
            f"trained to answer in {trained}, which also names points in another way: leave prompt= out, since "
            f"model= brings its own, or set model.grammar={asked} if this checkpoint was trained with such a prompt"
        )
    if "make" not in cfg.model and (imitates(cfg) or cfg.warmstart is not None):
        raise ConfigError(
            f"{f'experiment={cfg.name}' if imitates(cfg) else f'warmstart={cfg.warmstart}'} makes a tiny model and "
            "teaches it, and this model is a checkpoint that is there already: choose model=tiny, tiny_qwen3 or "
            "tiny_qwen3_5, or leave the warm start out"
        )


def check_callbacks(cfg: DictConfig) -> None:
    """Check that a callback takes what the policy learns to the engine."""
    from arpo.callbacks.weight_sync import WeightSync

    targets = [pydoc.locate(str(node.get("_target_"))) for node in cfg.callbacks.values() if node]
    if imitates(cfg) or any(isinstance(target, type) and issubclass(target, WeightSync) for target in targets):
        return
    raise ConfigError(
        "no callback sends the policy to the engine, which would go on with the weights that it started with: put "
        "callbacks.weight_sync back"
    )


def check_step_rewards(cfg: DictConfig) -> None:
    """Check that an environment of ours rewards steps where the method learns from nothing else."""
    chosen, env = OmegaConf.select(cfg, "module.objective._target_"), _room(cfg.env.make_env.get("_target_"))
    if chosen in (None, USUAL_METHOD) or env not in EXAMPLES or env in REWARDS_STEPS:
        return
    from arpo.methods.method import Method

    method = pydoc.locate(str(chosen))
    if isinstance(method, type) and issubclass(method, Method) and method.asks.step_rewards:
        raise ConfigError(
            f"{chosen} learns from the rewards of steps, and the environment {env} gives none: take env=recorded "
            "tasks=recorded source=DIR, or another method"
        )


def _plain(node: DictConfig) -> Mapping[str, object]:
    return OmegaConf.to_container(node, resolve=True)  # type: ignore[return-value]
