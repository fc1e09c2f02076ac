"""Every configuration that a person can compose: it names what exists, says the paper's numbers, and can be built."""

import json
import re
from functools import partial
from itertools import groupby, zip_longest
from pathlib import Path

import hydra
import pytest
import torch
import yaml
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
from arpo.envs.osworld.tasks import LISTS
from arpo.errors import ConfigError
from arpo.host.machine import Budget
from arpo.models.family import FAMILIES, family_named
from arpo.modules.grpo import GRPOModule
from arpo.modules.offline.dpo import DPOModule
from arpo.modules.offline.kto import KTOModule
from arpo.modules.sft import SFTModule
from arpo.modules.strategy import ShardedStrategy
from arpo.run import preflight, rules
from arpo.run.arguments import check_arguments
from arpo.run.build import build, imitates, required_model
from arpo.run.check import check_choices, check_constructors, default_eval_lists
from arpo.run.choices import CONF, STUDIES, choices_of, short_choices
from arpo.run.entry import explained
from arpo.run.rules import check_rules
from arpo.run.train import build_trainer
from arpo.run.warmstart import recordings_of
from tests.composed import EXPERIMENTS, composed, plain

FILES = sorted(path for folder in (CONF, *STUDIES) for path in folder.rglob("*.yaml"))
NO_CHOICE = {"", ".", "architecture", "env/base", "harness/base", "experiment", "gpu", "hydra", "requires"}
"""Groups of a plan, and those that come with another choice: what a run requires comes with its environment."""
CHOSEN = {
    f"{group}={name}"
    for path in [CONF / "train.yaml", *(path for path in FILES if path.parent.name == "experiment")]
    for group, name in re.findall(r"^ *- (?:override )?/?(\w+)(?:: |/)(\w+)", path.read_text(), re.MULTILINE)
}
GROUPS = {str(path.parent.relative_to(CONF)) for path in CONF.rglob("*.yaml")} | short_choices().keys()
CHOICES = sorted({f"{group}={name}" for group in GROUPS - NO_CHOICE for name in choices_of(group)} - CHOSEN)
"""Those that no experiment is made of, which is composed anyway."""
IMITATION, PREFERENCE = ("datamodule=demonstrations", "module=sft"), ("datamodule=trajectories", "module=dpo")
COMPANIONS = {
    **dict.fromkeys((*IMITATION, "callbacks=sft"), IMITATION),
    **dict.fromkeys((*PREFERENCE, "module=kto", "callbacks=offline"), PREFERENCE),
    "method=mobile_r1": ("env=recorded", "tasks=recorded"),
    "tasks=gymnasium": ("env=gymnasium",),
    "harness=command": ("harness.argv=[env]",),
    "harness=verifiers": ("harness.argv=[env]",),
    "harness=function": ("harness.function=tests.rollout.agents.acts",),
    **{f"preset={name}": () for name in choices_of("preset")},
}
"""Choices that do not go without these, or not with any other."""


def targets(tree: object) -> set[str]:
    if isinstance(tree, list):
        return set().union(*(targets(value) for value in tree))
    if not isinstance(tree, dict):
        return set()
    own = {tree["_target_"]} if tree.get("_target_") else set()
    return own.union(*(targets(value) for value in tree.values()))


def check(cfg: DictConfig) -> None:
    """Check that all things of a configuration exist and have the arguments that it gives them."""
    for target in targets(plain(cfg)):
        hydra.utils.get_object(target)
    check_arguments(cfg)


def check_pool(cfg: DictConfig) -> None:
    check_rules(cfg, [rules.the_pool_has_successes])


def test_a_file_says_in_its_first_line_what_it_is_for_and_a_choice_has_one_place():
    for path in FILES:
        lines = [line for line in path.read_text().splitlines() if not line.startswith("# @package")]
        assert lines[0].startswith("# "), path
        assert len(lines[0].split()) > 3, path
    # A file of the same name further back would never be read.
    places = [str(path.relative_to(folder)) for folder in (CONF, *STUDIES) for path in folder.rglob("*.yaml")]
    places += [f"{group}/{name}.yaml" for group, choices in short_choices().items() for name in choices]
    assert len(places) == len(set(places))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_can_be_run_of_things_that_exist_with_arguments_that_they_have(experiment):
    cfg = composed(f"experiment={experiment}")
    check(cfg)
    assert cfg.name == experiment
    # a key without a value would erase a group
    assert {key for key, value in cfg.items_ex(resolve=False) if value is None} <= {"resume", "warmstart", "harness"}


