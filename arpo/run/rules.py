"""Rules that the parts of a run keep together: each yields a sentence where it is broken, and all are raised at once.

The arguments of one constructor are checked by `arguments.py`. A rule that needs torch imports it in its body.
"""

import math
import pydoc
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from arpo.envs.protocol import BrowserEnv, KnownDesktop
from arpo.errors import ConfigError
from arpo.rollout.storage import TrajectoryStore, store_of
from arpo.run.build import build, engines_sleep, imitates, method_of, rolls_out
from arpo.run.choices import choices_of
from arpo.run.folder import rank
from arpo.run.warmstart import WarmStart

OPTIONAL = {"lightning.pytorch.loggers.WandbLogger": "wandb"}
"""Packages that requirements.txt leaves out, by the class that needs them."""
SHARDED = "arpo.modules.strategy.ShardedStrategy"
WHOLE_MATRICES = ("arpo.modules.muon.MuonWithAdamW", "torch.optim.Muon")
"""Optimizers whose update of a matrix is not made of those of its parts."""
SCALED = ("16", "16-mixed")
"""Precisions whose losses are scaled, and whose gradients would be clipped at that scale."""
OFFLINE = "experiment=offline_rs, offline_dpo or offline_kto"

_CLIP = "module.max_grad_norm bounds the norm of a gradient"
_LENGTH = "iterations says how long a run is, and datamodule what an iteration has"
_EVALUATION = "callbacks.evaluation.every_n_iterations says when a policy is evaluated, not by Lightning"
INSTEAD = {
    "gradient_clip_val": _CLIP,
    "gradient_clip_algorithm": _CLIP,
    "accumulate_grad_batches": "module.micro_batch_tokens bounds the memory of a forward, whose gradients add up, and "
    "module.minibatches, where there are rollouts, says how many optimizer steps an iteration has",
    **dict.fromkeys(("max_steps", "min_steps", "min_epochs", "limit_train_batches", "overfit_batches"), _LENGTH),
    "fast_dev_run": "iterations=1 is the shortest run, and `python -m arpo rehearse` makes a small one",
    "reload_dataloaders_every_n_epochs": "the data module goes on from where it was",
    **dict.fromkeys(("val_check_interval", "check_val_every_n_epoch", "limit_val_batches"), _EVALUATION),
    **dict.fromkeys(("limit_test_batches", "limit_predict_batches"), _EVALUATION),
    "callbacks": "+callbacks.NAME={_target_: …} adds a callback",
    "logger": "+logger.NAME={_target_: …} adds a logger",
    "plugins": "a run brings its own",
    "default_root_dir": "paths.output and hydra.run.dir say where a run writes",
    "barebones": "a run has loggers and checkpoints",
    "sync_batchnorm": "no policy here has batch normalisation",
}
"""What replaces an option of Lightning's trainer: optimization is manual, and an epoch is an iteration."""


class FlatConfig:
    """A configuration as a table by dotted keys: `chosen["module.optimizer.lr"]`, None where there is no such key."""

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg = cfg
        self.imitates = imitates(cfg)
        self.learns_from_groups = rolls_out(cfg) and self["module.objective._target_"] is not None
        self.engines_sleep = engines_sleep(cfg)

    def __getitem__(self, key: str) -> Any:
        value = OmegaConf.select(self.cfg, key)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value

    def __contains__(self, key: str) -> bool:
        place, _, name = key.rpartition(".")
        node = OmegaConf.select(self.cfg, place) if place else self.cfg
        return isinstance(node, DictConfig) and name in node

    def number(self, key: str) -> int | None:
        """Return a whole number, None where something else stands there, which a rule of its own names."""
        value = self[key]
        return value if isinstance(value, int) else None

    def find(self, key: str) -> Any:
        """Return the class or function that the target of a node names, None where there is none."""
        return pydoc.locate(str(self[f"{key}._target_"]))

    def kind(self, key: str, base: Any) -> Any:
        """Return the class that the target of a node names, None where it is no subclass of another one."""
        found = self.find(key)
        return found if isinstance(found, type) and issubclass(found, base) else None

    @cached_property
    def method(self) -> Any:
        """The method of learning, built."""
        return method_of(self.cfg)

    @cached_property
    def warmstart(self) -> WarmStart | None:
        """The experiment that writes the policy to start with."""
        return WarmStart.of(self.cfg)

    @property
    def has_model(self) -> bool:
        """Whether the checkpoint to start with is there."""
        return not OmegaConf.is_missing(self.cfg.model, "path") and is_model(self["model.path"])


