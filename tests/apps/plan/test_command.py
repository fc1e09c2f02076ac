"""From a configuration to a plan: what is read from where, and what a person is told."""

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from transformers import AutoConfig, PreTrainedConfig

from arpo.apps.plan import command, fit
from arpo.apps.plan.command import (
    candidates,
    engine_share,
    estimate,
    has_one_copy,
    kept_by_engine,
    layout_of,
    main,
    share_key,
)
from arpo.apps.plan.costs import Case, Serving, Weights, Work, update_flops
from arpo.apps.plan.fit import check_memory
from arpo.apps.plan.hardware import GIB, Gpu, Layout
from arpo.apps.plan.longest import WorstCaseTrajectory
from arpo.apps.plan.report import Plan
from arpo.apps.plan.update import Simulated, simulate
from arpo.errors import ConfigError
from arpo.models.families.qwen2_5_vl import make_tiny, segment_layout
from arpo.models.family import family_of
from arpo.run.build import build
from arpo.run.choices import choices_of, short_choices

PLAN = Plan(
    case=Case(
        PreTrainedConfig(),
        Weights(10, 10, 5, 2, 3, train_vision=True, lora=False),
        WorstCaseTrajectory(1024, 4, 24, (112, 140), image_tokens=20),
        Work(trajectories=1, minibatches=1, epochs=1, iterations=1, reference=False, environments=8),
        Layout("split", "ddp", gpus=8, nodes=1, engine_gpus=1),
        Gpu(name="G", memory_gib=10, bf16_tflops=1, peer_gb_s=1, host_gb_s=1, network_gb_s=1),
    ),
    peak=Counter({"parameters": 4 * GIB, "activations": 3 * GIB}),
    reserve_gib=0.5,
    cache_gib=0.5,
    engine_gib=0.0,
    serving=Serving(7.0, 0.0, 1.0, 1.0, 5.0, 3, 1.5),
)


PAGE = Path(__file__).parents[3] / "docs" / "one_gpu.md"
FILES = ("experiment=", "layout=", "engine=", "method=", "model=", "trainer=")
composed = cache(lambda *words: command.compose(words))


def compose(*words: str) -> DictConfig:
    """A configuration: words that choose files are composed once, and numbers are put in behind them."""
    files = [word for word in words if word.startswith(FILES)]
    cfg = composed(*files).copy()
    for key, _, value in (word.removeprefix("+").partition("=") for word in words if word not in files):
        OmegaConf.update(cfg, key, int(value) if value.isdecimal() else value, force_add=True)
    return cfg


DIVIDED = "engine.num_gpus=2 +engine.make_engine.engine_args.tensor_parallel_size=2"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("arpo_subset32", (8, 8, 8)),
        ("arpo_subset32 gpus=4", (4, 4, 4)),
        ("arpo_subset32 layout=split", (7, 1, 1)),
        ("arpo_full layout=split serving_gpus=2", (12, 4, 4)),
        ("smoke", (1, 1, 1)),
        ("smoke gpus=8", (1, 1, 1)),  # one process is both, however many GPUs there are
        (f"arpo_subset32 {DIVIDED}", (8, 8, 4)),  # an engine that divides its weights has two
    ],
)
def test_the_gpus_of_an_experiment_train_or_serve(words, expected):
    layout = layout_of(compose(*f"experiment={words}".split()))
    assert (layout.trainers, layout.engines, layout.replicas) == expected


def test_gpus_that_cannot_be_shared_out_have_no_plan():
    for word, said in {
        "gpus=0": "gpus must be a whole number of at least 1, got 0",
        "+engine.make_engine.engine_args.tensor_parallel_size=4": r"engine\.num_gpus=1 gives .* tensor_parallel_size",
    }.items():
        with pytest.raises(ConfigError, match=said):
            estimate(compose("experiment=arpo_subset32", word))
    with pytest.raises(ConfigError, match=r"peer_gb_s must be above 0, got 0"):
        replace(PLAN.case.gpu, peer_gb_s=0)


