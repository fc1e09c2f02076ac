"""What a run asks of its model, without a model."""

import json
import shutil
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from arpo.errors import ConfigError
from arpo.models.families.qwen2_5_vl import make_tiny
from arpo.run.build import compose
from arpo.run.check import check_training
from arpo.run.model import check_context, check_learning, check_sync


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


@pytest.mark.parametrize(("budget", "refused"), [(3072, False), (3073, True)])
def test_a_budget_that_no_batch_of_the_configuration_reaches_is_refused(budget, refused):
    cfg = compose("train", ["experiment=smoke", "method=c3po", f"module.objective.budget={budget}"])
    if not refused:  # 8 tasks, 4 episodes of each, 4 steps, 24 tokens
        check_learning(cfg)
        return
    with pytest.raises(ConfigError, match=r"budget=3073 is above the 3072 sampled tokens of a batch: .* lower module"):
        check_learning(cfg)


@pytest.fixture
def narrow_sight(tiny_model, tmp_path):
    """The tiny model with smaller pictures."""
    folder = shutil.copytree(tiny_model, tmp_path / "narrow")
    for file in folder.glob("*processor_config.json"):
        text = file.read_text()
        file.write_text(text.replace("15680", "12544"))
    return folder


@pytest.fixture
def other_words(tmp_path):
    """A tiny model of a smaller vocabulary."""
    return make_tiny(tmp_path / "words", corpus=["one text"], words=500)


@pytest.mark.parametrize(
    ("fixture", "words"),
    [
        ("narrow_sight", "has another image processor than the policy"),
        ("other_words", "has another vocabulary than the policy"),
        ("tiny_qwen3", "has another family than the policy"),
    ],
)
def test_a_teacher_that_reads_other_ids_or_pictures_than_the_policy_is_refused(request, tiny_model, fixture, words):
    line = ["experiment=smoke", "engine=hf", "method=distillation", f"model.path={tiny_model}"]
    check_learning(compose("train", [*line, f"teacher={tiny_model}"]))
    with pytest.raises(ConfigError, match=words):
        check_learning(compose("train", [*line, f"teacher={request.getfixturevalue(fixture)}"]))
    with pytest.raises(ConfigError, match=r"teacher=/nowhere holds no policy: name a folder with config\.json"):
        check_learning(compose("train", [*line, "teacher=/nowhere"]))
