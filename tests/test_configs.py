"""Every configuration that a person can compose: it names what exists, says the paper's numbers, and can be built."""

import inspect
import re
from functools import cache
from pathlib import Path

import hydra
import pytest
import torch
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from lightning.pytorch.strategies import DDPStrategy
from omegaconf import DictConfig, OmegaConf

from arpo.agent.prompt import Prompt
from arpo.callbacks.checkpoint import IterationCheckpoint
from arpo.callbacks.replay import ReplayInjection
from arpo.datamodules.demonstrations import DemonstrationDataModule
from arpo.datamodules.rollouts import RolloutDataModule
from arpo.datamodules.trajectories import TrajectoryDataModule
from arpo.errors import ConfigError
from arpo.host.machine import Budget
from arpo.models.families.qwen2_5_vl import make_tiny
from arpo.models.family import family_named
from arpo.modules.grpo import GRPOModule
from arpo.modules.offline.dpo import DPOModule
from arpo.modules.offline.kto import KTOModule
from arpo.modules.sft import SFTModule
from arpo.modules.strategy import ShardedStrategy
from arpo.run import preflight
from arpo.run.arguments import check_arguments
from arpo.run.build import build, check_numbers, imitates, register_resolvers, required_model
from arpo.run.check import (
    check_choices,
    check_constructors,
    check_model,
    check_pool,
    check_source,
    check_values,
    judged,
)
from arpo.run.entry import explained
from arpo.run.model import check_family
from arpo.run.train import build_trainer
from arpo.run.warmstart import demonstrations_of

ROOT = Path(__file__).parent.parent
CONF = ROOT / "conf"
FILES = sorted(path.relative_to(CONF) for path in CONF.rglob("*.yaml"))
EXPERIMENTS = sorted(path.stem for path in CONF.glob("experiment/*.yaml"))
NO_CHOICE = ("", "architecture", "base", "experiment", "gpu", "hydra", "requires")
"""Groups of a plan, and those that come with another choice: what a run requires comes with its environment."""
CHOSEN = {
    f"{group}={name}"
    for path in [CONF / "train.yaml", *CONF.glob("experiment/*.yaml")]
    for group, name in re.findall(r"^ *- (?:override )?/?(\w+)(?:: |/)(\w+)", path.read_text(), re.MULTILINE)
}
CHOICES = sorted({f"{path.parent}={path.stem}" for path in FILES if path.parent.name not in NO_CHOICE} - CHOSEN)
"""Those that no experiment is made of, which is composed anyway."""
PRESETS = [f"preset={name}" for name in ("official", "dart_paper", "dart_code")]
OF_A_WARM_START = ("module=sft", "datamodule=demonstrations", "callbacks=sft")
ON_RECORDINGS = ("method=mobile_r1",)
OFFLINE = ("module=dpo", "module=kto", "datamodule=trajectories", "callbacks=offline")


@cache
def compose(*overrides: str, config: str = "train", model: str = "somewhere") -> DictConfig:
    """A configuration to look at; who changes one takes `plain`."""
    register_resolvers()
    where = ["paths.run_dir=run", f"model.path={model}"]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose(config, [*where, *overrides])


TASKS_OF = {"fake": "fake", "desktop": "desktop32"}


def plain(cfg: DictConfig) -> dict:
    return OmegaConf.to_container(cfg, resolve=True)


def targets(tree: object) -> set[str]:
    if isinstance(tree, list):
        return set().union(*(targets(value) for value in tree))
    if not isinstance(tree, dict):
        return set()
    own = {tree["_target_"]} if tree.get("_target_") else set()
    return own.union(*(targets(value) for value in tree.values()))


def check_targets(cfg: DictConfig) -> None:
    for target in targets(plain(cfg)):
        hydra.utils.get_object(target)


# --- every file -----------------------------------------------------------------------------------------------------


def test_a_file_says_in_its_first_line_what_it_is_for():
    for path in FILES:
        lines = [line for line in (CONF / path).read_text().splitlines() if not line.startswith("# @package")]
        assert lines[0].startswith("# "), path
        assert len(lines[0].split()) > 3, path


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_can_be_run_and_evaluated_of_things_that_exist_with_arguments_that_they_have(experiment):
    cfg = compose(f"experiment={experiment}")
    check_targets(cfg)
    check_arguments(cfg)
    assert cfg.name == experiment
    # a key without a value would erase a group
    assert {key for key, value in cfg.items_ex(resolve=False) if value is None} <= {"resume", "warmstart"}
    judging = compose(f"experiment={experiment}", "checkpoint=somewhere", config="evaluate")
    check_targets(judging)
    check_arguments(judging)
    assert "evaluation" not in cfg.callbacks or cfg.callbacks.evaluation.settings == judging.evaluation
    assert {"train", "in_domain"} & set(judged(judging.tasks))


@pytest.mark.parametrize(
    "experiment",
    [
        "arpo_full",
        "dart_miniwob",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("arpo_subset32", "arpo_miniwob", "dart_osworld")),
    ],
)
@pytest.mark.parametrize("variant", ["replay=off", *PRESETS])
def test_every_preset_goes_with_an_experiment_of_each_kind(experiment, variant):
    cfg = compose(f"experiment={experiment}", variant)
    check_targets(cfg)
    check_arguments(cfg)
    assert cfg.name == experiment


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_composes_of_things_that_exist_with_arguments_that_they_have(choice):
    companions = ["datamodule=demonstrations", "module=sft"] if choice in OF_A_WARM_START else []
    companions += ["datamodule=trajectories", "module=dpo"] if choice in OFFLINE else []
    companions += ["env=recorded", "tasks=recorded"] if choice in ON_RECORDINGS else []
    cfg = compose(*companions, choice)
    check_targets(cfg)
    check_arguments(cfg)