JUDGED = {"arpo_full", "arpo_miniwob", "distillation", "offline_dpo", "smoke_mixture"}


@pytest.mark.parametrize(
    "experiment", [pytest.param(name, marks=() if name in JUDGED else pytest.mark.long) for name in EXPERIMENTS]
)
def test_every_experiment_can_be_evaluated_as_it_evaluates_itself(experiment):
    cfg = composed(f"experiment={experiment}")
    judging = composed(f"experiment={experiment}", "checkpoint=somewhere", config="evaluate")
    check(judging)
    assert OmegaConf.select(cfg, "callbacks.evaluation.settings") in (None, judging.evaluation)
    assert {"train", "in_domain"} & set(default_eval_lists(judging.tasks))


@pytest.mark.parametrize(
    "experiment",
    [
        "arpo_full",
        "dart_miniwob",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("arpo_subset32", "arpo_miniwob", "dart_osworld")),
    ],
)
@pytest.mark.parametrize("variant", ["replay=off", "preset=official", "preset=dart_paper", "preset=dart_code"])
def test_every_preset_goes_with_an_experiment_of_each_kind(experiment, variant):
    cfg = composed(f"experiment={experiment}", variant)
    check(cfg)
    assert cfg.name == experiment
    if experiment == "dart_miniwob":  # each of its curations is left out by one line
        for line in ("rollout_number=constant", "trajectory_length=constant", "replay=off", "replay=on"):
            check_arguments(composed(f"experiment={experiment}", variant, line))


def together() -> list[tuple[str, ...]]:
    """Return all choices: with companions, one of each group at a time, and, in the long tests, each by itself."""
    alone = [(*COMPANIONS[choice], choice) for choice in CHOICES if choice in COMPANIONS]
    others = [choice for choice in CHOICES if choice not in COMPANIONS]
    groups = [list(group) for _, group in groupby(others, key=lambda choice: choice.partition("=")[0])]
    each = (pytest.param((choice,), marks=pytest.mark.long) for choice in others)
    return [*alone, *(tuple(filter(None, round_)) for round_ in zip_longest(*groups)), *each]


@pytest.mark.parametrize("choices", together(), ids=" ".join)
def test_every_choice_composes_of_things_that_exist_with_arguments_that_they_have(choices):
    check(composed(*choices))


@pytest.mark.parametrize("experiment", ["smoke", "dart_ablation"])
def test_a_choice_that_means_nothing_changes_nothing(experiment):
    groups = short_choices()
    nothing = [f"{group}={name}" for group in groups for name, node in groups[group].items() if not node]
    assert len(nothing) == 6
    assert plain(composed(f"experiment={experiment}", *nothing)) == plain(composed(f"experiment={experiment}"))


@pytest.mark.parametrize("engine", ["hf", "vllm", "fleet"])
def test_the_smoke_run_is_repeatable_with_every_engine(engine):
    cfg = composed("experiment=smoke", f"engine={engine}")
    check_arguments(cfg)
    assert cfg.engine.get("make_engine", cfg.engine).deterministic is True
    usual = composed("experiment=arpo_miniwob", f"engine={engine}").engine
    assert usual.get("make_engine", usual).deterministic is False


@pytest.mark.parametrize("experiment", ["arpo_full", "arpo_miniwob"])
def test_tasks_can_be_chosen_as_the_paper_chose_them(experiment):
    cfg = composed(f"experiment={experiment}", "checkpoint=somewhere", config="select")
    check(cfg)
    how = cfg.evaluation
    assert (how.rollouts_per_task, how.temperature, how.protocol, cfg.lists) == (16, 1.0, "hard", ["train"])
    rule = build(cfg.selection)
    assert (rule.min_successes, rule.max_successes, rule.infeasible) == (1, None, "drop")


def test_what_the_check_at_the_start_counts_is_what_osworld_s_machines_need():
    words = ("env.make_env.machine.cores=2", "env.make_env.machine.memory_mb=16384", "paths.osworld_disk=disk")
    cfg = composed("experiment=arpo_full", "env.size=3", *words)
    machine, budget = build(cfg.env.make_env.machine), Budget(**plain(cfg)["requires"]["budget"])
    assert (budget.desktops, budget.cores) == (3, 2)
    assert budget.each_mb == machine.memory_mb == 16384 + 512
    assert cfg.requires.image == machine.image
    assert not composed("experiment=arpo_full", "env.make_env.machine.kvm=false").requires.kvm
    for experiment in ("arpo_subset32_containers", "arpo_128_containers"):
        cfg = composed(f"experiment={experiment}", "env.size=3")
        budget = Budget(**plain(cfg)["requires"]["budget"])
        assert budget.needs() == "3 desktops: 3 GiB of memory, 2 cores, 0 GiB of disk"
        assert budget.memory_mb < build(cfg.env.make_env.machine).memory_mb  # what one may take, and most do not
    for experiment in ("smoke", "smoke_phone", "arpo_miniwob", "dart_miniwob", "warmstart_fake", "warmstart_habits"):
        assert composed(f"experiment={experiment}").requires == {}  # a laptop has all of it