def test_a_run_that_fits_says_by_how_much_and_one_that_does_not_everything_that_is_too_small():
    assert PLAN.troubles() == []
    fits = "It fits: a training GPU has 2.0 GiB to spare, and 3 episodes of the longest kind fit into the KV cache"
    assert PLAN.verdict() == f"{fits} at once, of 8 environments."
    wrong = replace(PLAN, reserve_gib=1.0, cache_gib=4.0, serving=Serving(9.0, 0.0, 9.0, 1.0, -1.0, 0, 1.5))
    trains = "a training GPU needs 12.0 GiB and has 10.0: 2.0 GiB too little"
    serves = "a serving GPU has -1.0 GiB for the KV cache, too little for one context of the longest trajectory"
    assert wrong.verdict() == f"It does not fit: {trains}; {serves}."
    beside = replace(PLAN, reserve_gib=1.0, serving=Serving(7.0, 2.5, 1.0, 1.0, 5.0, 3, 1.5))  # a trainer at rest
    why = "because the engine's share is 7.0 and a trainer rests beside it"
    assert beside.troubles() == [f"a serving GPU needs 10.5 GiB and has 10.0, {why}"]
    assert replace(beside, serving=Serving(6.0, 2.5, 1.0, 1.0, 4.0, 2, 1.5)).troubles() == []


@pytest.mark.parametrize(
    ("words", "share", "kept"),
    [
        (["experiment=arpo_subset32"], 0.6, 2.0),  # it sleeps
        (["experiment=arpo_subset32", "layout=split"], 0.92, 0.0),  # vLLM's own
        (["experiment=smoke"], 0.92, 0.92 * 79.2),  # it stays where it is
        (["experiment=smoke", "engine=vllm", f"+engine.{command.SHARE}=0.3"], 0.3, 0.3 * 79.2),
    ],
)
def test_what_an_engine_takes_is_read_from_its_arguments(words, share, kept):
    cfg = compose(*words)
    assert engine_share(cfg) == share
    assert kept_by_engine(cfg, layout_of(cfg), share * 79.2) == pytest.approx(kept)
    besides = kept - 5.0 if kept > 5 else kept  # of weights that are the trainer's, where it stays
    assert kept_by_engine(cfg, layout_of(cfg), share * 79.2, 5.0) == pytest.approx(besides)


@pytest.mark.parametrize(
    ("words", "one"),
    [
        ("experiment=smoke", True),
        ("experiment=smoke engine.one_copy=false", False),
        ("experiment=smoke engine=hf", False),
        ("experiment=smoke +engine.engine_args.tensor_parallel_size=2", False),
        ("experiment=offline_rs", False),  # its policy has its weights before any engine
        ("experiment=arpo_subset32", False),  # engines in processes of their own
        ("experiment=arpo_subset32 layout=split", False),
    ],
)
def test_one_copy_of_the_weights_is_for_an_engine_in_the_trainer_s_process(words, one):
    cfg = command.compose(words.split())
    assert has_one_copy(cfg, layout_of(cfg)) is one


def test_a_plan_counts_weights_that_trainer_and_engine_share_once(tmp_path):
    model = make_tiny(tmp_path / "model", corpus=(), hidden=64)
    words = ["experiment=smoke", f"model.path={model}", "+engine.engine_args.gpu_memory_utilization=0.5"]
    plans = []
    for each in ("true", "false"):
        segment_layout.cache_clear()  # a process keeps the places of patches that it has once computed
        plans.append(estimate(command.compose([*words, f"engine.one_copy={each}"])))
    one, two = plans
    bytes_shared = 4 * one.case.weights.total  # of all: both sides are float32
    assert (one.case.weights.shared_bytes, two.case.weights.shared_bytes) == (bytes_shared, 0)
    for less in (two.training_gib - one.training_gib, two.serving_gib - one.serving_gib):
        assert less == pytest.approx(bytes_shared / GIB)
    assert (one.case.sync_bytes, two.case.sync_bytes) == (0, 2 * one.case.weights.total)
    # What the trainer leaves is the same share of the card plus what is both's.
    assert one.left_share == pytest.approx(two.left_share + bytes_shared / GIB / 79.2, abs=0.01)
    assert one.share_setting == f"engine.engine_args.gpu_memory_utilization={one.left_share}"