Rule = Callable[[FlatConfig], Iterator[str]]


def check_rules(cfg: DictConfig, *groups: Sequence[Rule]) -> None:
    """Check some groups of rules, and raise all that are broken as one error."""
    chosen = FlatConfig(cfg)
    broken: list[str] = []
    for rule in (rule for group in groups for rule in group):
        try:
            broken += rule(chosen)
        except ConfigError as error:  # of a part that the rule has built
            broken.append(str(error))
        except OmegaConfBaseException as error:
            problem = str(error.msg).partition("\n")[0]
            broken.append(f"{problem} (configuration key: {error.full_key})")
    lines = list(dict.fromkeys(broken))
    if lines:
        raise ConfigError(lines[0] if len(lines) == 1 else "\n  - ".join(["several things do not fit:", *lines]))


def is_model(path: object) -> bool:
    """Return whether a directory holds a model that transformers loads."""
    return (Path(str(path)) / "config.json").exists()


# --- the place: environment, folder and loggers ---


def tasks_suit_the_environment(chosen: FlatConfig) -> Iterator[str]:
    """Check that tasks were written for the environment, where both are ours; in a mixture, part by part."""
    for name, node in chosen.cfg.tasks.items():
        if isinstance(node, DictConfig) and chosen["env.parts"] and _room(node.get("_target_")) == "mixture":
            yield from _unfit_parts(chosen, f"tasks.{name}", node)
        else:
            yield from _unfit_tasks(chosen, "env", f"tasks.{name}", node)


def _unfit_parts(chosen: FlatConfig, key: str, node: DictConfig) -> Iterator[str]:
    steps = chosen.number("rollout.settings.max_steps")
    for part, tasks in node.parts.items():
        if part in chosen.cfg.env.parts:
            yield from _unfit_tasks(chosen, f"env.parts.{part}", f"{key}.parts.{part}", tasks)
        else:
            yield f"{key}.parts.{part}: env.parts has no part of this name, but {', '.join(chosen.cfg.env.parts)}"
    for part, limit in (node.get("max_steps") or {}).items():
        if steps is not None and isinstance(limit, int) and limit > steps:
            yield (
                f"{key}.max_steps.{part}={limit} is more than rollout.settings.max_steps={steps}, by which "
                "screenshots and memory are counted: raise that to the longest of the parts"
            )


def _unfit_tasks(chosen: FlatConfig, env: str, key: str, node: Any) -> Iterator[str]:
    desktop = _room(chosen[f"{env}.make_env._target_"] or chosen[f"{env}._target_"])
    room, loader = None, node
    while isinstance(loader, DictConfig) and room is None:  # it may choose among another one's tasks
        room, loader = _room(loader.get("_target_")), loader.get("tasks")
    if None not in (desktop, room) and room != desktop:
        kind = chosen.kind(f"{env}.make_env", KnownDesktop)
        example = f", such as tasks={kind.example_tasks}" if kind else ""
        yield (
            f"{key} are tasks of {room}, which the environment {desktop} cannot run: choose tasks for it"
            f"{example}, or env={room}"
        )


def _room(target: object) -> str | None:
    """Return the environment of ours that a target belongs to; tasks made of recordings are read in `rollout`."""
    found = re.match(r"arpo\.(?:envs|rollout)\.(\w+)\.", str(target))
    return found[1] if found else None


def the_folder_is_its_own(chosen: FlatConfig) -> Iterator[str]:
    """Check that a new run is not written over an old one, and `resume` names a checkpoint of this one."""
    resume, run_dir, own = chosen["resume"], Path(chosen["paths.run_dir"]), Path(chosen["paths.checkpoints"])
    metrics, path = run_dir / "metrics.jsonl", Path(str(resume))
    if resume != "auto" and metrics.exists() and metrics.stat().st_size:
        yield (
            f"{run_dir} already holds a run. Continue it with resume=auto, start a second one elsewhere with "
            "paths.output=DIR, or delete the folder"
        )
    if resume not in (None, "auto") and not path.exists():
        yield f"resume={path}: there is no such checkpoint; resume=auto finds the newest one of this run"
    elif resume not in (None, "auto") and path.parent.resolve() != own.resolve():
        yield (
            f"resume={path} belongs to another run than {own.parent}. Continue there: give that run's overrides, or "
            "hydra.run.dir=DIR with its folder"
        )