@pytest.mark.parametrize(
    ("env", "function", "alike", "tasks"),
    [
        ("fake_functions", "fake.press", "fake", "fake"),
        ("desktop_functions", "mousepad.open", "desktop", "desktop32"),
    ],
)
@pytest.mark.parametrize("prompt", ["compact", "ui_tars", "official", "compact_computer_use"])
def test_a_desktop_with_functions_is_one_with_a_prompt_that_lists_them(env, function, alike, tasks, prompt):
    cfg, bare = (composed(f"env={name}", f"tasks={tasks}", f"prompt={prompt}") for name in (env, alike))
    assert function in hydra.utils.instantiate(cfg.prompt).template
    assert "call(" not in hydra.utils.instantiate(bare.prompt).template
    assert "functions" not in bare.prompt
    more = plain(cfg)["env"]
    assert more["make_env"].pop("functions") is True
    assert more == plain(bare)["env"]
    assert cfg.requires == bare.requires


def test_the_first_job_opens_pages_in_one_process():
    env = composed("experiment=arpo_miniwob").env
    assert env.size <= env.envs_per_worker  # a second one would open every page in tabs of its own


def test_an_experiment_names_a_warm_start_that_writes_the_checkpoint_it_loads():
    for experiment in ("smoke", "smoke_phone", "arpo_miniwob", "dart_miniwob"):
        cfg = composed(f"experiment={experiment}", "paths.output=out", model=None)
        warm = composed(f"experiment={cfg.warmstart}", run_dir="out/folder", model=None)
        assert cfg.model.path == f"out/{warm.name}/default/policy"
        assert warm.callbacks.export.directory == "out/folder/policy"
        free = {"backend": "where desktops live changes nothing", "size": "nor how many there are"}
        ours, its = ({**config.env, **free} for config in (cfg, warm))
        assert (ours, cfg.prompt) == (its, warm.prompt), f"{experiment} and its warm start differ"
        shown, meant = (config.tasks.get("demonstrated", config.tasks.train) for config in (warm, cfg))
        assert shown == meant
        assert cfg.rollout.settings.max_steps == warm.rollout.settings.max_steps
        assert cfg.model.make == warm.model.make
    make = composed().model.make
    assert (make.min_pixels, make.max_pixels) == FAMILIES[composed().model.family].tiny.pixels
    limits = composed("experiment=warmstart_fake").datamodule.collector.image_limits
    assert list(limits) == [make.min_pixels, make.max_pixels]  # wherever it is made


# --- models and experiments -----------------------------------------------------------------------------------------

REAL = {
    "ui_tars_1_5_7b": ("ui_tars", "ui_tars", 1e-6, (1092, 728)),  # the pixels of the picture that it sees
    "qwen2_5_vl_7b": ("ui_tars", "ui_tars", 1e-5, (1092, 728)),
    "qwen2_5_vl_3b": ("ui_tars", "ui_tars", 1e-5, (1092, 728)),
    "qwen3_vl_2b": ("computer_use", "computer_use", 1e-5, (1000, 1000)),
    "qwen3_5_0_8b": ("computer_use_xml", "computer_use_xml", 1e-5, (1000, 1000)),
    "qwen3_5_2b": ("computer_use_xml", "computer_use_xml", 1e-5, (1000, 1000)),
    "qwen3_vl_4b": ("computer_use", "computer_use", 1e-5, (1000, 1000)),  # thousandths of the screen
    "qwen3_vl_8b": ("computer_use", "computer_use", 1e-5, (1000, 1000)),
    "qwen3_5_4b": ("computer_use_xml", "computer_use_xml", 1e-5, (1000, 1000)),
    "qwen3_5_9b": ("computer_use_xml", "computer_use_xml", 1e-5, (1000, 1000)),
}
"""Of each model that is downloaded: prompt, grammar, learning rate, and the width and height of its points."""
TINY = ("tiny", "tiny_qwen3", "tiny_qwen3_5")
PAIRS = [(model, experiment) for model in choices_of("model") for experiment in EXPERIMENTS]
ALWAYS = {
    ("qwen3_vl_4b", "arpo_desktop"),
    ("qwen3_vl_4b", "arpo_subset32_containers"),
    ("qwen3_5_9b", "offline_dpo"),
    ("qwen2_5_vl_7b", "methods"),
    ("ui_tars_1_5_7b", "warmstart_fake"),
    ("tiny", "arpo_subset32"),
    ("tiny_qwen3", "arpo_miniwob"),
}


