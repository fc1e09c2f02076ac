"""A plan of a run from its configuration: its needs, whether it fits, and the settings that would help.

python -m arpo plan experiment=arpo_subset32 gpus=8 gpu=h100-80
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from arpo.apps.plan import costs
from arpo.apps.plan.costs import Case, Offloaded, Work
from arpo.apps.plan.fake import stand_in
from arpo.apps.plan.hardware import GIB, Gpu, HostSpeeds, Layout, Strategy
from arpo.apps.plan.longest import WorstCaseTrajectory
from arpo.apps.plan.report import Plan, Row, advise, if_any
from arpo.apps.plan.update import simulate, with_shared
from arpo.errors import ArpoError, ConfigError
from arpo.host.log_lines import log_to_terminal
from arpo.host.machine import Budget
from arpo.host.terminal import print_table
from arpo.inference.vllm import has_several_processes
from arpo.models.family import family_named
from arpo.models.policy import dtype_of
from arpo.models.tokenization import ChatTokenizer
from arpo.modules.grpo import GRPOModule
from arpo.modules.offline.base import OfflineModule
from arpo.run.arguments import check_arguments
from arpo.run.build import build, engine_key, engines_sleep, imitates, method_of, rolls_out
from arpo.run.build import compose as compose_file
from arpo.run.choices import CONF, short_choices
from arpo.run.rules import CLASSES, NUMBERS, check_rules, the_model_suits_the_run, the_update_can_learn

log = logging.getLogger(__name__)

NO_GPU = ("training GPU", "0.0 GiB", "a warm start teaches a tiny model, which a CPU trains")
PASSES_BEFORE = {"successes": 0.0, "pairs": 1.0, "every_episode": 3.0}
"""Forwards of the policy for each trajectory before an offline update, by the examples that it learns from."""
compose = partial(compose_file, "plan")
"""The configuration of conf/plan.yaml with the overrides of the command line."""
VLLM = "arpo.inference.vllm.VllmEngine"
SHARE = "engine_args.gpu_memory_utilization"
DIVIDED = "engine_args.tensor_parallel_size"
OFFLOADED = "arpo.modules.offload.OffloadedAdamW"
STRATEGIES: dict[str, Strategy] = {
    "lightning.pytorch.strategies.DDPStrategy": "ddp",
    "arpo.modules.strategy.ShardedStrategy": "fsdp",
}


def main(overrides: Sequence[str]) -> int:
    """Print the plan of a configuration and return the exit status: 0 where the run fits, 1 where it does not."""
    log_to_terminal(logging.WARNING)

    def attempt(settings: Sequence[str]) -> Plan | None:
        log.warning("  %s", " ".join(settings))
        try:
            tried = compose([*overrides, *" ".join(settings).split()])
            if OmegaConf.is_missing(tried.model, "path"):
                tried.model.path = cfg.model.path  # that of the shape, which the check resolves
            check_arguments(tried, ("arpo.inference", "arpo.modules", "arpo.models"))
            return estimate(tried)
        except (ConfigError, HydraException):
            return None  # they do not go with the others

    try:
        cfg = compose(overrides)
        if imitates(cfg):
            check_rules(cfg, [the_model_suits_the_run])
            print_table([("what", "figure", "from"), NO_GPU], title=cfg.name, caption="It fits: it needs no GPU.")
            return 0
        plan = estimate(cfg)
        title = f"{cfg.name} on {plan.case.layout.gpus} x {plan.case.gpu.name}"
        print_table(plan.rows(), title=title, caption=plan.verdict())
        if plan.troubles():
            log.warning("looking for the settings that help, each with a plan of its own:")
            table, caption = advise(plan, candidates(compose(overrides), plan), attempt)
            print_table(table, title="The settings that help most", caption=caption)
    except (ArpoError, HydraException, OmegaConfBaseException) as error:
        log.error("%s", error)  # noqa: TRY400 - the sentence is for a person, the traceback is not
        return 2
    return 1 if plan.troubles() else 0


def plan_for(cfg: DictConfig, memory_gib: float) -> Plan:
    """Return the plan of a training's configuration on GPUs with so much memory; its times mean nothing."""
    own: Any = OmegaConf.to_container(OmegaConf.load(CONF / "plan.yaml"))
    numbers = {key: value for key, value in own.items() if key not in ("defaults", "paths")}
    for group, choice in (chosen for entry in own["defaults"] if isinstance(entry, dict) for chosen in entry.items()):
        if not group.startswith("optional "):  # a shape, of which a run that can start has no need
            numbers[group] = short_choices()[group][choice]
    here = {
        "gpu": {"name": "GPU here", "memory_gib": memory_gib},
        "assumptions": {"cache_share": 0.0},  # PyTorch gives its cache back before it runs out
    }
    merged = OmegaConf.merge(numbers, cfg, here)
    assert isinstance(merged, DictConfig)
    return estimate(merged)