def test_only_settings_that_a_run_does_not_have_are_tried():
    alone = Layout("colocated", "single", gpus=1, nodes=1, engine_gpus=0)
    offered = candidates(compose("experiment=arpo_subset32", "model=qwen2_5_vl_7b", "layout=split"), PLAN)
    needless = ("model=", "model.policy.train_vision", "model.policy.grad")
    assert not any(setting.startswith(needless) for setting in offered)
    assert "layout=colocated" in offered
    freezing = "model.policy.train_vision=false"
    assert freezing in candidates(compose("experiment=arpo_subset32"), PLAN)
    adapters = compose("experiment=arpo_subset32", "model=qwen2_5_vl_7b", "model.policy.train_vision=true")
    assert freezing not in candidates(adapters, PLAN)  # which leave the tower as it is
    selective = compose("experiment=arpo_subset32", "model.policy.gradient_checkpointing=selective")
    assert "model.policy.gradient_checkpointing=true" in candidates(selective, PLAN)
    beside = replace(PLAN, case=replace(PLAN.case, layout=alone), engine_gib=9.2)
    tiny = candidates(compose("experiment=smoke", "engine=vllm"), beside)
    assert "+model.policy.gradient_checkpointing=true" in tiny  # a key that the files lack is added
    # What the trainer has no use for is left to an engine in its process, or beside it in turn.
    smoke, turns = compose("experiment=smoke"), compose("experiment=arpo_subset32")
    assert share_key(smoke, layout_of(smoke)) == "+engine.engine_args.gpu_memory_utilization"
    assert share_key(turns, layout_of(turns)) == "engine.make_engine.engine_args.gpu_memory_utilization"
    apart = compose("experiment=arpo_subset32", "layout=split")
    assert share_key(apart, layout_of(apart)) == ""
    assert beside.left_share == 0.2
    assert not any("engine" in setting for setting in candidates(compose("experiment=methods"), PLAN))
    ahead = compose("experiment=arpo_subset32", "layout=split", "rollout.settings.max_policy_lag=1")
    assert "layout=colocated" not in candidates(ahead, PLAN)  # its engines sleep during updates
    taken = [f"module.optimizer._target_={command.OFFLOADED}", "model.policy.offload_activations=true"]
    for words, expected in (([], taken), (taken, [])):
        offered = candidates(compose("experiment=arpo_subset32", *words), PLAN)
        assert [setting for setting in offered if "ffload" in setting] == expected


def test_a_plan_of_a_checkpoint_on_disk_reads_its_shape(tmp_path):
    model = make_tiny(tmp_path / "model", corpus=(), hidden=64)
    words = ["module.micro_batch_tokens=1024", "+model.policy.gradient_checkpointing=selective"]
    plan = estimate(command.compose(["experiment=smoke", f"model.path={model}", *words]))
    assert plan.troubles() == []
    assert plan.case.weights.total == plan.case.weights.trained < 10**6
    figures = {name: (figure, origin) for name, figure, origin in plan.rows()}
    assert figures["longest trajectory"][0] == "1024 tokens"
    assert figures["updates of an iteration"][1] == "at an MFU of 39 %"  # of one that computes attention twice: 35


@pytest.mark.parametrize(
    ("word", "shape"),
    [
        ("model=ui_tars_1_5_7b", ("qwen2_5_vl", 8.29)),
        pytest.param("model=qwen3_vl_8b", ("qwen3_vl", 8.77), marks=pytest.mark.long),
        pytest.param("architecture=qwen3_vl_4b", ("qwen3_vl", 4.44), marks=pytest.mark.long),
        pytest.param("model=qwen2_5_vl_3b", ("qwen2_5_vl", 3.755), marks=pytest.mark.long),
        pytest.param("model=qwen3_vl_2b", ("qwen3_vl", 2.128), marks=pytest.mark.long),
        pytest.param("model=qwen3_5_0_8b", ("qwen3_5", 0.853), marks=pytest.mark.long),
        pytest.param("model=qwen3_5_2b", ("qwen3_5", 2.213), marks=pytest.mark.long),
        pytest.param("model=qwen3_vl_4b", ("qwen3_vl", 4.44), marks=pytest.mark.long),
        pytest.param("model=qwen3_5_4b", ("qwen3_5", 4.54), marks=pytest.mark.long),
        pytest.param("model=qwen3_5_9b", ("qwen3_5", 9.41), marks=pytest.mark.long),
    ],
)
def test_where_no_checkpoint_is_on_disk_the_shape_is_that_of_the_model_s_name(word, shape):
    cfg = command.compose(["experiment=arpo_subset32", word])
    with command.policy_directory(cfg) as directory:
        assert family_of(directory).model_type == shape[0]
        with torch.device("meta"):
            model = family_of(directory).model_class(AutoConfig.from_pretrained(directory))
    assert model.num_parameters() / 1e9 == pytest.approx(shape[1], abs=5e-3)