def loggers_are_installed(chosen: FlatConfig) -> Iterator[str]:
    """Check that the packages of loggers are installed that no other part needs."""
    for name in chosen.cfg.get("logger") or ():
        package = OPTIONAL.get(str(chosen[f"logger.{name}._target_"]))
        if package is not None and find_spec(package) is None:
            yield f"logger={name} needs the package {package}, which is not installed: `uv pip install {package}`"


PLACE: tuple[Rule, ...] = (tasks_suit_the_environment, the_folder_is_its_own, loggers_are_installed)


# --- numbers, GPUs and engines ---


def counts_are_whole(chosen: FlatConfig) -> Iterator[str]:
    """Check that whatever is counted is a whole number of at least 1."""
    for name in ("iterations", "threads", "trainer.max_epochs", "trainer.num_nodes", "gpus"):
        if (chosen.number(name) or 0) < 1:
            yield f"{name} must be a whole number of at least 1, got {chosen[name]}"
    for name in ("engine.replicas", "engine.nodes"):
        number = chosen.number(name)
        if number is not None and number < 1:
            yield f"{name} must be at least 1, got {number}"
    if not 0 <= (-1 if chosen.number("seed") is None else chosen["seed"]) < 2**32:
        yield f"seed must be a whole number from 0 to {2**32 - 1}, got {chosen['seed']}"


def the_model_suits_the_run(chosen: FlatConfig) -> Iterator[str]:
    """Check that the model answers as its prompt asks, which a tiny one learns to, as its warm start does."""
    trained, asked = chosen["model.grammar"], build(chosen.cfg.prompt, "prompt").grammar
    if trained not in (None, asked):
        yield (
            f"prompt._target_={chosen['prompt._target_']} asks for answers in the grammar {asked}, and the model was "
            f"trained to answer in {trained}, which also names points in another way: leave prompt= out, since model= "
            f"brings its own, or set model.grammar={asked} if this checkpoint was trained with such a prompt"
        )
    if "model.make" not in chosen and (chosen.imitates or chosen["warmstart"] is not None):
        maker = f"experiment={chosen['name']}" if chosen.imitates else f"warmstart={chosen['warmstart']}"
        yield (
            f"{maker} makes a tiny model and teaches it, and this model is a checkpoint that is there already: choose "
            "model=tiny, tiny_qwen3 or tiny_qwen3_5, or leave the warm start out"
        )


def gpus_are_shared_out(chosen: FlatConfig) -> Iterator[str]:
    """Check that the GPUs of a node are enough for its trainer and its engines."""
    gpus, nodes = chosen.number("gpus") or 0, chosen.number("trainer.num_nodes") or 0
    devices = chosen["trainer.devices"]
    ranks = len(devices) if isinstance(devices, list) else chosen.number("trainer.devices") or 1
    if ranks > 1 and chosen["trainer.strategy"] is None:
        yield (f"trainer.devices={devices} are {ranks} processes: choose trainer=ddp or trainer=fsdp, or one device")
    if gpus < 1 or nodes < 1:
        return
    if gpus % nodes:
        yield f"gpus={gpus} must be a multiple of trainer.num_nodes={nodes}: it counts all nodes"
    on_node = serving = gpus // nodes
    if "serving_gpus" in chosen:
        serving = chosen["serving_gpus"]
        if not 1 <= serving < on_node:
            yield (
                f"serving_gpus={serving} must be at least 1 and leave some of the {on_node} GPU(s) of a node to "
                "train; with one GPU take layout=colocated"
            )
    replicas, each = chosen["engine.replicas"] or 0, chosen["engine.num_gpus"] or 1
    if chosen["requires.gpus"] and ranks > on_node:
        yield (
            f"trainer.devices={devices} wants {ranks} GPUs of a node, and gpus={gpus} with trainer.num_nodes={nodes} "
            f"are {on_node}: lower trainer.devices, or raise gpus"
        )
    if chosen["requires.gpus"] and replicas * each > serving:
        yield (
            f"engine.replicas={replicas} with engine.num_gpus={each} want more than the {serving} GPUs of a node that "
            "serve"
        )
    divided = chosen["engine.make_engine.engine_args.tensor_parallel_size"] or 1
    if chosen["engine.num_gpus"] and divided > max(each, 1):
        yield (
            f"engine.num_gpus={each} gives each engine fewer GPUs than its tensor_parallel_size={divided} wants: set "
            "both to the same number"
        )