@pytest.mark.parametrize("engine", ["hf", "vllm", "fleet"])
def test_the_smoke_run_is_repeatable_with_every_engine(engine):
    cfg = compose("experiment=smoke", f"engine={engine}")
    check_arguments(cfg)
    assert cfg.engine.get("make_engine", cfg.engine).deterministic is True
    usual = compose("experiment=arpo_miniwob", f"engine={engine}").engine
    assert usual.get("make_engine", usual).deterministic is False


@pytest.mark.parametrize("experiment", ["arpo_full", "arpo_miniwob"])
def test_tasks_can_be_chosen_as_the_paper_chose_them(experiment):
    cfg = compose(f"experiment={experiment}", "checkpoint=somewhere", config="select")
    check_targets(cfg)
    check_arguments(cfg)
    how = cfg.evaluation
    assert (how.rollouts_per_task, how.temperature, how.protocol, cfg.lists) == (16, 1.0, "hard", ["train"])
    rule = build(cfg.selection)
    assert (rule.min_successes, rule.max_successes, rule.infeasible) == (1, None, "drop")


OTHER_MACHINE = ("env.make_env.machine.cores=2", "env.make_env.machine.memory_mb=16384")


def test_osworld_s_machines_need_what_the_check_at_the_start_counts():
    cfg = compose("experiment=arpo_full", "env.size=3", "paths.osworld_disk=disk", *OTHER_MACHINE)
    machine = build(cfg.env.make_env.machine)
    budget = Budget(**plain(cfg)["requires"]["budget"])
    assert (budget.desktops, budget.cores) == (3, 2)
    assert budget.each_mb == machine.memory_mb == 16384 + 512
    assert cfg.requires.image == machine.image
    assert not compose("experiment=arpo_full", "env.make_env.machine.kvm=false").requires.kvm


@pytest.mark.parametrize("experiment", ["arpo_subset32_containers", "arpo_128_containers"])
def test_osworld_s_containers_are_counted_too(experiment):
    cfg = compose(f"experiment={experiment}", "env.size=3")
    budget = Budget(**plain(cfg)["requires"]["budget"])
    assert budget.needs() == "3 desktops: 3 GiB of memory, 2 cores, 0 GiB of disk"
    assert budget.memory_mb < build(cfg.env.make_env.machine).memory_mb  # what one may take, and most do not


def test_the_experiment_of_a_laptop_needs_nothing_special():
    for experiment in ("smoke", "arpo_miniwob", "dart_miniwob", "warmstart_fake", "warmstart_habits"):
        assert compose(f"experiment={experiment}").requires == {}


@pytest.mark.parametrize(
    ("env", "function", "alike"),
    [("fake_functions", "fake.press", "fake"), ("desktop_functions", "mousepad.open", "desktop")],
)
@pytest.mark.parametrize("prompt", ["compact", "ui_tars", "official", "compact_computer_use"])
def test_a_desktop_with_functions_is_one_with_a_prompt_that_lists_them(env, function, alike, prompt):
    cfg, bare = (compose(f"env={name}", f"tasks={TASKS_OF[alike]}", f"prompt={prompt}") for name in (env, alike))
    assert function in hydra.utils.instantiate(cfg.prompt).template
    assert "call(" not in hydra.utils.instantiate(bare.prompt).template
    assert "functions" not in bare.prompt
    more = plain(cfg)["env"]
    assert more["make_env"].pop("functions") is True
    assert more == plain(bare)["env"]
    assert cfg.requires == bare.requires


def test_an_experiment_names_a_warm_start_that_writes_the_checkpoint_it_loads():
    register_resolvers()
    for experiment in ("smoke", "arpo_miniwob", "dart_miniwob"):
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = hydra.compose("train", [f"experiment={experiment}", "paths.output=out"])
            warm = hydra.compose("train", [f"experiment={cfg.warmstart}", "paths.run_dir=out/folder"])
        assert cfg.model.path == f"out/{warm.name}/default/policy"
        assert warm.callbacks.export.directory == "out/folder/policy"
        for config in (cfg, warm):
            del config.env.backend  # where desktops live changes nothing of what they show
        for shared in ("env", "prompt"):
            assert cfg[shared] == warm[shared], f"{experiment} and its warm start differ in {shared}"
        shown, meant = (config.tasks.get("demonstrated", config.tasks.train) for config in (warm, cfg))
        assert shown == meant
        assert cfg.rollout.settings.max_steps == warm.rollout.settings.max_steps
        assert cfg.model.make == warm.model.make


def test_the_sizes_of_images_are_those_of_the_tiny_model_wherever_it_is_made():
    make = compose().model.make
    defaults = inspect.signature(make_tiny).parameters
    for name in ("min_pixels", "max_pixels"):
        assert make[name] == defaults[name].default
    limits = compose("experiment=warmstart_fake").datamodule.collector.image_limits
    assert list(limits) == [make.min_pixels, make.max_pixels]


# --- models and experiments -----------------------------------------------------------------------------------------