@pytest.mark.parametrize(
    ("model", "experiment"),
    [pytest.param(*pair, marks=() if pair in ALWAYS else (pytest.mark.slow, pytest.mark.long)) for pair in PAIRS],
)
def test_every_model_has_a_prompt_a_rate_and_lengths_of_its_own_in_every_experiment(model, experiment):
    cfg = composed(f"experiment={experiment}", f"model={model}", model=None)
    prompt, settings = build(cfg.prompt), cfg.rollout.settings
    if model in REAL and imitates(cfg):
        with pytest.raises(ConfigError, match=f"experiment={experiment} makes a tiny model .* choose model=tiny"):
            check_rules(cfg, [rules.the_model_suits_the_run])
        return
    if model in REAL and prompt.grammar == "ui_tars_mobile":  # of the phone in memory, for tiny models
        with pytest.raises(ConfigError, match="answers in the grammar ui_tars_mobile"):
            check_rules(cfg, [rules.the_model_suits_the_run])
        return
    check_rules(cfg, [rules.the_model_suits_the_run])
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
    "words",
    [
        ("model=ui_tars_1_5_7b", "prompt=official"),
        ("model=qwen3_5_9b", "prompt=computer_use", "model.grammar=computer_use"),
        *(("model=tiny_qwen3", f"prompt={name}") for name in ("compact_computer_use", "computer_use_xml")),
    ],
)
def test_another_prompt_of_the_model_s_grammar_can_be_chosen(words):
    cfg = composed("experiment=arpo_subset32", *words)
    check_rules(cfg, [rules.the_model_suits_the_run])
    assert cfg.prompt._target_ == f"arpo.agent.prompt.Prompt.{words[1].partition('=')[2]}"


@pytest.mark.parametrize(
    ("gpu", "tokens", "mlp_chunk"), [("rtx4090-24", 16384, 2048), ("a100-40", 32768, 2048), ("h200-141", 32768, None)]
)
def test_a_run_on_one_card_takes_its_numbers_from_the_card_and_the_model(gpu, tokens, mlp_chunk):
    composition = partial(composed, "experiment=one_gpu", f"gpu={gpu}", config="plan")
    small, large = (composition(f"model={name}") for name in ("qwen3_vl_2b", "qwen3_vl_8b"))
    assert small.rollout.settings.max_context == small.module.micro_batch_tokens == tokens
    assert small.engine.max_model_len == tokens
    assert small.model.policy.mlp_chunk == mlp_chunk
    shares = [cfg.engine.engine_args.gpu_memory_utilization for cfg in (small, large)]
    assert 0.5 < shares[1] < shares[0] < 1
    assert small.model.beside_gib != large.model.beside_gib
    check_arguments(small)


def test_a_checkpoint_of_another_family_than_the_model_s_is_refused(tiny_model, tiny_qwen3):
    check_rules(composed("model=ui_tars_1_5_7b", model=str(tiny_model)), [rules.the_checkpoint_is_of_the_family])
    check_rules(composed("model=qwen3_vl_8b", model="not/there/yet"), [rules.the_checkpoint_is_of_the_family])
    with pytest.raises(ConfigError, match=r"is of the family qwen3_vl, and model= chose one of qwen2_5_vl"):
        check_constructors(composed("model=ui_tars_1_5_7b", model=str(tiny_qwen3)))