def engines_can_answer(chosen: FlatConfig) -> Iterator[str]:
    """Check that an engine is in no trainer of several, awake when it is asked, and has the weights asked for."""
    lag, strategy = chosen["rollout.settings.max_policy_lag"], chosen["trainer.strategy"]
    in_trainer = chosen["engine._target_"] == "arpo.inference.vllm.VllmEngine"
    if in_trainer and strategy is not None and not chosen.imitates:
        yield "a trainer of several processes cannot have vLLM in one of them: choose engine=fleet, or trainer=default"
    if chosen.engines_sleep and lag:
        yield (
            f"rollout.settings.max_policy_lag={lag} lets rollouts go on during an update, when the engines of "
            "layout=colocated sleep: take layout=split, or max_policy_lag=0"
        )
    if chosen.engines_sleep and chosen["callbacks.judge._target_"]:
        yield (
            "judge=own asks the engine during an update, when the engines of layout=colocated sleep: take "
            "layout=split, or judge=off"
        )
    if chosen["engine.sync"] == "rolling" and lag == 0:
        yield (
            "engine.sync=rolling lets engines answer with the weights of before while others have new ones: set "
            "rollout.settings.max_policy_lag to 1 or more, or engine.sync=global"
        )


def a_foreign_agent_decides_for_itself(chosen: FlatConfig) -> Iterator[str]:
    """Check that nothing is asked of a foreign agent that our own loop alone does."""
    if not chosen["harness"]:
        return
    if chosen["rollout.settings.image_window"] is not None:
        yield "rollout.settings.image_window is for harness=own: a foreign agent chooses what it sends; leave it out"
    if chosen["evaluation.protocol"] == "standard":
        yield "evaluation.protocol=standard replaces a response of harness=own: take evaluation.protocol=hard"
    if chosen["harness.devtools"] and not chosen.kind("env.make_env", BrowserEnv):
        yield "harness.devtools=true is for environments with a browser: take env=miniwob, or leave it out"


NUMBERS: tuple[Rule, ...] = (
    counts_are_whole,
    the_model_suits_the_run,
    gpus_are_shared_out,
    engines_can_answer,
    a_foreign_agent_decides_for_itself,
)


# --- a training: its values, the trainer's options, and what is on the disk ---


def values_are_finite(chosen: FlatConfig) -> Iterator[str]:
    """Check that every value can be read, and none is infinite or not a number."""
    waiting: list[tuple[str, Any]] = [("", OmegaConf.to_container(chosen.cfg, resolve=True))]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{place}={value} must be a finite number"
        inside: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        waiting += [(f"{place}.{key}" if place else str(key), member) for key, member in inside]


def the_update_can_learn(chosen: FlatConfig) -> Iterator[str]:
    """Check that an update has whole matrices, tokens scored as they were sampled, and iterations to learn in."""
    optimizer = chosen["module.optimizer._target_"]
    if optimizer in WHOLE_MATRICES and chosen["trainer.strategy._target_"] == SHARDED:
        yield (
            f"module.optimizer._target_={optimizer} needs whole matrices, and trainer=fsdp has a part of each on a "
            "rank: take trainer=ddp, or AdamW"
        )
    own, sampled = chosen["module.temperature"], chosen["rollout.settings.temperature"]
    if chosen.learns_from_groups and own != sampled:
        yield (
            f"module.temperature={own} must be rollout.settings.temperature={sampled}: log-probabilities are of the "
            "distribution that was sampled; leave module.temperature out"
        )
    warmup, iterations = chosen.number("module.critic_warmup") or 0, chosen.number("iterations") or 0
    if warmup >= iterations >= 1:
        yield (
            f"module.critic_warmup={warmup} leaves none of iterations={iterations} to the policy: raise "
            "iterations, or lower module.critic_warmup"
        )