def estimate(cfg: DictConfig) -> Plan:
    """Return the plan of a configuration."""
    gpu: Gpu = build(cfg.gpu)
    check_rules(cfg, NUMBERS, [the_update_can_learn])
    check_rules(cfg, CLASSES)
    layout, settings, (width, height) = layout_of(cfg), cfg.rollout.settings, cfg.screen
    # A foreign agent's longest sequence is a conversation with as many screenshots as a request may have.
    max_steps = settings.max_steps if cfg.harness is None else cfg.harness.max_pictures
    with policy_directory(cfg) as path:
        longest = WorstCaseTrajectory(
            max_context=settings.max_context,
            max_steps=max_steps,
            max_tokens=settings.max_tokens,
            screen=(width, height),
            image_tokens=ChatTokenizer(path).image_tokens(width, height),
            image_window=settings.image_window,
        )
        cfg.model.path = str(path)
        cfg.model.policy._target_ = "arpo.apps.plan.fake.WeightlessPolicy"
        if teacher := cfg.module.get("teacher"):
            teacher._target_ = cfg.model.policy._target_
            teacher.path = teacher.path if (Path(teacher.path) / "config.json").exists() else str(path)
        module = build(cfg.module)
        if not isinstance(module, GRPOModule | OfflineModule):
            raise ConfigError(f"there is no plan for module._target_={cfg.module._target_}: choose a module of arpo")
        buckets = not OmegaConf.select(cfg, "trainer.strategy.gradient_as_bucket_view", default=False)
        ranks, length = layout.trainers, cfg.iterations
        simulated = simulate(
            module, longest, strategy=layout.strategy, ranks=ranks, iterations=length, buckets=buckets
        )
    weights = simulated.weights
    if has_one_copy(cfg, layout):
        in_turn = not settings.max_policy_lag
        weights = with_shared(weights, simulated.policy, dtype_of(cfg.engine.dtype), in_turn=in_turn)
    case = Case(simulated.shape, weights, longest, work_of(cfg), layout, gpu)
    given, share = cfg.assumptions, engine_share(cfg)
    shared = weights.shared_bytes
    resident = (simulated.resident - shared) / GIB if layout.name == "colocated" else 0.0
    return Plan(
        case=case,
        peak=simulated.peak,
        reserve_gib=given.reserve_gib,
        cache_gib=costs.cache_bytes(simulated.peak, given.cache_share) / GIB,
        engine_gib=kept_by_engine(cfg, layout, share * gpu.memory_gib, shared / GIB),
        serving=costs.serving(case, share=share, beside=resident),
        costs=[*_time_rows(cfg, case, simulated.offloaded), *_host_rows(cfg, case, simulated.offloaded)],
        share_key=share_key(cfg, layout),
    )


def _time_rows(cfg: DictConfig, case: Case, offloaded: Offloaded) -> list[Row]:
    mfu, speeds = cfg.assumptions.mfu, HostSpeeds(**cfg.assumptions.gb_s)
    if cfg.model.policy.get("gradient_checkpointing") == "selective":
        mfu = costs.selective_mfu(mfu, case)
    flops = costs.update_flops(case)
    update_s, offload_s = costs.update_seconds(flops, case, mfu), costs.offload_seconds(offloaded, case)
    legs, sleep_s = costs.sync_seconds(case, speeds), costs.sleep_seconds(case, speeds)
    sync_s = sum(legs.values())
    hours = cfg.iterations * (update_s + offload_s + sync_s + sleep_s) / 3600
    each_leg = ", ".join(f"{leg} {seconds:.1f}" for leg, seconds in legs.items())
    rollouts = f"{cfg.iterations} iterations; rollouts take what the desktops take"
    return [
        ("weight sync", f"{sync_s:.1f} s", f"{case.sync_bytes / 1e9:.2f} GB: {each_leg}"),
        ("engines asleep and awake", if_any(sleep_s, "s"), "an iteration"),
        ("update of a trajectory", f"{flops / 1e15:.1f} PFLOP", "without what checkpointing repeats"),
        ("updates of an iteration", f"{update_s:.0f} s", f"at an MFU of {100 * mfu:.0f} %"),
        ("price of offloading", if_any(offload_s, "s"), "an iteration, on top"),
        ("updates and syncs of the run", f"{hours:.1f} h", rollouts),
    ]