REAL = {
    "ui_tars_1_5_7b": ("ui_tars", "ui_tars", 1e-6, (1092, 728)),  # the pixels of the picture that it sees
    "qwen2_5_vl_7b": ("ui_tars", "ui_tars", 1e-5, (1092, 728)),
    "qwen3_vl_4b": ("computer_use", "computer_use", 1e-5, (1000, 1000)),  # thousandths of the screen
    "qwen3_vl_8b": ("computer_use", "computer_use", 1e-5, (1000, 1000)),
    "qwen3_5_4b": ("computer_use_xml", "computer_use_xml", 1e-5, (1000, 1000)),
    "qwen3_5_9b": ("computer_use_xml", "computer_use_xml", 1e-5, (1000, 1000)),
}
"""Of each model that is downloaded: prompt, grammar, learning rate, and the width and height of its points."""
TINY = ("tiny", "tiny_qwen3", "tiny_qwen3_5")
PAIRS = [(model, experiment) for model in (*REAL, *TINY) for experiment in EXPERIMENTS]
ALWAYS = {
    ("qwen3_vl_4b", "arpo_desktop"),
    ("qwen3_vl_4b", "arpo_subset32_containers"),
    ("qwen3_5_9b", "offline_dpo"),
    ("qwen2_5_vl_7b", "methods"),
    ("ui_tars_1_5_7b", "warmstart_fake"),
    ("tiny", "arpo_subset32"),
    ("tiny_qwen3", "arpo_miniwob"),
}


def test_every_model_is_in_the_table():
    assert {path.stem for path in CONF.glob("model/*.yaml")} == {*REAL, *TINY}


@pytest.mark.parametrize(
    ("model", "experiment"),
    [pytest.param(*pair, marks=() if pair in ALWAYS else (pytest.mark.slow, pytest.mark.long)) for pair in PAIRS],
)
def test_every_model_has_a_prompt_a_rate_and_lengths_of_its_own_in_every_experiment(model, experiment):
    register_resolvers()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = hydra.compose("train", [f"experiment={experiment}", f"model={model}", "paths.run_dir=run"])
    prompt, settings = build(cfg.prompt), cfg.rollout.settings
    if model in REAL and imitates(cfg):
        with pytest.raises(ConfigError, match=f"experiment={experiment} makes a tiny model .* choose model=tiny"):
            check_model(cfg)
        return
    check_model(cfg)
    rate = cfg.module.optimizer.get("lr")
    if model in TINY:
        assert cfg.prompt._target_ == "arpo.agent.prompt.Prompt.compact"
        if not imitates(cfg) and cfg.warmstart is None:  # made for a model that is downloaded
            assert required_model(cfg) == ""
        elif not imitates(cfg):
            assert rate >= 3e-4 or experiment == "base_rollouts"
            assert settings.max_context <= 2048
            assert settings.max_tokens <= 32
        return
    wanted, grammar, own_rate, frame = REAL[model]
    assert prompt == getattr(Prompt, wanted)()
    assert prompt.grammar == cfg.model.grammar == grammar
    points = family_named(cfg.model.family).frame((1920, 1080), (1092, 728))
    assert (points.model_width, points.model_height) == frame
    assert rate == (0.0 if experiment == "base_rollouts" else own_rate)
    assert (cfg.warmstart, "make" in cfg.model) == (None, False)
    assert settings.max_context >= 32768
    assert settings.max_tokens >= 500
    assert cfg.experience == []
    assert not experiment.startswith("warmstart_") or cfg.source == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("model=qwen3_vl_8b", "prompt=ui_tars"), "grammar ui_tars, and .* in computer_use, .* leave prompt= out"),
        (("model=qwen3_5_9b", "prompt=computer_use"), r"in computer_use_xml, .* or set model\.grammar=computer_use"),
        (("model=ui_tars_1_5_7b", "prompt=computer_use"), "grammar computer_use, and .* in ui_tars"),
        (
            ("experiment=smoke", "model=qwen3_vl_4b", "warmstart=warmstart_fake"),
            "warmstart=warmstart_fake makes a tiny",
        ),
    ],
)
def test_a_prompt_or_a_warm_start_that_is_not_the_model_s_is_refused(words, said):
    with pytest.raises(ConfigError, match=said):
        check_values(compose(*words))


@pytest.mark.parametrize(
    "words",
    [
        ("model=ui_tars_1_5_7b", "prompt=official"),
        ("model=qwen3_5_9b", "prompt=computer_use", "model.grammar=computer_use"),
        *(("model=tiny_qwen3", f"prompt={name}") for name in ("compact_computer_use", "computer_use_xml")),
    ],
)
def test_another_prompt_of_the_model_s_grammar_can_be_chosen(words):
    chosen = dict(word.split("=") for word in words)["prompt"]
    cfg = compose("experiment=arpo_subset32", *words)
    check_model(cfg)
    assert cfg.prompt._target_ == f"arpo.agent.prompt.Prompt.{chosen}"


def test_a_checkpoint_of_another_family_than_the_model_s_is_refused(tiny_model, tiny_qwen3):
    check_family(compose("model=ui_tars_1_5_7b", model=str(tiny_model)))
    check_family(compose("model=qwen3_vl_8b", model="not/there/yet"))
    with pytest.raises(ConfigError, match=r"is of the family qwen3_vl, and model= chose one of qwen2_5_vl"):
        check_constructors(compose("model=ui_tars_1_5_7b", model=str(tiny_qwen3)))