def no_option_of_the_trainer_is_ignored(chosen: FlatConfig) -> Iterator[str]:
    """Check that no option of Lightning's trainer is set that a run ignores, or that ends it after its start."""
    for name, value in chosen.cfg.trainer.items_ex(resolve=False):
        usual = value is None or (not value and name != "logger" and not name.startswith("limit_"))
        if name in INSTEAD and not usual and (name, value) != ("accumulate_grad_batches", 1):
            yield f"trainer.{name}={value} has no place in a run: {INSTEAD[name]}; leave it out"
    if str(chosen["trainer.precision"]) in SCALED:
        yield (
            f"precision={chosen['trainer.precision']} of the trainer scales gradients, and module.max_grad_norm would "
            "clip them at that scale: take bf16-mixed, or model.policy.dtype=bfloat16"
        )


def the_pool_has_successes(chosen: FlatConfig) -> Iterator[str]:
    """Check that successes collected beforehand are there or to come; a run that goes on has copies."""
    experience, warmstart = chosen["experience"], chosen.warmstart
    if not isinstance(experience, list):
        yield f"experience={experience} must be directories in brackets: experience=[DIR], or []"
        return
    if chosen["replay.pool"] is None:
        return
    if experience and chosen["module.replayed_old_logprobs"] == "stored":
        yield (
            "module.replayed_old_logprobs=stored wants the log-probabilities with which a replayed trajectory was "
            "sampled, and those in experience may have none, such as a script's: take "
            "module.replayed_old_logprobs=recompute, or replay=on"
        )
    if chosen["resume"] is not None and any(Path(chosen["paths.checkpoints"]).glob("iteration_*")):
        return
    if not experience and not chosen["replay.remembers"]:
        preset = f", which preset={chosen['preset_of.name']} chooses," if chosen["preset_of.name"] else ""
        yield (
            f"replay=pool{preset} begins with the successes in experience and remembers no others, and experience=[] "
            "names none, so that nothing would ever be replayed: set experience=[DIR] or replay.remembers=true, or "
            "choose replay=off"
        )
    own = warmstart.demonstrations if warmstart else None
    to_come = warmstart is not None and not warmstart.is_shipped and not chosen.has_model
    for directory in experience:
        if not (directory == own and to_come) and not TrajectoryStore(str(directory)).iterations():
            makes = f"; python train.py experiment={chosen['warmstart']} makes them" if directory == own else ""
            yield (
                f"experience: {directory} holds no trajectories; name the trajectories/ of a run or of an evaluation, "
                f"or the demonstrations/ of a warm start, or choose replay=on{makes}"
            )


def stored_data_is_there(chosen: FlatConfig) -> Iterator[str]:
    """Check that the episodes of a run from stored data are there, and no part of it acts on rollouts."""
    if chosen.imitates or "datamodule.source" in chosen:
        usual = chosen["replay.buffer._target_"] == "arpo.replay.ReplayBuffer"  # replay=on, which is not built
        for name in ("entropulse", "judge") if usual else ("replay", "entropulse", "judge"):
            if chosen[f"{name}._target_"]:
                yield f"{name} acts on rollouts, of which this run has none: leave it out"
    if "datamodule.source" not in chosen:
        return
    source = str(chosen["datamodule.source"])
    if not source or not TrajectoryStore(store_of(source)).iterations():
        yield (
            f"source={source} holds no episodes to learn from: name the folder of a run, such as "
            "source=outputs/arpo_miniwob/default, which `python train.py experiment=arpo_miniwob` writes"
        )
    steps, iterations = chosen.number("datamodule.steps") or 0, chosen.number("iterations") or 1
    if steps % iterations:
        yield f"datamodule.steps={steps} must be a multiple of iterations={iterations}: each has as many"


def the_warm_start_writes_the_model(chosen: FlatConfig) -> Iterator[str]:
    """Check that a checkpoint that is not there yet is the one that the warm start writes."""
    warmstart, path = chosen.warmstart, chosen["model.path"]
    if warmstart is None or chosen.has_model:
        return
    known = [name for name in choices_of("experiment") if name.startswith("warmstart_")]
    if warmstart.name not in known:
        yield f"warmstart={warmstart.name} is no experiment that writes a policy; choose one of {', '.join(known)}"
    elif path is None or Path(path) != Path(warmstart.policy):
        yield (
            f"there is no checkpoint at model.path={path}, and experiment={warmstart.name} would write one to "
            f"{warmstart.policy}: leave model.path out, or set it to a directory that exists"
        )


TRAINING: tuple[Rule, ...] = (
    values_are_finite,
    the_update_can_learn,
    no_option_of_the_trainer_is_ignored,
    the_pool_has_successes,
    stored_data_is_there,
    the_warm_start_writes_the_model,
)


