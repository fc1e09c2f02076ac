"""What engines refuse before they start, what they read of a checkpoint, and the metrics of their counters."""

import json
import sys

import pytest
import torch

from arpo.errors import ConfigError
from arpo.host.trial import on_trial
from arpo.inference.engine import check_context
from arpo.inference.fleet import FleetEngine
from arpo.inference.hf import HfEngine
from arpo.inference.pump import matched
from arpo.inference.vllm import VllmEngine
from arpo.models.checkpoint import CheckpointWeights, update_numbers
from arpo.models.policy import LoraSettings, Policy
from arpo.rollout.stream import engine_metrics


def test_sums_become_rates_and_shares():
    grown = {
        "engine/replica_0/in_flight_s": 30.0,
        "engine/replica_0/waiting_s": 5.0,
        "engine/replica_0/tokens": 400.0,
        "engine/replica_0/prompt_tokens": 1000.0,
        "engine/replica_0/cached_prompt_tokens": 750.0,
        "engine/replica_0/requests": 7.0,
        "engine/steps": 3.0,
        "env/tokens": 2.0,
        "engine/pictures": 0.0,  # a share of nothing is none
        "engine/cached_pictures": 0.0,
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


@pytest.mark.parametrize("rank", [None, 3])
def test_the_policy_sends_exactly_the_checkpoint_s_tensors_or_an_adapter_of_the_predicted_size(tiny_model, rank):
    lora = None if rank is None else LoraSettings(rank=rank)
    shapes = CheckpointWeights(tiny_model).shapes
    sent = list(matched(Policy(tiny_model, lora=lora, train_vision=lora is None).checkpoint_tensors(), shapes))
    assert update_numbers(tiny_model, rank) == sum(tensor.numel() for _, tensor in sent)
    assert rank is not None or {name for name, _ in sent} == set(shapes)


# transformers 5 nests what is the language model's; published checkpoints are flat.
@pytest.mark.parametrize(
    "config", [{"text_config": {"max_position_embeddings": 100}, "model_type": "x"}, {"max_position_embeddings": 100}]
)
def test_a_context_is_as_long_as_the_model_has_positions_and_no_longer(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    check_context(tmp_path, 100)
    with pytest.raises(ConfigError, match=r"max_model_len=101 is more than the 100 tokens .* lower it to 100 or less"):
        check_context(tmp_path, 101)


def test_a_model_that_names_no_limit_or_that_a_warm_start_has_yet_to_write_has_none(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    check_context(tmp_path, 10**6)
    check_context(tmp_path / "policy", 10**6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="vLLM has kernels of it for a GPU")
@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16", "lora_rank": 4}])
def test_vllm_on_a_cpu_refuses_a_model_with_recurrent_layers_before_it_is_imported(tiny_qwen35, monkeypatch, options):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match=r"in bfloat16 alone, and without LoRA \(here: .*\): set engine=hf"):
        VllmEngine(tiny_qwen35, **options)
    with on_trial():
        VllmEngine(tiny_qwen35, dtype="bfloat16")


@pytest.mark.parametrize("engine", [HfEngine, VllmEngine])
def test_an_engine_refuses_too_long_a_context_or_no_model_before_it_imports_its_library(
    tiny_model, tmp_path, monkeypatch, engine
):
    monkeypatch.setitem(sys.modules, "vllm", None)  # to import it is an error
    with pytest.raises(ConfigError, match="max_model_len=65536 is more than the 32768 tokens"), on_trial():
        engine(tiny_model, max_model_len=65536)
    with pytest.raises(ConfigError, match="cannot load a processor"):
        engine(tmp_path / "nowhere")


BOUNDS = {
    HfEngine: [
        ("dtype", "float8", "'float32' or 'bfloat16', got 'float8'"),
        *(("max_batch", 0, "at least 1"), ("max_model_len", 0, "at least 1")),
    ],
    VllmEngine: [
        *(("dtype", "float8", "one of .*, got 'float8'"), ("lora_rank", 1024, "null or from 1 to 512, got 1024")),
        *((name, 0, "at least 1") for name in ("max_num_seqs", "max_model_len", "max_images", "screenshots")),
    ],
    FleetEngine: [
        *((name, 0, "at least 1") for name in ("threads", "replicas", "nodes", "max_unavailable")),
        *((name, -1, "at least 0") for name in ("num_gpus", "drain_s", "max_restarts")),
        *(("stall_s", 0, "above 0"), ("sync", "atomic", "'global' or 'rolling', got 'atomic'")),
    ],
}


@pytest.mark.parametrize(
    ("engine", "name", "wrong", "bound"), [(engine, *row) for engine, rows in BOUNDS.items() for row in rows]
)
def test_an_argument_out_of_bounds_is_refused(tiny_model, engine, name, wrong, bound):
    with pytest.raises(ConfigError, match=f"{name} must be {bound}"):
        engine(tiny_model, **{name: wrong})