@pytest.mark.parametrize(
    ("words", "module", "data"),
    [
        ("experiment=smoke replay=off", GRPOModule, RolloutDataModule),
        ("experiment=arpo_miniwob replay=on", GRPOModule, RolloutDataModule),
        ("experiment=dart_miniwob replay=pool", GRPOModule, RolloutDataModule),
        ("experiment=warmstart_fake", SFTModule, DemonstrationDataModule),
        ("experiment=warmstart_miniwob", SFTModule, DemonstrationDataModule),
        ("experiment=offline_rs source=there", SFTModule, TrajectoryDataModule),
        ("experiment=offline_dpo source=there", DPOModule, TrajectoryDataModule),
        ("experiment=offline_kto source=there", KTOModule, TrajectoryDataModule),
    ],
)
def test_the_runs_for_a_cpu_are_built_from_their_files(words, module, data, tiny_model, tmp_path):
    cfg = composed(*words.split(), run_dir=f"{tmp_path}/run", model=str(tiny_model))
    built, datamodule, trainer = build(cfg.module), build(cfg.datamodule), build_trainer(cfg, None)
    assert isinstance(built, module)
    assert isinstance(datamodule, data)
    assert trainer.max_epochs == cfg.iterations
    replays = data is RolloutDataModule and "replay=off" not in words
    assert any(isinstance(callback, ReplayInjection) for callback in trainer.callbacks) == replays
    if data is DemonstrationDataModule:
        return
    assert isinstance(trainer.callbacks[-1], IterationCheckpoint)
    built.configure_model()
    if data is TrajectoryDataModule:
        assert datamodule.steps == built.steps
        assert datamodule.steps % trainer.max_epochs == 0
        assert len(built.references) == (0 if module is SFTModule else 1)
    else:
        built.trainer = trainer  # it knows how long the run is over which a rate may fall
        assert isinstance(built.configure_optimizers()["optimizer"], torch.optim.Optimizer)


@pytest.mark.parametrize("experiment", ["offline_rs", "offline_dpo", "offline_kto"])
def test_offline_runs_start_from_the_policy_of_the_main_job_and_are_judged_as_it_is(experiment):
    online, offline = (composed(f"experiment={name}") for name in ("arpo_miniwob", experiment))
    for shared in ("tasks", "prompt", "warmstart", "evaluation"):
        assert offline[shared] == online[shared]
    assert {**offline.env, "size": 0} == {**online.env, "size": 0}  # how many play at once changes nothing
    assert {**offline.model, "numbers": None} == {**online.model, "numbers": None}  # the rate is another one
    assert offline.rollout.settings.max_steps == online.rollout.settings.max_steps
    assert offline.callbacks.evaluation == online.callbacks.evaluation
    assert offline.datamodule.steps == online.iterations * online.module.minibatches * online.module.epochs
    assert offline.source == "outputs/arpo_miniwob/default"


def test_offline_data_that_is_not_there_is_refused_before_a_warm_start(tmp_path):
    (tmp_path / "trajectories" / "train").mkdir(parents=True)
    (tmp_path / "trajectories" / "train" / "iteration_000000.jsonl").touch()
    words, stored = ("experiment=offline_rs", f"source={tmp_path}"), [rules.stored_data_is_there]
    check_rules(composed(*words), stored)
    for override, said in {
        "source=''": r"source= holds no episodes to learn from: name the folder of a run",
        "datamodule.steps=101": r"datamodule\.steps=101 must be a multiple of iterations=12",
    }.items():
        with pytest.raises(ConfigError, match=said):
            check_rules(composed(*words, override), stored)


# --- the numbers of the papers and of their code: docs/paper.md ------------------------------------------------------