# --- the classes of a training, whose arguments have the right types: torch is imported ---


def the_module_learns_from_its_data(chosen: FlatConfig) -> Iterator[str]:
    """Check that the module learns from what the data module gives it."""
    from arpo.modules.base import PolicyModule

    module, target = chosen.kind("module", PolicyModule), chosen["module._target_"]
    wanted, offline = module.learns_from if module else None, "datamodule.source" in chosen
    room, given = "arpo.datamodules.examples.", str(chosen["datamodule.examples._target_"])
    if not offline and wanted not in (None, "rollouts", "successes"):
        yield f"module={target} learns from stored episodes, not from rollouts: take {OFFLINE}"
    if not offline or module is None or wanted is None:
        return
    if wanted == "rollouts":
        yield f"module={target} learns from rollouts, and datamodule=trajectories has none: take {OFFLINE}"
    elif given.startswith(room) and given != room + wanted:
        yield (
            f"datamodule.examples._target_={given} is not what this module learns from: take {room}{wanted}, or "
            f"{OFFLINE}"
        )
    batch, least = chosen.number("datamodule.batch_size") or 0, module.least_examples
    if 1 <= batch < least:
        yield f"module={target} compares each episode with others of its batch: datamodule.batch_size={least} or more"


def the_method_suits_the_run(chosen: FlatConfig) -> Iterator[str]:
    """Check that a method has its preset's numbers, the rewards that it learns from, and what it compares."""
    from arpo.methods.method import Method

    name, meant = chosen["module.objective._target_"], chosen["preset_of.objective"]
    if meant not in (None, name) and not chosen.kind("module.objective", pydoc.locate(meant)):
        yield (
            f"preset={chosen['preset_of.name']} has numbers for {meant}, and this run learns by "
            f"{name or chosen['module._target_']}: leave out the preset, and an experiment that brings it, or the "
            "method"
        )
    kind, desktop = chosen.kind("module.objective", Method), chosen.kind("env.make_env", KnownDesktop)
    if kind and kind.asks.step_rewards and desktop and not desktop.steps_are_rewarded:
        yield (
            f"{name} learns from the rewards of steps, and {desktop.__name__} gives none: take env=recorded "
            "tasks=recorded source=DIR, or another method"
        )
    if not chosen.learns_from_groups:
        return
    if chosen["harness"] and chosen.method.needs.steps:
        yield (
            f"{name} gives credit to steps, and a foreign agent's requests are not its steps: take harness=own, or a "
            "method that gives it to episodes, such as GRPO, the default"
        )
    size, grows = chosen["rollout.settings.group_size"], chosen["replay.buffer.replaced"] == "none"
    learns = chosen["module.optimizer.lr"] != 0  # or it only collects
    if size == 1 and learns and not grows and not chosen.method.allows_single_episode_groups:
        yield (
            "rollout.settings.group_size=1 leaves nothing to compare an episode with, so that every advantage is 0: "
            "set it to 2 or more, imitate successes with module.objective.imitation, take a method with a critic, or "
            "only collect, with module.optimizer.lr=0"
        )
    if chosen.method.needs.values and chosen["trainer.strategy._target_"] == SHARDED:
        yield (
            f"module.objective._target_={name} needs a critic, which trainer=fsdp does not cut into shards: take "
            "trainer=ddp, or a method that needs no values"
        )
    steps, tokens = chosen["rollout.settings.max_steps"], chosen["rollout.settings.max_tokens"]
    tasks = chosen["datamodule.sampler.tasks_per_iteration"]
    if tasks is not None and (complaint := chosen.method.complaint(tasks * (size + grows) * steps * tokens)):
        yield complaint


def the_engine_gets_the_policy(chosen: FlatConfig) -> Iterator[str]:
    """Check that a callback takes what the policy learns to the engine."""
    from arpo.callbacks.weight_sync import WeightSync

    if not chosen.imitates and not any(chosen.kind(f"callbacks.{name}", WeightSync) for name in chosen.cfg.callbacks):
        yield (
            "no callback sends the policy to the engine, which would go on with the weights that it started with: put "
            "callbacks.weight_sync back"
        )


CLASSES: tuple[Rule, ...] = (the_module_learns_from_its_data, the_method_suits_the_run, the_engine_gets_the_policy)


