"""What a run asks of its model, without a model."""

import json
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from arpo.errors import ConfigError
from arpo.run.build import compose
from arpo.run.check import check_training
from arpo.run.model import check_context, check_sync


@pytest.fixture
def configuration(tmp_path):
    """Return a run with conversations of so many tokens and a model that was made for 100."""
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 100}))

    def make(max_context: int, **datamodule: object) -> DictConfig:
        return OmegaConf.create(
            {
                "model": {"path": str(tmp_path)},
                "rollout": {"settings": {"max_context": max_context}},
                "datamodule": datamodule,
            }
        )

    return make


def test_conversations_are_at_most_as_long_as_the_model_was_made_for(configuration):
    check_context(configuration(100))
    with pytest.raises(ConfigError, match="max_context=101 is above the 100 tokens"):
        check_context(configuration(101))


def test_a_warm_start_makes_its_own_model_and_may_have_longer_ones(configuration):
    check_context(configuration(101, make_model={}))


@pytest.fixture
def no_shared_memory(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("arpo.host.ray.SHARED_MEMORY", Path("/proc"))  # which has room for nothing


def test_a_fleet_whose_weights_would_go_over_the_disk_is_refused_before_the_start(
    no_shared_memory, tiny_model, tmp_path
):
    words = ["experiment=smoke", f"model.path={tiny_model}", "engine=fleet", "engine.num_gpus=0"]
    with pytest.raises(ConfigError, match="every weight sync goes over the disk"):
        check_training(compose("train", [*words, f"paths.run_dir={tmp_path}/run"]))


def test_engines_of_several_gpus_need_room_for_their_files_too(tiny_model, monkeypatch):
    asked = []
    monkeypatch.setattr("arpo.run.model.check_store", lambda weights, copies: asked.append(copies))
    words = ["experiment=smoke", f"model.path={tiny_model}", "engine=fleet", "engine.replicas=4"]
    check_sync(compose("train", words))
    check_sync(compose("train", [*words, "+engine.make_engine.engine_args.tensor_parallel_size=2"]))
    assert asked == [0, 4]


@pytest.mark.parametrize("engine", ["hf", "vllm"])
def test_an_engine_in_the_trainers_process_needs_no_shared_memory(no_shared_memory, tiny_model, engine):
    check_sync(compose("train", ["experiment=smoke", f"model.path={tiny_model}", f"engine={engine}"]))


def test_a_tiny_model_has_room_here(tiny_model):
    check_sync(compose("train", ["experiment=smoke", f"model.path={tiny_model}", "engine=fleet"]))


def test_a_model_that_is_not_there_yet_is_not_measured(no_shared_memory, tmp_path):
    check_sync(compose("train", ["experiment=smoke", f"model.path={tmp_path}", "engine=fleet"]))
