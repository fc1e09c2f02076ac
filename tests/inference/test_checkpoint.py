import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from arpo.errors import ConfigError
from arpo.host.trial import on_trial
from arpo.inference.checkpoint import check_context, update_numbers
from arpo.inference.hf import HfEngine
from arpo.inference.pump import checked
from arpo.inference.vllm import VllmEngine
from arpo.models.policy import LoraSettings, Policy
from arpo.models.sharding import CheckpointWeights


def test_the_policys_tensors_are_exactly_the_checkpoints(tiny_model: Path) -> None:
    shapes = CheckpointWeights(tiny_model).shapes
    given = list(checked(Policy(tiny_model).checkpoint_tensors(), shapes))
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
    monkeypatch.setitem(sys.modules, "vllm", None)  # whoever imports it gets an ImportError
    with pytest.raises(ConfigError, match="max_model_len=65536 is more than the 32768 tokens"), on_trial():
        engine(tiny_model, max_model_len=65536)


@pytest.mark.parametrize("engine", [HfEngine, VllmEngine])
def test_an_engine_refuses_a_model_that_is_not_there_and_a_format_that_it_does_not_know(
    tiny_model: Path, tmp_path: Path, engine: Any
) -> None:
    with pytest.raises(ConfigError, match="cannot load a processor"):
        engine(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"dtype must be one of .*, got 'float8'"):
        engine(tiny_model, dtype="float8")