# --- the checkpoint, which a warm start may have to write first, and stored episodes ---


def the_checkpoint_is_of_the_family(chosen: FlatConfig) -> Iterator[str]:
    """Check that a checkpoint is of the family of the model that was chosen, which brings a prompt and a grammar."""
    from arpo.models.family import family_of

    path, family = chosen["model.path"], chosen["model.family"]
    if "model.make" in chosen or family is None or not chosen.has_model:
        return
    found = family_of(path).model_type
    if found != family:
        yield (
            f"model.path={path} is of the family {found}, and model= chose one of {family}, with another prompt and "
            f"another way to name points: choose a model of conf/model with `family: {found}`, or another path"
        )


def conversations_fit_the_model(chosen: FlatConfig) -> Iterator[str]:
    """Check that conversations are at most as long as the model was made for."""
    from arpo.inference.engine import context_of
    from arpo.models.tiny import CONTEXT

    tiny = (chosen["model.make.context"] or CONTEXT) if "model.make" in chosen else None
    limit, wanted = context_of(chosen["model.path"]) or tiny, chosen["rollout.settings.max_context"]
    if limit is not None and wanted > limit and not chosen.imitates:
        yield (
            f"max_context={wanted} is above the {limit} tokens that the model was made for: lower "
            "rollout.settings.max_context"
        )


def the_teacher_reads_what_the_policy_reads(chosen: FlatConfig) -> Iterator[str]:
    """Check that a teacher is there, and has the vocabulary, the pictures and the family of the policy."""
    from arpo.models.tokenization import ChatTokenizer

    path = chosen["module.teacher.path"]
    if path == chosen["model.path"]:  # a rehearsal's
        return
    if path is not None and not is_model(path):
        yield (
            f"teacher={path} holds no policy: name a folder with config.json, such as policy/ of a warm start, or "
            "what evaluate.py writes with export=DIR"
        )
    elif path is not None and chosen.has_model:
        ChatTokenizer(chosen["model.path"]).check_teacher(ChatTokenizer(path))


def the_optimizer_takes_its_arguments(chosen: FlatConfig) -> Iterator[str]:
    """Check that the optimizer can be built, of one parameter: the policy's are not there yet."""
    import torch

    try:
        build(chosen.cfg.module.optimizer)([("weight", torch.nn.Parameter(torch.zeros(1, 1)))])
    except (TypeError, ValueError) as error:
        yield f"{error} (configuration key: module.optimizer)"


def examples_are_enough(chosen: FlatConfig) -> Iterator[str]:
    """Check that stored episodes make as many examples as the module compares."""
    from arpo.algorithms.rewards import is_worth_replaying
    from arpo.datamodules.examples import read_examples
    from arpo.modules.base import PolicyModule

    if "datamodule.source" in chosen:
        data, module = chosen.cfg.datamodule, chosen.kind("module", PolicyModule)
        threshold = chosen["rollout.settings.success_threshold"]
        read_examples(
            TrajectoryStore(store_of(str(data.source))),
            build(data.examples),
            lambda trajectory: is_worth_replaying(trajectory, threshold=threshold),
            first=data.first,
            outcomes=data.outcomes,
            seed=data.seed,
            least=module.least_examples if module else 1,
        )
    yield from ()


def weights_fit_the_store(chosen: FlatConfig) -> Iterator[str]:
    """Check that Ray's object store has room for the weights of a fleet; a model that is to come is a tiny one."""
    from arpo.host.ray import check_store
    from arpo.inference.vllm import has_several_processes
    from arpo.models.checkpoint import update_numbers
    from arpo.models.policy import dtype_of

    if "engine.make_engine" in chosen and not chosen.imitates and chosen.has_model and rank() == 0:
        lora = chosen["model.policy.lora.rank"]
        in_files = lora is None and has_several_processes(chosen["engine.make_engine.engine_args"] or {})
        numbers, width = update_numbers(chosen["model.path"], lora), dtype_of(chosen["model.policy.dtype"]).itemsize
        check_store(numbers * width, copies=int(chosen["engine.replicas"]) if in_files else 0)
    yield from ()


MODEL: tuple[Rule, ...] = (
    conversations_fit_the_model,
    the_teacher_reads_what_the_policy_reads,
    the_optimizer_takes_its_arguments,
)
STORED: tuple[Rule, ...] = (examples_are_enough, weights_fit_the_store)