# --- what can be built without a GPU --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("experiment", "replay"), [("smoke", "off"), ("arpo_miniwob", "on"), ("dart_miniwob", "pool")]
)
def test_the_runs_for_a_cpu_are_built_from_their_files(experiment, replay, tiny_model, tmp_path):
    cfg = compose(
        f"experiment={experiment}", f"replay={replay}", f"paths.run_dir={tmp_path / 'run'}", model=str(tiny_model)
    )
    module, datamodule, trainer = build(cfg.module), build(cfg.datamodule), build_trainer(cfg, None)
    assert isinstance(module, GRPOModule)
    assert isinstance(datamodule, RolloutDataModule)
    assert any(isinstance(callback, ReplayInjection) for callback in trainer.callbacks) == (replay != "off")
    assert isinstance(trainer.callbacks[-1], IterationCheckpoint)
    assert trainer.max_epochs == cfg.iterations
    module.configure_model()
    module.trainer = trainer  # who knows how long the run is over which a rate may fall
    assert isinstance(module.configure_optimizers()["optimizer"], torch.optim.Optimizer)


@pytest.mark.parametrize("experiment", ["warmstart_fake", "warmstart_miniwob"])
def test_the_warm_starts_are_built_from_their_files(experiment, tmp_path):
    cfg = compose(f"experiment={experiment}", f"paths.run_dir={tmp_path / 'run'}")
    assert isinstance(build(cfg.module), SFTModule)
    assert isinstance(build(cfg.datamodule), DemonstrationDataModule)
    assert build_trainer(cfg, None).max_epochs == 1


@pytest.mark.parametrize(
    ("experiment", "module"), [("offline_rs", SFTModule), ("offline_dpo", DPOModule), ("offline_kto", KTOModule)]
)
def test_the_offline_runs_are_built_from_their_files(experiment, module, tiny_model, tmp_path):
    cfg = compose(
        f"experiment={experiment}", f"paths.run_dir={tmp_path / 'run'}", "source=there", model=str(tiny_model)
    )
    built, datamodule, trainer = build(cfg.module), build(cfg.datamodule), build_trainer(cfg, None)
    assert isinstance(built, module)
    assert isinstance(datamodule, TrajectoryDataModule)
    assert isinstance(trainer.callbacks[-1], IterationCheckpoint)
    assert datamodule.steps == built.steps
    assert datamodule.steps % trainer.max_epochs == 0
    built.configure_model()
    assert len(built.references) == (0 if module is SFTModule else 1)


@pytest.mark.parametrize("experiment", ["offline_rs", "offline_dpo", "offline_kto"])
def test_offline_runs_start_from_the_policy_of_the_main_job_and_are_judged_as_it_is(experiment):
    online, offline = (compose(f"experiment={name}") for name in ("arpo_miniwob", experiment))
    for shared in ("env", "tasks", "prompt", "warmstart", "evaluation"):
        assert offline[shared] == online[shared]
    assert {**offline.model, "numbers": None} == {**online.model, "numbers": None}  # the rate is another one
    assert offline.rollout.settings.max_steps == online.rollout.settings.max_steps
    assert offline.callbacks.evaluation == online.callbacks.evaluation
    assert offline.datamodule.steps == online.iterations * online.module.minibatches * online.module.epochs
    assert offline.source == "outputs/arpo_miniwob/default"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("source=nowhere", r"source=nowhere holds no episodes to learn from: name the folder of a run"),
        ("source=''", r"source= holds no episodes"),
        ("datamodule.steps=101", r"datamodule\.steps=101 must be a multiple of iterations=12"),
    ],
)
def test_offline_data_that_is_not_there_is_refused_before_a_warm_start(override, words, tmp_path):
    (tmp_path / "trajectories" / "train").mkdir(parents=True)
    (tmp_path / "trajectories" / "train" / "iteration_000000.jsonl").touch()
    check_source(compose("experiment=offline_rs", f"source={tmp_path}"))
    with pytest.raises(ConfigError, match=words):
        check_source(compose("experiment=offline_rs", f"source={tmp_path}", override))


def test_replay_is_one_line_and_the_only_difference_between_arpo_and_grpo():
    on, off = (plain(compose("experiment=smoke", f"replay={choice}")) for choice in ("on", "off"))
    assert on.pop("replay")["_target_"] == "arpo.callbacks.replay.ReplayInjection"
    assert off.pop("replay") == {"_target_": None}
    assert on["callbacks"].pop("replay") != off["callbacks"].pop("replay")
    assert on == off


# --- the numbers of the paper and of the official code: docs/paper.md ------------------------------------------------


@pytest.mark.parametrize(
    ("override", "strategy"),
    [
        ("experiment=arpo_subset32", ShardedStrategy),
        ("experiment=arpo_full", ShardedStrategy),
        ("trainer=ddp", DDPStrategy),
    ],
)
def test_the_paper_s_runs_train_in_shards(override, strategy):
    assert isinstance(build(compose(override).trainer.strategy), strategy)