def _host_rows(cfg: DictConfig, case: Case, offloaded: Offloaded) -> list[Row]:
    given = cfg.assumptions
    host = costs.host_gib(case, offloaded, given.screenshot_mb, given.asleep_host)
    disk = costs.disk_gib(case, cfg.callbacks.checkpoint.keep, given.screenshot_mb)
    budget = OmegaConf.select(cfg, "requires.budget")
    return [
        ("offloaded to the host: moments", if_any(offloaded.optimizer / GIB, "GiB"), "a training GPU"),
        ("offloaded to the host: activations", if_any(offloaded.activations / GIB, "GiB"), "a training GPU"),
        *((f"host memory: {name}", f"{gib:.1f} GiB", "") for name, gib in host.items() if gib >= 0.05),
        ("host memory, first node", f"{sum(host.values()):.0f} GiB", "desktops on it come on top"),
        *((f"disk: {name}", f"{gib:.0f} GiB", "") for name, gib in disk.items()),
        _parts_row(cfg),
        ("desktops", "" if budget is None else Budget(**budget).needs(), "requires.budget"),
    ]


def _parts_row(cfg: DictConfig) -> Row:
    """Return the environments of a mixture; nothing of a run that has one kind."""
    parts = cfg.env.get("parts") or {}
    pooled = [pool for pool in parts.values() if pool.get("backend") != "thread"]
    workers = sum(math.ceil(own.size / own.get("envs_per_worker", 1)) for own in pooled)
    each = ", ".join(f"{part} {pool.size}" for part, pool in parts.items())
    return ("environments", each, f"{cfg.env.size} episodes at once; worker processes: {workers}")


def work_of(cfg: DictConfig) -> Work:
    """Return the work of an iteration, as the configuration has it."""
    shared = {
        "iterations": cfg.iterations,
        "environments": cfg.env.size,
        "fleet": "make_engine" in cfg.engine,
        "sleeps": engines_sleep(cfg),
    }
    if not rolls_out(cfg):
        examples = cfg.datamodule.examples._target_.rpartition(".")[2]
        steps = cfg.datamodule.steps // cfg.iterations
        return Work(
            trajectories=steps * cfg.datamodule.batch_size * (2 if examples == "pairs" else 1),
            minibatches=steps,
            epochs=1,
            reference=cfg.module.get("reference") is not None,
            passes_before=PASSES_BEFORE.get(examples, 1.0),
            recorded=False,
            **shared,
        )
    needs = method_of(cfg).needs
    return Work(
        trajectories=cfg.datamodule.sampler.tasks_per_iteration * cfg.rollout.settings.group_size,
        minibatches=cfg.module.minibatches,
        epochs=cfg.module.epochs,
        reference=needs.reference or needs.teacher,
        kept_steps=cfg.module.objective.high_entropy_steps,
        scores=needs.scores,
        recorded=OmegaConf.select(cfg, "callbacks.update_log") is not None,
        **shared,
    )


def engine_share(cfg: DictConfig) -> float:
    """Return the share of a GPU's memory that an engine takes: as it is configured, or as is assumed of its kind."""
    engine = OmegaConf.select(cfg, engine_key(cfg))
    usual = cfg.assumptions.engine_share if engine.get("_target_") == VLLM else cfg.assumptions.other_engine_share
    return float(OmegaConf.select(engine, SHARE) or usual)


def share_key(cfg: DictConfig, layout: Layout) -> str:
    """Return the override by which vLLM gets its share of a GPU that it has together with a trainer, or nothing."""
    key = engine_key(cfg)
    beside = layout.name != "split" and OmegaConf.select(cfg, f"{key}._target_") == VLLM
    return _override(cfg, f"{key}.{SHARE}") if beside else ""


def kept_by_engine(cfg: DictConfig, layout: Layout, share_gib: float, shared_gib: float = 0.0) -> float:
    """Return the GiB that an engine keeps on a training GPU during an update, beside what is the trainer's too."""
    if layout.name == "split":
        return 0.0
    return float(cfg.assumptions.asleep_gib) if engines_sleep(cfg) else max(0.0, share_gib - shared_gib)