ARPO = """
module.objective: {clip_low: 0.2, clip_high: 0.3, dual_clip: null, kl_coefficient: 0.0, estimator: grpo,
  std: population, aggregation: sequence, format_weight: 1.0}
module: {reference: null, temperature: 1.0}
module.optimizer: {lr: 1.0e-6, _target_: torch.optim.AdamW}
rollout.settings: {group_size: 8, max_steps: 15, max_context: 65536, max_tokens: 8192, temperature: 1.0,
  max_policy_lag: 0}
callbacks.evaluation.settings: {rollouts_per_task: 1, temperature: 0.6, protocol: standard}
replay.buffer: {capacity_per_task: 8, trigger: all_failed, replaced: random}
model.policy: {dtype: bfloat16, train_vision: true}
"""
OFFICIAL = """
module.objective: {std: sample, format_weight: 0.5, dual_clip: 3.0}
module.optimizer: {lr: 1.0e-6}  # what both agree on stays
# replay weighs a reward as the update does
replay.buffer: {trigger: official, replaced: first, success_threshold: 0.1, format_weight: 0.5}
"""
DART = """
rollout.settings: {group_size: 8, temperature: 1.0, max_policy_lag: 1}
module.objective: {clip_low: 0.2, clip_high: 0.28, dual_clip: null, kl_coefficient: 0.1, correction: tis_token,
  std: population, level: token}
module.reference: {_target_: arpo.models.policy.Policy}
module.optimizer: {lr: 1.0e-6}
datamodule.sampler.group_size:
  {_target_: arpo.rollout.curation.requests.DynamicRolloutNumber, group_size: 8, threshold: 0.6}
datamodule.sampler.max_steps: {_target_: arpo.rollout.curation.requests.DynamicTrajectoryLength, slack: 0}
replay: {remembers: false}
replay.buffer: {replaced: none, choice: random}
"""
DART_CODE = """
module.objective: {clip_low: 0.1, clip_high: 0.28, dual_clip: 10.0, std: sample, level: sequence,
  kl_coefficient: 0.1, correction: tis_token}  # what both agree on stays: these two
module: {max_grad_norm: 2.0}
module.optimizer: {weight_decay: 0.1}
datamodule.sampler: {max_steps: null}
datamodule.sampler.group_size: {threshold: 1.0}
replay: {remembers: true}
replay.buffer: {replaced: oldest, choice: newest, success_threshold: 0.0}
"""


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("experiment=arpo_subset32", ARPO),
        ("experiment=arpo_full", ARPO),
        ("experiment=arpo_subset32 preset=official", OFFICIAL),
        ("experiment=dart_osworld", DART),
        ("preset=dart_paper", DART),
        *((f"experiment={name} preset=dart_code", DART_CODE) for name in ("dart_osworld", "arpo_miniwob", "smoke")),
    ],
)
def test_numbers_are_those_of_the_paper_or_of_the_published_code(words, numbers):
    cfg = composed(*words.split())
    for place, own in yaml.safe_load(numbers).items():
        assert {key: OmegaConf.select(cfg, place)[key] for key in own} == own, place


def test_the_paper_s_runs_have_their_own_sizes_and_lora_a_rate_of_its_own():
    subset, full = composed("experiment=arpo_subset32"), composed("experiment=arpo_full")
    for cfg, strategy in ((subset, ShardedStrategy), (full, ShardedStrategy), (composed("trainer=ddp"), DDPStrategy)):
        assert isinstance(build(cfg.trainer.strategy), strategy)
    assert (subset.env.size, subset.datamodule.sampler.tasks_per_iteration) == (16, 2)
    assert (full.env.size, full.datamodule.sampler.tasks_per_iteration) == (256, 32)
    assert subset.iterations == 15 * 32 // 2  # 15 epochs of 32 tasks, 2 an iteration
    assert full.iterations == 15 * 128 // 32
    assert (subset.module.warmup_steps, full.module.warmup_steps) == (24, 0)
    for cfg in (subset, full):  # one environment an episode, as in the official code, though nothing here needs it
        assert cfg.env.size == cfg.datamodule.sampler.tasks_per_iteration * cfg.rollout.settings.group_size
    whole, lora = (composed("experiment=arpo_subset32", *words) for words in ([], ["model=qwen2_5_vl_7b"]))
    assert (whole.module.optimizer.lr, lora.module.optimizer.lr) == (1e-6, 1e-5)
    assert (whole.engine.make_engine.lora_rank, lora.engine.make_engine.lora_rank) == (None, 32)
    assert composed("engine=vllm", "model=qwen2_5_vl_7b").engine.lora_rank == 32
    assert composed("experiment=smoke").engine.lora_rank is None


@pytest.mark.parametrize(("tasks", "count"), [("osworld_subset32", 32), ("osworld_128", 128), ("osworld_369", 369)])
def test_a_list_of_osworld_tasks_has_as_many_as_its_name_says(tasks, count):
    ids = json.loads((LISTS / composed(f"tasks={tasks}").tasks.train.ids).read_text())
    listed = [f"{domain}/{task_id}" for domain in ids for task_id in ids[domain]]
    assert len(listed) == len(set(listed)) == count


@pytest.mark.parametrize("experiment", ["arpo_subset32", "arpo_miniwob"])
def test_an_engine_is_made_for_as_many_pictures_as_a_foreign_agent_may_send(experiment):
    argv = ["harness=command", "harness.argv=[python]"]
    cfg = composed(f"experiment={experiment}", *argv, "harness.max_pictures=40")
    assert cfg.engine.get("make_engine", cfg.engine).max_images == 40
    cfg = composed(f"experiment={experiment}", *argv, "rollout.settings.max_steps=30")
    assert cfg.engine.get("make_engine", cfg.engine).max_images == 31