def test_a_run_for_gpus_that_are_too_small_is_refused_with_the_figures_of_its_plan(monkeypatch):
    asked = []

    def needs(cfg: DictConfig) -> Plan:
        asked.append(cfg.gpu.memory_gib)
        return replace(PLAN, cache_gib=4.5)

    monkeypatch.setattr(command, "estimate", needs)
    monkeypatch.setattr(fit, "smallest_gpu_gib", lambda: 10.0)
    keys = ["requires", "model", "trainer", "env", "gpus", "datamodule"]
    cfg = OmegaConf.masked_copy(compose("experiment=arpo_subset32"), keys)
    with pytest.raises(ConfigError, match=r"a training GPU needs 12\.0 GiB and has 10\.0: 2\.0 GiB too little"):
        check_memory(cfg)
    assert asked == [10.0]
    monkeypatch.setattr(fit, "smallest_gpu_gib", lambda: None)
    check_memory(cfg)
    assert asked == [10.0]


def test_gpus_are_not_looked_at_for_a_run_that_has_no_need_of_it(monkeypatch):
    monkeypatch.setattr(fit, "smallest_gpu_gib", lambda: pytest.fail("asked for the GPUs"))
    check_memory(compose("experiment=smoke"))  # made without GPUs
    check_memory(compose("experiment=offline_dpo", "+requires.gpus=1"))  # from stored data
    monkeypatch.setenv("LOCAL_RANK", "1")
    check_memory(compose("experiment=arpo_subset32"))  # another process of the node


def test_a_mixture_is_planned_with_its_largest_screen_and_the_environments_of_each_part():
    words = ("experiment=arpo_miniwob", "env=mixture", "tasks=mixture", "rollout.settings.max_steps=15")
    assert composed(*words).screen == [1920, 1080]  # pages and toys name none
    cfg = composed(*words, "env.parts.office.make_env.screen=[3840,2160]", "env.parts.office.envs_per_worker=3").copy()
    assert cfg.screen == [3840, 2160]
    row = ("environments", "pages 16, office 8, toys 4", "16 episodes at once; worker processes: 5")
    assert row in estimate(cfg).rows()
    assert composed("env=desktop").screen == [640, 480]


def test_a_critic_is_asked_about_every_step_before_an_update():
    plain, critic = (estimate(compose("experiment=smoke", *words)) for words in ([], ["method=ppo"]))
    # Of two minibatches the first needs no forward for old log-probabilities, but one for values.
    assert update_flops(critic.case) > 1.1 * update_flops(plain.case)
    assert sum(critic.peak.values()) > sum(plain.peak.values())
    # A normalisation of 64 features and a layer to one number: 4 * (2 * 64 + 1) bytes beside the policy's.
    assert [critic.peak[kind] - plain.peak[kind] for kind in ("parameters", "gradients")] == [516, 516]
    with pytest.raises(ConfigError, match="needs a critic"):
        estimate(compose("experiment=arpo_subset32", "method=ppo"))  # of shards


def test_a_foreign_agent_is_counted_as_a_conversation_of_as_many_pictures_as_it_may_send():
    agent = ["harness=command", "harness.argv=[env]", "harness.max_pictures=2"]
    case = estimate(compose("experiment=smoke", *agent)).case
    assert (case.longest.shown, case.longest.screenshots) == (2, (2,))


