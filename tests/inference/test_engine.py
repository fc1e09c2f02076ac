"""What engines refuse before they start, what they read of a checkpoint, and the metrics of their counters."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from arpo.errors import ConfigError
from arpo.host.trial import on_trial
from arpo.inference.checkpoint import check_context, update_numbers
from arpo.inference.engine import engine_metrics
from arpo.inference.fleet import FleetEngine
from arpo.inference.hf import HfEngine
from arpo.inference.pump import matched
from arpo.inference.vllm import VllmEngine
from arpo.models.checkpoint import CheckpointWeights
from arpo.models.policy import LoraSettings, Policy


def test_sums_become_rates_and_shares() -> None:
    grown = {
        "engine/replica_0/in_flight_s": 30.0,
        "engine/replica_0/waiting_s": 5.0,
        "engine/replica_0/tokens": 400.0,
        "engine/replica_0/prompt_tokens": 1000.0,
        "engine/replica_0/cached_prompt_tokens": 750.0,
        "engine/replica_0/requests": 7.0,
        "engine/steps": 3.0,
        "env/tokens": 2.0,
    }
    assert engine_metrics(grown, elapsed_s=10.0) == {
        "engine/replica_0/in_flight": 3.0,  # 30 / 10
        "engine/replica_0/waiting": 0.5,  # 5 / 10
        "engine/replica_0/tokens_per_s": 40.0,  # 400 / 10
        "engine/replica_0/prompt_cached": 0.75,  # 750 / 1000
        "engine/replica_0/requests": 7.0,
        "engine/steps": 3.0,
        "env/tokens": 2.0,
    }


@pytest.mark.parametrize("pictures", [{}, {"engine/pictures": 0.0, "engine/cached_pictures": 0.0}])
def test_a_share_of_nothing_is_none(pictures: dict[str, float]) -> None:
    assert engine_metrics(pictures, elapsed_s=1.0) == {}


def test_the_policys_tensors_are_exactly_the_checkpoints(tiny_model: Path) -> None:
    shapes = CheckpointWeights(tiny_model).shapes
    given = list(matched(Policy(tiny_model).checkpoint_tensors(), shapes))
    assert {name for name, _ in given} == set(shapes)


@pytest.mark.parametrize("rank", [None, 3])
def test_an_update_has_as_many_numbers_as_the_policy_sends(tiny_model: Path, rank: int | None) -> None:
    lora = None if rank is None else LoraSettings(rank=rank)
    policy = Policy(tiny_model, lora=lora, train_vision=lora is None)
    assert update_numbers(tiny_model, rank) == sum(tensor.numel() for _, tensor in policy.checkpoint_tensors())


def test_a_directory_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no \\*\\.safetensors"):
        update_numbers(tmp_path)


# transformers 5 nests what is the language model's; published checkpoints are flat.
@pytest.mark.parametrize(
    "config", [{"text_config": {"max_position_embeddings": 100}, "model_type": "x"}, {"max_position_embeddings": 100}]
)
def test_a_context_is_as_long_as_the_model_has_positions_and_no_longer(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    check_context(tmp_path, 100)
    with pytest.raises(ConfigError, match=r"max_model_len=101 is more than the 100 tokens .* lower it to 100 or less"):
        check_context(tmp_path, 101)


def test_a_model_that_names_no_limit_has_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    check_context(tmp_path, 10**6)


def test_a_model_that_a_warm_start_has_yet_to_write_is_not_checked(tmp_path: Path) -> None:
    check_context(tmp_path / "policy", 10**6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="vLLM has kernels of it for a GPU")
@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16", "lora_rank": 4}])
def test_vllm_on_a_cpu_refuses_a_model_with_recurrent_layers_before_it_is_imported(
    tiny_qwen35: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match=r"in bfloat16 alone, and without LoRA \(here: .*\): set engine=hf"):
        VllmEngine(tiny_qwen35, **options)
    with on_trial():
        VllmEngine(tiny_qwen35, dtype="bfloat16")


@pytest.mark.parametrize("engine", [HfEngine, VllmEngine])
def test_an_engine_refuses_too_long_a_context_before_it_imports_its_library(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, engine: Any
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)  # to import it is an error
    with pytest.raises(ConfigError, match="max_model_len=65536 is more than the 32768 tokens"), on_trial():
        engine(tiny_model, max_model_len=65536)


@pytest.mark.parametrize("engine", [HfEngine, VllmEngine])
def test_an_engine_refuses_a_model_that_is_not_there(tmp_path: Path, engine: Any) -> None:
    with pytest.raises(ConfigError, match="cannot load a processor"):
        engine(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("engine", "options", "sentence"),
    [
        (HfEngine, {"dtype": "float8"}, "dtype must be 'float32' or 'bfloat16', got 'float8'"),
        (HfEngine, {"max_batch": 0}, "max_batch must be at least 1"),
        (HfEngine, {"max_model_len": 0}, "max_model_len must be at least 1"),
        (VllmEngine, {"dtype": "float8"}, "dtype must be one of .*, got 'float8'"),
        (VllmEngine, {"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        (VllmEngine, {"max_model_len": 0}, "max_model_len must be at least 1"),
        (VllmEngine, {"max_images": 0}, "max_images must be at least 1"),
        (VllmEngine, {"screenshots": 0}, "screenshots must be at least 1"),
        (VllmEngine, {"lora_rank": 1024}, "lora_rank must be null or from 1 to 512, got 1024"),
        (FleetEngine, {"num_gpus": -1}, "num_gpus must be at least 0"),
        (FleetEngine, {"threads": 0}, "threads must be at least 1"),
        (FleetEngine, {"replicas": 0}, "replicas must be at least 1"),
        (FleetEngine, {"nodes": 0}, "nodes must be at least 1"),
        (FleetEngine, {"max_unavailable": 0}, "max_unavailable must be at least 1"),
        (FleetEngine, {"drain_s": -1}, "drain_s must be at least 0"),
        (FleetEngine, {"stall_s": 0}, "stall_s must be above 0"),
        (FleetEngine, {"max_restarts": -1}, "max_restarts must be at least 0"),
        (FleetEngine, {"sync": "atomic"}, "sync must be 'global' or 'rolling', got 'atomic'"),
    ],
)
def test_impossible_arguments_are_refused_by_name(
    tiny_model: Path, engine: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        engine(tiny_model, **options)