@pytest.mark.parametrize("experiment", ["arpo_subset32", "arpo_full"])
def test_the_paper_s_runs_have_the_paper_s_numbers(experiment):
    cfg = compose(f"experiment={experiment}")
    settings, module, objective = cfg.rollout.settings, cfg.module, cfg.module.objective
    assert module.optimizer.lr == 1e-6
    assert module.optimizer._target_ == "torch.optim.AdamW"
    assert (objective.clip_low, objective.clip_high, objective.dual_clip) == (0.2, 0.3, None)
    assert (objective.kl_coefficient, module.reference) == (0.0, None)
    assert (objective.estimator, objective.std, objective.aggregation) == ("grpo", "population", "sequence")
    assert objective.format_weight == 1.0
    assert (settings.group_size, settings.max_steps) == (8, 15)
    assert (settings.max_context, settings.max_tokens) == (65536, 8192)
    assert (settings.temperature, module.temperature) == (1.0, 1.0)
    assert settings.max_policy_lag == 0
    judged = cfg.callbacks.evaluation.settings
    assert (judged.rollouts_per_task, judged.temperature, judged.protocol) == (1, 0.6, "standard")
    assert cfg.replay.buffer.capacity_per_task == 8
    assert (cfg.replay.buffer.trigger, cfg.replay.buffer.replaced) == ("all_failed", "random")
    assert (cfg.model.policy.dtype, cfg.model.policy.train_vision) == ("bfloat16", True)


def test_lora_has_a_rate_of_its_own_and_an_engine_that_takes_adapters():
    whole = compose("experiment=arpo_subset32")
    lora = compose("experiment=arpo_subset32", "model=qwen2_5_vl_7b")
    assert (whole.module.optimizer.lr, lora.module.optimizer.lr) == (1e-6, 1e-5)
    assert (whole.engine.make_engine.lora_rank, lora.engine.make_engine.lora_rank) == (None, 32)
    assert compose("engine=vllm", "model=qwen2_5_vl_7b").engine.lora_rank == 32
    assert compose("experiment=smoke").engine.lora_rank is None


def test_the_paper_s_runs_have_their_own_sizes():
    subset, full = compose("experiment=arpo_subset32"), compose("experiment=arpo_full")
    assert (subset.env.size, subset.datamodule.sampler.tasks_per_iteration) == (16, 2)
    assert (full.env.size, full.datamodule.sampler.tasks_per_iteration) == (256, 32)
    assert subset.iterations == 15 * 32 // 2  # 15 epochs of 32 tasks, 2 an iteration
    assert full.iterations == 15 * 128 // 32
    assert (subset.module.warmup_steps, full.module.warmup_steps) == (24, 0)
    for cfg in (subset, full):  # one environment an episode, as in the official code, though nothing here needs it
        assert cfg.env.size == cfg.datamodule.sampler.tasks_per_iteration * cfg.rollout.settings.group_size


@pytest.mark.parametrize(("tasks", "count"), [("osworld_subset32", 32), ("osworld_128", 128), ("osworld_369", 369)])
def test_a_list_of_osworld_tasks_has_as_many_as_its_name_says(tasks, count):
    ids = compose(f"tasks={tasks}").tasks.train.ids
    listed = [f"{domain}/{task_id}" for domain in ids for task_id in ids[domain]]
    assert len(listed) == len(set(listed)) == count


def test_the_official_preset_is_what_the_published_code_does():
    cfg = compose("experiment=arpo_subset32", "preset=official")
    objective = cfg.module.objective
    assert (objective.std, objective.format_weight, objective.dual_clip) == ("sample", 0.5, 3.0)
    assert (cfg.replay.buffer.trigger, cfg.replay.buffer.replaced) == ("official", "first")
    assert cfg.replay.buffer.success_threshold == 0.1
    assert cfg.replay.buffer.format_weight == 0.5  # replay weighs a reward as the update does
    assert cfg.module.optimizer.lr == 1e-6  # what both agree on stays


# --- DART: arXiv 2509.23866, and its released code -------------------------------------------------------------------


@pytest.mark.parametrize("overrides", [("experiment=dart_osworld",), ("preset=dart_paper",)], ids=str)
def test_dart_has_the_numbers_of_its_paper(overrides):
    cfg = compose(*overrides)
    numbers, objective = plain(cfg), cfg.module.objective
    settings = cfg.rollout.settings
    assert (settings.group_size, settings.temperature, settings.max_policy_lag) == (8, 1.0, 1)
    assert (objective.clip_low, objective.clip_high, objective.dual_clip) == (0.2, 0.28, None)
    assert (objective.kl_coefficient, objective.correction) == (0.1, "tis_token")
    assert (objective.std, objective.level) == ("population", "token")
    assert cfg.module.reference._target_ == "arpo.models.policy.Policy"
    assert cfg.module.optimizer.lr == 1e-6
    sampler = numbers["datamodule"]["sampler"]
    assert sampler["group_size"]["_target_"] == "arpo.rollout.curation.requests.DynamicRolloutNumber"
    assert (sampler["group_size"]["group_size"], sampler["group_size"]["threshold"]) == (8, 0.6)
    assert sampler["max_steps"]["_target_"] == "arpo.rollout.curation.requests.DynamicTrajectoryLength"
    assert (sampler["max_steps"]["limit"], sampler["max_steps"]["slack"]) == (settings.max_steps, 0)
    replay = cfg.replay
    assert (replay.buffer.replaced, replay.buffer.choice, replay.remembers) == ("none", "random", False)
    assert replay.pool.tasks == cfg.tasks.train