SAMPLE = ("arpo_desktop", "warmstart_fake")


@pytest.mark.slow
@pytest.mark.parametrize(
    "experiment",
    [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.long) for name in choices_of("experiment")],
)
def test_every_experiment_has_a_verdict_on_any_gpu(experiment, monkeypatch, capsys):
    simulated: list[Simulated] = []

    def once(*args: Any, **options: Any) -> Simulated:
        """What is simulated depends on no GPU; that settings help is tested elsewhere."""
        simulated[:] = simulated or [simulate(*args, **options)]
        return simulated[0]

    monkeypatch.setattr(command, "simulate", once)
    for gpu in ("h100-80", "rtx4090-24"):
        status = main([f"experiment={experiment}", f"gpu={gpu}"])
        assert ["It fits: ", "It does not fit: "][status] in capsys.readouterr().out


ONE_GPU = [
    (model, card, tokens, figure)
    for model, card, tokens, figure in re.findall(
        r"^\| `(\w+)` \| (\d+) \| (\d+)K \|.*\| ([\d.]+|does not fit) \| [^|]*\|$", PAGE.read_text(), re.MULTILINE
    )
]


def test_the_page_of_one_card_has_every_model_that_is_downloaded_on_every_card():
    trained_by_lora = {*choices_of("model")} - {"tiny", "tiny_qwen3", "tiny_qwen3_5", "ui_tars_1_5_7b"}
    assert {(model, card) for model, card, _, _ in ONE_GPU} == set(product(trained_by_lora, ("24", "40", "80")))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "card", "tokens", "contexts"), [row for row in ONE_GPU if not row[0].startswith("qwen3_5")]
)
def test_one_card_holds_the_contexts_that_its_page_says(model, card, tokens, contexts):
    gpu = next(name for name in ("rtx4090-24", "a100-40", "a100-80") if name.endswith(card))
    plan = estimate(command.compose(["experiment=one_gpu", f"model={model}", f"gpu={gpu}"]))
    assert plan.case.longest.max_context == 1024 * int(tokens)
    if contexts == "does not fit":
        assert plan.troubles() != []
        return
    assert plan.troubles() == []
    assert plan.serving.contexts == int(contexts)
    spare = plan.case.gpu.memory_gib - plan.training_gib
    assert spare < 0.02 * plan.case.gpu.memory_gib  # the engine has the rest


def test_a_run_from_stored_data_is_planned_with_the_reference_that_it_asks():
    imitation, preference = (estimate(compose(f"experiment=offline_{name}")) for name in ("rs", "dpo"))
    assert preference.peak["parameters"] == 2 * imitation.peak["parameters"]
    assert update_flops(preference.case) > update_flops(imitation.case)
    assert ("disk: trajectories", "0 GiB", "") in imitation.rows()  # it reads those of another run


def test_a_module_or_a_model_of_no_known_kind_has_no_plan():
    cfg = compose("experiment=offline_rs")
    numbers = {"micro_batch_tokens": 1, "max_grad_norm": 1.0}
    cfg.module = {"_target_": "arpo.modules.base.PolicyModule", "policy": None, "optimizer": None, **numbers}
    with pytest.raises(ConfigError, match=r"there is no plan for module._target_=arpo\.modules\.base\.PolicyModule"):
        estimate(cfg)
    cfg = command.compose(["experiment=arpo_subset32"])
    del cfg.architecture
    with pytest.raises(ConfigError, match="no file of arpo/models/shapes has the name of the model"):
        command.policy_directory(cfg).__enter__()


def test_a_wrong_word_is_one_message_and_exit_status_2(capsys, caplog):
    assert main(["gpu=abacus"]) == 2
    assert capsys.readouterr().out == ""
    (record,) = caplog.records
    assert "gpu=abacus: choose one of a100-40" in record.message
    assert record.exc_info is None


@pytest.mark.parametrize("kind", choices_of("gpu"))
def test_every_gpu_is_one_that_can_be_built(kind):
    gpu: Gpu = build(short_choices()["gpu"][kind])
    named = float(kind.rpartition("-")[2])
    assert 0.95 * named < gpu.memory_gib < named