def test_dart_on_osworld_has_its_own_sizes_and_on_desktops_two_engines_on_cpus():
    cfg = composed("experiment=dart_osworld")
    check_rules(cfg, rules.NUMBERS)
    assert (cfg.env.size, cfg.rollout.settings.max_steps) == (180, 30)
    assert (cfg.gpus, cfg.trainer.num_nodes, list(cfg.trainer.devices)) == (16, 2, [4, 5, 6, 7])
    assert cfg.engine.replicas * cfg.engine.nodes == 8
    # a response sees 5 screenshots, and 180 desktops over 8 engines are 23 each
    assert (cfg.engine.make_engine.max_images, cfg.engine.make_engine.screenshots) == (5, 23 * 5)
    ahead = (cfg.rollout.settings.max_policy_lag + 1) * cfg.datamodule.sampler.tasks_per_iteration
    assert ahead * 5 >= cfg.env.size  # at five episodes a group, which the paper's run comes down to
    assert cfg.datamodule.sampler.max_steps.limit == cfg.rollout.settings.max_steps
    assert cfg.replay.pool.tasks == cfg.tasks.train
    for trainer in ("ddp", "fsdp"):  # other ranks wait longer than rank 0 takes to say what stands still
        strategy = composed("experiment=dart_osworld", f"trainer={trainer}").trainer.strategy
        assert build(strategy.timeout).total_seconds() > 2 * cfg.rollout.settings.stall_s
    cfg = composed("experiment=dart_desktop32")
    check_rules(cfg, rules.NUMBERS)
    assert cfg.engine._target_ == "arpo.inference.fleet.FleetEngine"
    assert (cfg.engine.replicas, cfg.engine.num_gpus, cfg.rollout.settings.max_policy_lag) == (2, 0, 1)


# --- choices that differ in one thing --------------------------------------------------------------------------------


def test_replay_is_one_line_and_the_only_difference_between_arpo_and_grpo():
    on, off = (plain(composed("experiment=smoke", f"replay={choice}")) for choice in ("on", "off"))
    assert on.pop("replay")["_target_"] == "arpo.callbacks.replay.ReplayInjection"
    assert off.pop("replay") == {"_target_": None}
    assert on["callbacks"].pop("replay") != off["callbacks"].pop("replay")
    assert on == off


@pytest.mark.parametrize("names", [("arpo_miniwob_fixed", "dart_miniwob"), ("arpo_desktop32", "dart_desktop32")])
def test_dart_differs_from_arpo_in_its_mechanism_alone(names):
    """So that both can be compared: same tasks, same model, same budget."""
    arpo, dart = (plain(composed(f"experiment={name}")) for name in names)
    for shared in ("env", "tasks", "model", "prompt", "warmstart", "iterations", "evaluation", "trainer"):
        assert arpo[shared] == dart[shared]
    assert arpo["module"]["optimizer"] == dart["module"]["optimizer"]
    ours, its = (each["rollout"]["settings"] for each in (arpo, dart))
    assert {key for key in ours if its[key] != ours[key]} == {"max_policy_lag", "order"}


@pytest.mark.parametrize(
    ("line", "own"),
    [
        ("rollout_number=dynamic", {"group_size": ...}),
        ("trajectory_length=dynamic", {"max_steps": ...}),
        # of the paper
        ("curriculum=failures", {"_target_": "curricula.FailureCurriculum", "patience": 2, "cooldown": 3}),
        (
            "curriculum=stages",
            {"_target_": "curricula.StagedCurriculum", "stages": 3, "stage_iterations": 20, "threshold": 0.7},
        ),
    ],
)
def test_a_curation_is_one_line_and_changes_nothing_else(line, own):
    usual, curated = plain(composed("experiment=smoke")), plain(composed("experiment=smoke", line))
    before, after = (each["datamodule"].pop("sampler") for each in (usual, curated))
    assert curated == usual
    for key, value in own.items():
        found = after.pop(key)
        before.pop(key, None)
        if value is ...:
            assert found["_target_"].startswith("arpo.rollout.curation.")
        else:
            assert found in (value, f"arpo.rollout.curation.{value}")
    assert after == before