@pytest.mark.parametrize("experiment", ["dart_osworld", "arpo_miniwob", "smoke"])
def test_dart_s_code_differs_where_docs_paper_says_so(experiment):
    cfg = compose(f"experiment={experiment}", "preset=dart_code")
    objective, module, sampler = cfg.module.objective, cfg.module, cfg.datamodule.sampler
    assert (objective.clip_low, objective.clip_high, objective.dual_clip) == (0.1, 0.28, 10.0)
    assert (objective.std, objective.level) == ("sample", "sequence")
    assert (objective.kl_coefficient, objective.correction) == (0.1, "tis_token")  # what both agree on stays
    assert (module.max_grad_norm, module.optimizer.weight_decay) == (2.0, 0.1)
    assert (sampler.group_size.threshold, sampler.max_steps) == (1.0, None)
    replay = cfg.replay
    assert (replay.buffer.replaced, replay.buffer.choice, replay.remembers) == ("oldest", "newest", True)
    assert replay.buffer.success_threshold == 0.0


@pytest.mark.parametrize("line", ["rollout_number=constant", "trajectory_length=constant", "replay=off", "replay=on"])
@pytest.mark.parametrize("preset", ["paper", "dart_code"])
def test_each_curation_of_dart_is_left_out_by_one_line(line, preset):
    check_arguments(compose("experiment=dart_miniwob", f"preset={preset}", line))


def test_dart_on_osworld_has_its_own_sizes():
    cfg = compose("experiment=dart_osworld")
    check_numbers(cfg)
    assert (cfg.env.size, cfg.rollout.settings.max_steps) == (180, 30)
    assert (cfg.gpus, cfg.trainer.num_nodes, list(cfg.trainer.devices)) == (16, 2, [4, 5, 6, 7])
    assert cfg.engine.replicas * cfg.engine.nodes == 8
    # a response sees 5 screenshots, and 180 desktops over 8 engines are 23 each
    assert (cfg.engine.make_engine.max_images, cfg.engine.make_engine.screenshots) == (5, 23 * 5)
    ahead = (cfg.rollout.settings.max_policy_lag + 1) * cfg.datamodule.sampler.tasks_per_iteration
    assert ahead * 5 >= cfg.env.size  # at five episodes a group, which the paper's run comes down to


def test_dart_on_desktops_has_two_engines_on_cpus():
    cfg = compose("experiment=dart_desktop32")
    check_numbers(cfg)
    assert cfg.engine._target_ == "arpo.inference.fleet.FleetEngine"
    assert (cfg.engine.replicas, cfg.engine.num_gpus, cfg.rollout.settings.max_policy_lag) == (2, 0, 1)


@pytest.mark.parametrize("names", [("arpo_miniwob_fixed", "dart_miniwob"), ("arpo_desktop32", "dart_desktop32")])
def test_dart_differs_from_arpo_in_its_mechanism_alone(names):
    """So that both can be compared: same tasks, same model, same budget."""
    arpo, dart = (plain(compose(f"experiment={name}")) for name in names)
    for shared in ("env", "tasks", "model", "prompt", "warmstart", "iterations", "evaluation", "trainer"):
        assert arpo[shared] == dart[shared]
    assert arpo["module"]["optimizer"] == dart["module"]["optimizer"]
    differing = {
        key for key, value in arpo["rollout"]["settings"].items() if dart["rollout"]["settings"][key] != value
    }
    assert differing == {"max_policy_lag", "order"}


@pytest.mark.parametrize(("experiment", "warmstart"), [("miniwob", "miniwob"), ("desktop32", "desktop")])
def test_dart_s_pool_is_what_its_warm_start_kept(experiment, warmstart, tmp_path):
    register_resolvers()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = hydra.compose("train", [f"experiment=dart_{experiment}", "paths.output=out"])
        warm = hydra.compose("train", [f"experiment=warmstart_{warmstart}", "paths.run_dir=FOLDER"])
    (directory,) = cfg.replay.pool.directories
    assert Path(directory).parent / "policy" == Path(cfg.model.path)
    assert warm.datamodule.directory == f"FOLDER/{Path(directory).name}"
    check_pool(cfg)  # nothing is there before the warm start, and nothing is wrong with that
    (tmp_path / "config.json").touch()  # a policy from elsewhere: no warm start will run
    with pytest.raises(ConfigError, match=r"experience: .*demonstrations holds no trajectories"):
        check_pool(compose(f"experiment=dart_{experiment}", model=str(tmp_path)))
    check_pool(compose(f"experiment=dart_{experiment}", "replay=on", model=str(tmp_path)))
    assert compose(f"experiment=dart_{experiment}", "warmstart=null").experience == []


def test_a_policy_that_comes_with_the_code_has_no_demonstrations_for_a_pool(tmp_path):
    words = [
        "experiment=arpo_miniwob",
        "replay=pool",
        f"paths.output={tmp_path}",
        f"paths.checkpoints={tmp_path}/none",
    ]
    own = demonstrations_of("warmstart_habits", str(tmp_path))
    with pytest.raises(ConfigError, match=r"python train\.py experiment=warmstart_habits makes them"):
        check_pool(compose(*words, f"experience=['{own[0]}']"))
    own = demonstrations_of("warmstart_habits", str(tmp_path), image_window=2)  # which makes a warm start of its own
    check_pool(compose(*words, f"experience=['{own[0]}']", "rollout.settings.image_window=2"))