def has_one_copy(cfg: DictConfig, layout: Layout) -> bool:
    """Return whether a policy may be views of the weights of an engine in its own process."""
    engine = cfg.engine
    shares = engine.get("_target_") == VLLM and engine.get("one_copy", True) and not engine.get("sleeps", False)
    in_process = layout.strategy == "single" and rolls_out(cfg)
    return bool(shares and in_process) and not has_several_processes(engine.get("engine_args") or {})


def layout_of(cfg: DictConfig) -> Layout:
    """Return the division of the GPUs between training and serving, as `layout=` has set it."""
    nodes = OmegaConf.select(cfg, "trainer.num_nodes", default=1)
    serving = OmegaConf.select(cfg, "serving_gpus", default=0) * nodes
    node = OmegaConf.select(cfg, "trainer.strategy")
    target = node.get("_target_") if isinstance(node, DictConfig) else node
    if target is not None and target not in STRATEGIES:
        raise ConfigError(f"there is no plan for trainer.strategy={target}: choose trainer=default, ddp or fsdp")
    strategy = STRATEGIES.get(target, "single")
    alone = strategy == "single" and "make_engine" not in cfg.engine  # one process is trainer and engine
    return Layout(
        name="split" if serving else "colocated",
        strategy=strategy,
        gpus=1 if alone else cfg.gpus,
        nodes=nodes,
        engine_gpus=serving,
        gpus_of_engine=OmegaConf.select(cfg, f"{engine_key(cfg)}.{DIVIDED}") or 1,
    )


@contextmanager
def policy_directory(cfg: DictConfig) -> Iterator[Path]:
    """Yield a directory that describes the policy: the checkpoint, or one of its shape where it is not there."""
    path = "" if OmegaConf.is_missing(cfg.model, "path") else str(cfg.model.path)
    if path and (Path(path) / "config.json").exists():
        yield Path(path)
    elif "make" in cfg.model:
        with TemporaryDirectory(prefix="arpo_plan_") as directory:
            yield build(cfg.model.make)(directory, corpus=())
    else:
        if "architecture" not in cfg:
            raise ConfigError(
                "there is no checkpoint at model.path, and no file of arpo/models/shapes has the name of the model: "
                "download it, or choose a model of its shape, such as architecture=qwen2_5_vl_7b"
            )
        architecture: Any = OmegaConf.to_container(cfg.architecture, resolve=True)
        with stand_in(architecture, *family_named(cfg.architecture.model_type).pixels) as directory:
            yield directory


def candidates(cfg: DictConfig, plan: Plan) -> list[str]:
    """Return settings that lower the need for memory and that a configuration does not have yet, the least loss first.

    First those that cost time alone, then more GPUs, then those by which less is trained or seen.
    """
    policy, settings, layout = cfg.model.policy, cfg.rollout.settings, plan.case.layout
    several = layout.gpus - layout.engine_gpus > 1
    tokens = settings.max_context // 2
    sleeps = engines_sleep(cfg)
    offers = {
        "trainer=fsdp": several and layout.strategy != "fsdp" and not method_of(cfg).needs.values,
        f"module.optimizer._target_={OFFLOADED}": cfg.module.optimizer._target_ == "torch.optim.AdamW",
        _setting(cfg, "model.policy.gradient_checkpointing", "true"): policy.get("gradient_checkpointing") is not True,
        "model.policy.offload_activations=true": policy.get("gradient_checkpointing", False)
        and not policy.get("offload_activations", False),
        "layout=colocated": not sleeps and not settings.get("max_policy_lag"),
        "layout=split": several and sleeps,
        f"gpus={2 * layout.gpus}": layout.strategy == "fsdp",
        _setting(cfg, "model.policy.train_vision", "false"): policy.get("train_vision", True)
        and policy.get("lora") is None,
        f"model={cfg.lora_model}": policy.get("lora") is None and cfg.model.get("grammar") == "ui_tars",
        f"rollout.settings.max_context={tokens} module.micro_batch_tokens={tokens}": tokens > 8192,
    }
    return [setting for setting, offered in offers.items() if offered]


def _setting(cfg: DictConfig, key: str, value: object) -> str:
    """Return an override of a key with its value."""
    return f"{_override(cfg, key)}={value}"


def _override(cfg: DictConfig, key: str) -> str:
    """Return the override of a key, which adds the key where the files leave it to a constructor."""
    place, _, name = key.rpartition(".")
    return key if name in (OmegaConf.select(cfg, place) or ()) else f"+{key}"