@pytest.mark.parametrize(("experiment", "warmstart"), [("miniwob", "miniwob"), ("desktop32", "desktop")])
def test_dart_s_pool_is_what_its_warm_start_kept(experiment, warmstart, tmp_path):
    cfg = composed(f"experiment=dart_{experiment}", "paths.output=out", model=None)
    warm = composed(f"experiment=warmstart_{warmstart}", run_dir="FOLDER", model=None)
    (directory,) = cfg.replay.pool.directories
    assert Path(directory).parent / "policy" == Path(cfg.model.path)
    assert warm.datamodule.directory == f"FOLDER/{Path(directory).name}"
    check_pool(cfg)  # nothing is there before the warm start, and nothing is wrong with that
    (tmp_path / "config.json").touch()  # a policy from elsewhere: no warm start will run
    with pytest.raises(ConfigError, match=r"experience: .*demonstrations holds no trajectories"):
        check_pool(composed(f"experiment=dart_{experiment}", model=str(tmp_path)))
    check_pool(composed(f"experiment=dart_{experiment}", "replay=on", model=str(tmp_path)))
    assert composed(f"experiment=dart_{experiment}", "warmstart=null").experience == []


def test_a_policy_that_comes_with_the_code_has_no_demonstrations_for_a_pool(tmp_path):
    places = (f"paths.output={tmp_path}", f"paths.checkpoints={tmp_path}/none")
    words = ["experiment=arpo_miniwob", "replay=pool", *places]
    own = recordings_of("warmstart_habits", str(tmp_path))
    with pytest.raises(ConfigError, match=r"python train\.py experiment=warmstart_habits makes them"):
        check_pool(composed(*words, f"experience=['{own}']"))
    own = recordings_of("warmstart_habits", str(tmp_path), 2)  # which makes a warm start of its own
    check_pool(composed(*words, f"experience=['{own}']", "rollout.settings.image_window=2"))


# --- which GPUs train and which serve --------------------------------------------------------------------------------

# Devices of the trainer on each node, nodes, engines on each node, and screenshots that each engine has in use:
# 16 desktops x 15 steps over 8 engines are 30, over one 240; 256 desktops over 16 engines also 16 x 15 = 240.
LAYOUTS = [
    ("experiment=arpo_subset32", [0, 1, 2, 3, 4, 5, 6, 7], 1, 8, 30),
    ("experiment=arpo_subset32 layout=split", [1, 2, 3, 4, 5, 6, 7], 1, 1, 240),
    ("experiment=arpo_subset32 layout=split serving_gpus=3 gpus=16", [*range(3, 16)], 1, 3, 90),
    ("experiment=arpo_full", [0, 1, 2, 3, 4, 5, 6, 7], 2, 8, 240),
    ("experiment=arpo_full layout=split serving_gpus=2", [2, 3, 4, 5, 6, 7], 2, 2, 960),
    ("experiment=arpo_full gpus=8", [0, 1, 2, 3], 2, 4, 480),
    ("experiment=arpo_full layout=split serving_gpus=4 engine.num_gpus=2", [4, 5, 6, 7], 2, 2, 960),
    ("experiment=arpo_miniwob layout=colocated gpus=1", [0], 1, 1, 16 * 12),
]


@pytest.mark.parametrize(("overrides", "devices", "nodes", "engines", "screenshots"), LAYOUTS)
def test_a_layout_says_which_gpus_train_and_which_serve(overrides, devices, nodes, engines, screenshots):
    cfg = composed(*overrides.split())
    check_rules(cfg, rules.NUMBERS)
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


STORED = "experiment=dart_miniwob module.replayed_old_logprobs=stored"


def test_a_pool_may_be_empty_where_the_run_fills_it_or_there_is_none():
    for words in (
        f"{STORED} experience=[] replay.remembers=true",
        f"{STORED} replay=on",
        "experiment=smoke preset=dart_code",
    ):
        check_pool(composed(*words.split()))


def test_the_paper_s_run_on_a_laptop_says_at_once_what_is_missing_and_what_to_do(tmp_path, monkeypatch, caplog):
    """In this process: how long another one takes to start depends on what else the machine does."""
    monkeypatch.setattr(preflight, "count_gpus", lambda: 0)
    monkeypatch.setattr(preflight, "DRIVER", tmp_path / "none")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.delenv("ARPO_OSWORLD_TASKS", raising=False)
    cfg = composed("experiment=arpo_subset32", "env.size=9999", f"paths.output={tmp_path}", "paths.osworld_disk=none")
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
    folders = set()
    for job in jobs:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = hydra.compose("train", job, return_hydra_config=True)
        assert cfg.hydra.run.dir == f"{cfg.hydra.sweep.dir}/{cfg.hydra.sweep.subdir}"
        folders.add(cfg.hydra.run.dir)
    assert folders == {f"out/smoke/replay={replay},seed={seed}" for replay in ("on", "off") for seed in (1, 2)}