@pytest.mark.parametrize("experience", ["null", "3", "outputs/run/trajectories"])
def test_a_pool_that_is_no_list_of_directories_is_refused_by_its_key(experience):
    with pytest.raises(ConfigError, match=f"experience={experience.replace('null', 'None')} must be directories in"):
        check_pool(compose("experiment=dart_miniwob", f"experience={experience}"))


@pytest.mark.parametrize("trainer", ["ddp", "fsdp"])
def test_other_ranks_wait_longer_than_rank_0_takes_to_say_who_stands_still(trainer):
    cfg = compose("experiment=dart_osworld", f"trainer={trainer}")
    assert build(cfg.trainer.strategy.timeout).total_seconds() > 2 * cfg.rollout.settings.stall_s


def test_stored_log_probabilities_are_refused_with_a_pool_that_may_have_none():
    stored = "module.replayed_old_logprobs=stored"
    with pytest.raises(ConfigError, match=r"stored wants .* take module.replayed_old_logprobs=recompute, or rep"):
        check_pool(compose("experiment=dart_miniwob", stored, "resume=auto"))
    check_pool(compose("experiment=dart_miniwob", stored, "experience=[]", "replay.remembers=true"))
    check_pool(compose("experiment=dart_miniwob", stored, "replay=on"))


def test_a_pool_that_would_stay_empty_is_refused_with_the_preset_that_chose_it():
    with pytest.raises(ConfigError, match=r"replay=pool, which preset=dart_paper chooses, begins with"):
        check_pool(compose("experiment=smoke", "preset=dart_paper"))
    with pytest.raises(ConfigError, match="replay=pool begins with the successes in experience"):
        check_pool(compose("experiment=smoke", "replay=pool"))
    check_pool(compose("experiment=smoke", "preset=dart_code"))  # remembers those of the run


def test_a_run_that_goes_on_needs_the_directories_of_its_pool_no_more(tmp_path):
    (tmp_path / "config.json").touch()
    gone = ["experiment=dart_miniwob", "experience=[gone]", f"paths.checkpoints={tmp_path}/checkpoints"]
    with pytest.raises(ConfigError, match="experience: gone holds no trajectories"):
        check_pool(compose(*gone, "resume=auto", model=str(tmp_path)))  # there is nothing to go on from
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "iteration_000003.ckpt").touch()
    check_pool(compose(*gone, "resume=auto", model=str(tmp_path)))


def test_a_curation_is_one_line_and_changes_nothing_else():
    plain_run = plain(compose("experiment=smoke"))
    for line, key in (("rollout_number=dynamic", "group_size"), ("trajectory_length=dynamic", "max_steps")):
        curated = plain(compose("experiment=smoke", line))
        assert curated["datamodule"]["sampler"].pop(key)["_target_"].startswith("arpo.rollout.curation.")
        curated["datamodule"]["sampler"][key] = None
        assert curated == plain_run
    for line, target, own in (
        ("failures", "failures.FailureCurriculum", {"patience": 2, "cooldown": 3}),  # of the paper
        ("stages", "stages.StagedCurriculum", {"stages": 3, "stage_iterations": 20, "threshold": 0.7}),
    ):
        curated = plain(compose("experiment=smoke", f"curriculum={line}"))
        sampler = curated["datamodule"]["sampler"]
        assert sampler.pop("_target_") == f"arpo.rollout.curation.{target}"
        assert {key: sampler.pop(key) for key in own} == own
        sampler["_target_"] = plain_run["datamodule"]["sampler"]["_target_"]
        assert curated == plain_run


# --- which GPUs train and which serve --------------------------------------------------------------------------------

# Devices of the trainer on each node, nodes, engines on each node, and screenshots that each engine has in use:
# 16 desktops x 15 steps over 8 engines are 30, over one 240; 256 desktops over 16 engines also 16 x 15 = 240.
LAYOUTS = [
    (("experiment=arpo_subset32",), [0, 1, 2, 3, 4, 5, 6, 7], 1, 8, 30),
    (("experiment=arpo_subset32", "layout=split"), [1, 2, 3, 4, 5, 6, 7], 1, 1, 240),
    (("experiment=arpo_subset32", "layout=split", "serving_gpus=3", "gpus=16"), [*range(3, 16)], 1, 3, 90),
    (("experiment=arpo_full",), [0, 1, 2, 3, 4, 5, 6, 7], 2, 8, 240),
    (("experiment=arpo_full", "layout=split", "serving_gpus=2"), [2, 3, 4, 5, 6, 7], 2, 2, 960),
    (("experiment=arpo_full", "gpus=8"), [0, 1, 2, 3], 2, 4, 480),
    (("experiment=arpo_full", "layout=split", "serving_gpus=4", "engine.num_gpus=2"), [4, 5, 6, 7], 2, 2, 960),
    (("experiment=arpo_miniwob", "layout=colocated", "gpus=1"), [0], 1, 1, 64 * 12),
]


