"""The simulation of an update, against sums and against a process with real numbers."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from arpo.apps.plan.costs import Offloaded
from arpo.apps.plan.fake import WeightlessPolicy, stand_in
from arpo.apps.plan.longest import WorstCaseTrajectory
from arpo.apps.plan.update import Simulated, count, simulate, with_shared
from arpo.methods.grpo import GRPO
from arpo.models.families.qwen2_5_vl import make_tiny, segment_layout
from arpo.models.policy import LoraSettings, Policy
from arpo.modules.grpo import GRPOModule
from arpo.modules.offload import OffloadedAdamW

ROOT = Path(__file__).parents[3]
PARAMETERS_7B = 8_292_166_656
LONGEST = WorstCaseTrajectory(512, 4, 64, (112, 140), image_tokens=20)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"), corpus=(), hidden=64)


def module(
    path: Path,
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW,
    objective: GRPO | None = None,
    **policy: object,
) -> GRPOModule:
    make = partial(WeightlessPolicy, path, dtype="bfloat16", **{"gradient_checkpointing": True, **policy})
    return GRPOModule(make, partial(optimizer, lr=1e-6), objective or GRPO(), micro_batch_tokens=1)


@cache
def update(path: Path, strategy: str = "single", ranks: int = 1, **options: object) -> Simulated:
    segment_layout.cache_clear()  # a process keeps the places of patches that it has once computed
    return simulate(module(path, **options), LONGEST, strategy=strategy, ranks=ranks)


def test_one_process_holds_16_bytes_a_parameter_and_ddp_a_second_copy_of_the_gradients(tiny):
    found = update(tiny)
    assert found.weights.trained == found.weights.total
    for category, size in {"parameters": 4, "gradients": 4, "optimizer": 8}.items():
        assert found.peak[category] == pytest.approx(size * found.weights.total, rel=0.01), category
    assert update(tiny, "ddp", 4).peak["gradients"] == pytest.approx(2 * update(tiny).peak["gradients"], rel=0.01)


def test_the_update_of_a_windowed_run_that_selects_steps_keeps_fewer_activations(tiny):
    selects = module(tiny, objective=GRPO(high_entropy_steps=0.8, correction="tis_token"))
    usual = update(tiny)
    windowed = simulate(selects, replace(LONGEST, image_window=2), strategy="single", ranks=1)
    # A sequence of the same length with two pictures instead of four, of which 64 tokens are trained and not 256.
    assert windowed.peak["activations"] < usual.peak["activations"]
    assert windowed.weights == usual.weights


def test_a_shard_holds_a_part_of_it_and_gathers_blocks(tiny):
    whole, quarter = update(tiny), update(tiny, "fsdp", 4)
    assert quarter.weights == whole.weights
    assert quarter.resident == pytest.approx(whole.resident / 4, rel=0.05)
    # Beside its part of all gradients, a rank has those of one block whole, until they are reduced.
    block = 4 * sum(parameter.numel() for parameter in Policy(tiny).model.model.language_model.layers[0].parameters())
    assert quarter.peak["gradients"] == pytest.approx(whole.peak["gradients"] / 4 + block, rel=0.05)
    assert quarter.peak["gathered"] > 0
    assert quarter.peak["activations"] == pytest.approx(whole.peak["activations"], rel=0.1)


def test_lora_has_gradients_and_moments_of_its_adapters_alone(tiny):
    found = update(tiny, train_vision=False, lora=LoraSettings(4))
    frozen = found.weights.total - found.weights.trained
    assert found.peak["optimizer"] == pytest.approx(8 * found.weights.trained, rel=0.02)
    assert found.resident == pytest.approx(2 * frozen + 12 * found.weights.trained, rel=0.02)


@pytest.mark.parametrize(
    ("options", "engine", "in_turn", "shared", "moves"),
    [
        ({"lora": LoraSettings(4), "train_vision": False}, torch.bfloat16, True, "the frozen base", True),
        ({"lora": LoraSettings(4), "train_vision": False}, torch.bfloat16, False, "the frozen base", True),
        ({"lora": LoraSettings(4), "train_vision": False}, torch.float32, True, "nothing", True),
        ({}, torch.bfloat16, True, "nothing", True),  # what is trained is float32
        ({"train_vision": False}, torch.bfloat16, True, "the vision tower", True),
        ({}, torch.float32, True, "everything", False),
        ({}, torch.float32, False, "nothing", True),  # rollouts go on while the update changes it
    ],
)
def test_an_engine_of_the_same_format_shares_what_is_frozen_and_in_turn_what_is_trained(
    tiny, options, engine, in_turn, shared, moves
):
    policy = WeightlessPolicy(tiny, dtype="bfloat16", **options)
    found = with_shared(count(policy), policy, engine, in_turn=in_turn)
    sizes = {
        "nothing": 0,
        "the frozen base": 2 * (found.total - found.trained),
        "the vision tower": 2 * found.vision,
        "everything": 4 * found.total,
    }
    assert (found.shared_bytes, found.moves) == (sizes[shared], moves)


@pytest.mark.parametrize(("strategy", "ranks"), [pytest.param("single", 1, marks=pytest.mark.long), ("fsdp", 4)])
def test_offloaded_moments_are_on_the_host_and_change_nothing_else(tiny, strategy, ranks):
    usual = update(tiny, strategy, ranks)
    found = update(tiny, strategy, ranks, optimizer=OffloadedAdamW)
    assert usual.offloaded == Offloaded(0, 0)
    assert found.offloaded.optimizer == pytest.approx(8 * found.weights.trained / ranks, rel=0.05)
    left = found.peak["optimizer"]  # what is below the size that the tracker looks at
    assert left < usual.peak["optimizer"] / 10
    assert found.peak == usual.peak | {"optimizer": left}
    assert found.resident == usual.resident - usual.peak["optimizer"] + left


@pytest.mark.long
def test_offloading_takes_the_inputs_of_the_blocks_and_selective_checkpointing_keeps_attention_on_the_gpu(tiny):
    usual, found = update(tiny), update(tiny, offload_activations=True)
    # Two blocks of 512 tokens and two of 4 x 80 patches, a width of 64, 2 bytes
    inputs = 2 * (512 + 4 * 80) * 64 * 2
    assert inputs <= found.offloaded.activations <= 10 * inputs  # with what is outside of blocks, some in float32
    assert sum(usual.peak.values()) - sum(found.peak.values()) >= inputs
    offloads = found.offloaded
    usual, found = update(tiny), update(tiny, gradient_checkpointing="selective")
    # Two blocks of the language model: 512 tokens of a width of 64 with 2 bytes, and for each of 2 heads a float32
    assert found.peak["activations"] - usual.peak["activations"] == 2 * 512 * (64 * 2 + 2 * 4)
    both = update(tiny, offload_activations=True, gradient_checkpointing="selective")
    assert both.offloaded == offloads  # the inputs alone wait on the host


@pytest.mark.long
@pytest.mark.slow
def test_the_7b_takes_what_arithmetic_says_without_a_checkpoint():
    architecture = json.loads((ROOT / "arpo/models/shapes/qwen2_5_vl_7b.json").read_text())
    longest = WorstCaseTrajectory(4096, 1, 1024, (1920, 1080), image_tokens=2691)
    with stand_in(architecture, 3136, 12_845_056) as path:
        found = simulate(module(path), longest, strategy="single", ranks=1)
    assert found.weights.total == PARAMETERS_7B
    static = sum(found.peak[category] for category in ("parameters", "gradients", "optimizer"))
    # float32: 4 for the weight, 4 for its gradient, 8 for two moments
    assert static == pytest.approx(16 * PARAMETERS_7B, rel=0.01)


@pytest.mark.long
@pytest.mark.slow
def test_a_process_with_real_numbers_takes_what_was_simulated():
    command = [sys.executable, "benchmarks/plan_accuracy.py", "--hidden", "64", "--tokens", "2048"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env={})
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["simulated"] == pytest.approx(found["measured"], rel=0.1)
