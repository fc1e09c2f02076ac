"""A rehearsal is its experiment, but for what its list of changes names."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from arpo.apps.rehearsal import changes
from arpo.apps.rehearsal.changes import DryRunConfig, kept, with_small_numbers, with_stand_ins
from arpo.apps.rehearsal.rehearse import recast_of
from arpo.errors import ConfigError
from arpo.models.families.qwen2_5_vl import make_tiny
from arpo.run.build import build, compose
from arpo.run.choices import choices_of

EXPERIMENTS = [name for name in choices_of("experiment") if not name.startswith(("warmstart", "offline"))]
"""Those that do not learn from data which is there before they begin."""
PAPER = ("arpo_full", "arpo_subset32")


def composed(*overrides: str) -> DictConfig:
    cfg = compose("train", overrides)
    cfg.paths.run_dir = "run"
    return cfg


def recast(*overrides: str) -> DryRunConfig:
    result = with_stand_ins(composed(*overrides), Path("policy"))
    with_small_numbers(result)
    return result


def leaves(tree: Any, place: str = "") -> dict[str, Any]:
    if isinstance(tree, dict) and tree:
        parts = (leaves(value, f"{place}.{key}" if place else str(key)) for key, value in tree.items())
        return {key: value for part in parts for key, value in part.items()}
    return {place: tree}


def written(cfg: DictConfig) -> dict[str, Any]:
    """Every key as it is written, interpolations and all."""
    return leaves(OmegaConf.to_container(cfg))


VARIANTS = [
    ("experiment=arpo_subset32", "model=qwen2_5_vl_7b", "replay=off"),
    ("experiment=dart_miniwob", "preset=official", "rollout.settings.max_policy_lag=0"),
]


@pytest.mark.parametrize("words", [*((f"experiment={name}",) for name in EXPERIMENTS), *VARIANTS], ids=" ".join)
def test_whatever_is_different_is_in_the_list_and_numbers_are_lowered(words):
    before, played = composed(*words), recast(*words)
    one, other = written(before), written(played.cfg)
    different = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    listed = tuple(played.changes)
    # computed from num_gpus, which becomes 0, and from the model's own warm start, where it has one
    written_out = {"engine.replicas", "warmstart"}
    assert {key for key in different if not key.startswith(listed)} <= written_out
    for key in played.changes:
        then, now = OmegaConf.select(before, key), OmegaConf.select(played.cfg, key)
        if isinstance(then, int) and isinstance(now, int) and key != "gpus":
            assert now < then, key


def test_each_part_of_a_mixture_is_played_by_a_few_desktops_of_its_own():
    played = recast("env=mixture", "tasks=mixture", "env.parts.office.envs_per_worker=1").cfg
    sizes = {part: (own.size, own.envs_per_worker) for part, own in played.env.parts.items()}
    assert sizes == {"pages": (4, 2), "office": (4, 1), "toys": (4, 2)}
    assert played.env.size == 12
    assert dict(kept(played))["desktops of office"] == "EnvPool with RayBackend, with its deadlines"


@pytest.mark.parametrize("experiment", PAPER)
def test_the_paper_s_runs_are_played_with_their_own_parts(experiment):
    cfg = recast(f"experiment={experiment}").cfg
    assert cfg.trainer.strategy._target_ == "arpo.modules.strategy.ShardedStrategy"
    assert cfg.engine._target_ == "arpo.inference.fleet.FleetEngine"
    assert cfg.engine.make_engine.sleeps
    assert cfg.callbacks.weight_sync.colocated
    assert cfg.callbacks.weight_sync.tolerance is None  # that of the format
    assert cfg.env.backend.placement == "docker"
    assert (cfg.env.envs_per_worker, cfg.env.reset_timeout_s) == (2, 900)
    assert (cfg.model.policy.dtype, cfg.evaluation.protocol) == ("bfloat16", "standard")
    assert cfg.rollout.settings.group_size == 8
    names = {name for name, node in cfg.callbacks.items() if node is not None and node.get("_target_")}
    own = composed(f"experiment={experiment}").callbacks
    assert names == {name for name, node in own.items() if node and node.get("_target_")}


@pytest.mark.parametrize(
    ("overrides", "processes", "nodes", "engines", "gpus"),
    [
        (("experiment=arpo_subset32",), 2, 1, 2, 2),
        (("experiment=arpo_subset32", "layout=split"), 2, 1, 1, 3),  # two train and one serves
        (("experiment=arpo_full",), 1, 2, 1, 2),
        (("experiment=arpo_full", "layout=split", "serving_gpus=2"), 1, 2, 1, 4),  # of each of two nodes, one serves
        (("experiment=arpo_subset32", "gpus=1"), 1, 1, 1, 1),
    ],
)
def test_ranks_and_engines_are_as_many_as_fit_on_two_cores(overrides, processes, nodes, engines, gpus):
    cfg = recast(*overrides).cfg
    assert (cfg.trainer.devices, cfg.trainer.num_nodes, cfg.engine.replicas) == (processes, nodes, engines)
    assert (cfg.trainer.accelerator, cfg.engine.num_gpus, cfg.gpus) == ("cpu", 0, gpus)


def test_an_engine_that_needs_gpus_is_replaced_and_changes_are_said_in_words(monkeypatch):
    args = ("engine.make_engine.kv_cache_gb=40", "+engine.make_engine.engine_args.tensor_parallel_size=4")
    engine = recast("experiment=arpo_subset32", "engine.num_gpus=4", f"+{args[0]}", args[1]).cfg.engine
    assert (engine.make_engine.kv_cache_gb, engine.make_engine.engine_args.tensor_parallel_size) == (None, 1)
    monkeypatch.setattr(changes, "vllm_runs_on_cpus", lambda: False)  # then transformers plays
    played = recast("experiment=arpo_subset32")
    engine, said = played.cfg.engine.make_engine, played.changes
    assert set(engine) == {"_target_", "_partial_", "path", "dtype", "max_model_len", "deterministic"}
    assert engine.path == "policy"
    assert said["engine.make_engine"] == ("VllmEngine", "HfEngine")
    assert said["env.make_env"] == ("OSWorldEnv", "DrawnDesktop")
    assert said["tasks.train"] == ("osworld_tasks", "fake_tasks")
    assert said["trainer.devices"] == ("0 to 7", "2")
    assert said["iterations"] == ("240", "3")
    assert "held_out" not in str(said)  # it is empty, and stays so
    assert recast("experiment=smoke").cfg.engine._target_ == "arpo.inference.hf.HfEngine"


@pytest.mark.parametrize(
    ("words", "engine"),
    [
        ("model=qwen3_vl_2b", "VllmEngine"),
        ("model=qwen3_5_2b", "HfEngine"),  # vLLM has no kernels on CPUs for adapters of recurrent layers
        ("model=qwen3_5_2b model.policy.lora=null", "VllmEngine"),
    ],
)
def test_one_card_is_played_by_an_engine_that_serves_the_stand_in_of_its_model(words, engine, monkeypatch):
    monkeypatch.setattr(changes, "vllm_runs_on_cpus", lambda: True)
    cfg = recast("experiment=one_gpu", *words.split()).cfg
    assert cfg.engine._target_.endswith(engine)
    assert cfg.module.micro_batch_tokens == cfg.rollout.settings.max_context == 4096


def test_the_pool_of_a_rehearsal_is_what_its_tiny_policy_learned_from():
    cfg = recast("experiment=dart_miniwob").cfg
    assert list(cfg.replay.pool.directories) == ["demonstrations"]  # beside the policy, which is "policy" here
    taught = {task.id for task in build(compose("train", ["experiment=warmstart_fake"]).tasks.train)}
    assert taught == {task.id for task in build(cfg.replay.pool.tasks)}


REFUSED = [
    (("experiment=arpo_full", "gpus=15"), r"gpus=15 must be a multiple of trainer\.num_nodes=2"),
    (
        ("experiment=arpo_subset32", "~callbacks.weight_sync"),
        r"no callback sends the policy .* callbacks\.weight_sync",
    ),
    (("experiment=arpo_subset32", "env=miniwob"), "are tasks of osworld, which the environment miniwob cannot run"),
    (("experiment=arpo_subset32", "module.minibatches=0"), "minibatches=0 should be at least 1"),
    (("experiment=arpo_subset32", "+env.make_env.speed=2"), r"env\.make_env\.speed: arpo\.envs\.osworld\.env"),
    (("experiment=smoke", "rollout.settings.max_context=65536"), "is above the 32768 tokens"),
    *(
        ((f"experiment={name}",), f"a rehearsal is of a run that learns from rollouts, got experiment={name}")
        for name in ("warmstart_fake", "offline_dpo")
    ),
]


@pytest.mark.parametrize(("overrides", "words"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_what_the_real_run_would_refuse_is_refused_in_its_words(overrides, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        recast_of(compose("train", overrides), tmp_path / "run", tmp_path / "policy")


def test_a_context_that_the_run_s_own_model_does_not_take_is_refused_though_the_stand_in_would_take_it(tmp_path):
    policy = make_tiny(tmp_path / "policy", corpus=(), context=65536)
    own = make_tiny(tmp_path / "own", corpus=(), context=2048)
    words = compose("train", ["experiment=arpo_subset32", f"model.path={own}"])
    with pytest.raises(ConfigError, match="max_context=65536 is above the 2048 tokens"):
        recast_of(words, tmp_path / "run", policy)


@pytest.mark.parametrize(
    "experiment", [name if name in PAPER else pytest.param(name, marks=pytest.mark.long) for name in EXPERIMENTS]
)
def test_every_experiment_can_be_rehearsed_where_nothing_of_it_is(experiment, tmp_path):
    recast_of(compose("train", [f"experiment={experiment}"]), tmp_path / "run", tmp_path / "policy")