@pytest.mark.parametrize(("overrides", "devices", "nodes", "engines", "screenshots"), LAYOUTS, ids=str)
def test_a_layout_says_which_gpus_train_and_which_serve(overrides, devices, nodes, engines, screenshots):
    cfg = compose(*overrides)
    check_numbers(cfg)
    check_arguments(cfg)
    numbers = plain(cfg)
    assert numbers["trainer"]["devices"] == devices
    assert numbers["trainer"]["num_nodes"] == numbers["engine"]["nodes"] == nodes
    assert numbers["engine"]["_target_"] == "arpo.inference.fleet.FleetEngine"
    assert (numbers["engine"]["replicas"], numbers["engine"]["make_engine"]["screenshots"]) == (engines, screenshots)
    assert numbers["requires"]["gpus"] == numbers["gpus"] // nodes
    apart = "layout=split" in overrides
    assert numbers["callbacks"]["weight_sync"].get("colocated", False) is not apart
    assert numbers["engine"]["make_engine"].get("sleeps", False) is not apart


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("layout=colocated", "rollout.settings.max_policy_lag=1"), "take layout=split, or max_policy_lag=0"),
        (("layout=colocated", "judge=own"), "take layout=split, or judge=off"),
        (("layout=split", "gpus=2", "engine.sync=rolling"), "max_policy_lag to 1 or more, or engine.sync=global"),
        (("layout=split", "gpus=1"), r"serving_gpus=1 must .* leave some of the 1 GPU\(s\)"),
        (("layout=split", "serving_gpus=0", "gpus=2"), "serving_gpus=0 must be at least 1"),
        (("layout=split", "trainer.num_nodes=2", "gpus=7"), "gpus=7 must be a multiple of trainer.num_nodes=2"),
        (("layout=colocated", "gpus=2", "engine.replicas=3"), r"engine.replicas=3 .* than the 2 GPUs"),
        (("layout=colocated", "gpus=2", "trainer.devices=3"), r"trainer.devices=3 wants 3 GPUs of a node, .* are 2"),
        (("layout=split", "gpus=2", "trainer.devices=[0,1,2]"), r"trainer.devices=\[0, 1, 2\] wants 3 GPUs"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(overrides, words):
    with pytest.raises(ConfigError, match=words):
        check_numbers(compose(*overrides))


# --- mistakes -------------------------------------------------------------------------------------------------------


def test_keys_that_were_added_but_that_nothing_reads_are_all_named_with_those_that_exist():
    cfg = compose("+module.objective.clip_mid=1", "+module.optimizer.momentum=0.9", "+env.make_env.speed=2")
    with pytest.raises(ConfigError) as error:
        check_arguments(cfg)
    message = str(error.value)
    assert "module.objective.clip_mid" in message
    assert "clip_low" in message
    assert "module.optimizer.momentum: torch.optim.AdamW has params, lr, betas" in message
    assert "env.make_env.speed" in message


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("module.minibatches=0", r"minibatches must be at least 1, got 0 .*key: module"),
        ("module.objective.kl_coefficient=0.1", r"needs a reference policy"),
        ("module.objective.std=both", r"both"),
        ("module.objective.estimator=ppo", r"ppo"),
        ("module.objective.aggregation=mean", r"mean"),
        ("module.objective.aggregation=dr_grpo", r"dr_grpo"),
        ("module.objective.dual_clip=1.2", r"dual_clip must be finite and above"),
        ("module.objective.level=word", r"word"),
        ("module.objective.kl=k9", r"k9"),
        ("module.max_grad_norm=0", r"max_grad_norm"),
        ("module.warmup_steps=-1", r"warmup_steps"),
        ("module.temperature=0", r"temperature"),
    ],
)
def test_an_impossible_number_or_combination_is_refused_before_anything_starts(override, words):
    with pytest.raises(ConfigError, match=words):
        build(compose(override).module)


# --- the command line -----------------------------------------------------------------------------------------------


def test_the_paper_s_run_on_a_laptop_says_at_once_what_is_missing_and_what_to_do(tmp_path, monkeypatch, caplog):
    """In this process: how long another one takes to start depends on what else the machine does."""
    monkeypatch.setattr(preflight, "count_gpus", lambda: 0)
    monkeypatch.setattr(preflight, "DRIVER", tmp_path / "none")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.delenv("ARPO_OSWORLD_TASKS", raising=False)
    cfg = compose("experiment=arpo_subset32", "env.size=9999", f"paths.output={tmp_path}", "paths.osworld_disk=none")
    with pytest.raises(SystemExit) as ended, explained(cfg):
        check_choices(cfg)
    assert ended.value.code == 2
    said = caplog.records[-1].getMessage()
    for what in ("NVIDIA GPU", "Docker", "OSWorld's task files", "checkpoint", "OSWorld's disk", "desktops need"):
        assert what in said
    for advice in ("CUDA requirements", "ARPO_OSWORLD_TASKS", "model.path", "experiment=arpo_miniwob"):
        assert advice in said
    assert caplog.records[-1].exc_info is None


def test_a_multirun_is_a_folder_a_combination_with_a_name_that_can_be_read():
    arguments = ["experiment=smoke", "replay=on,off", "seed=1,2", "paths.output=out"]
    jobs = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(arguments), max_batch_size=None)[0]
    register_resolvers()
    folders = set()
    for job in jobs:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = hydra.compose("train", job, return_hydra_config=True)
        assert cfg.hydra.run.dir == f"{cfg.hydra.sweep.dir}/{cfg.hydra.sweep.subdir}"
        folders.add(cfg.hydra.run.dir)
    assert folders == {
        "out/smoke/replay=off,seed=1",
        "out/smoke/replay=off,seed=2",
        "out/smoke/replay=on,seed=1",
        "out/smoke/replay=on,seed=2",
    }
