"""From a configuration to objects."""

import pytest
from hydra.errors import InstantiationException
from omegaconf import DictConfig, ListConfig, OmegaConf

from arpo.errors import ConfigError
from arpo.run.build import build, for_card, register_resolvers, required_model, share_beside
from arpo.types import Task
from tests.composed import composed


def test_a_refusal_keeps_its_words_and_says_the_whole_key_though_the_node_may_not_know_its_place():
    node = {"buffer": {"_target_": "arpo.replay.ReplayBuffer", "capacity_per_task": 0}}
    with pytest.raises(ConfigError, match=r"capacity_per_task must be at least 1, got 0.*key: a\.buffer\)"):
        build(OmegaConf.create({"a": node}).a)
    for inner, place in ((node, "replay"), (node["buffer"], "replay.buffer")):
        with pytest.raises(ConfigError, match=r"\(configuration key: replay\.buffer\)$"):
            build(inner, place)
    with pytest.raises(ConfigError, match=r"NoBuffer.*key: a\.buffer\)"):
        build(OmegaConf.create({"a": {"buffer": {"_target_": "arpo.replay.NoBuffer"}}}).a)


def test_a_bug_of_a_constructor_stays_what_it_is():
    node = OmegaConf.create({"_target_": "arpo.rollout.storage.TrajectoryStore", "root": 8})
    with pytest.raises(InstantiationException):
        build(node)


def test_lightning_refuses_arguments_with_errors_of_any_type():
    # Seven devices are those of trainer=ddp, and a machine without a GPU has no list of them.
    node = {"_target_": "lightning.Trainer", "accelerator": "cpu", "devices": [1, 2, 3, 4, 5, 6, 7]}
    said = r"`devices` selected with `CPUAccelerator`.*\(configuration key: trainer\)$"
    with pytest.raises(ConfigError, match=said):
        build(node, "trainer")
    with pytest.raises(ConfigError, match=r"invalid accelerator name.*\(configuration key: trainer\)$"):
        build(node | {"accelerator": "tpuu"}, "trainer")


@pytest.mark.parametrize(
    ("memory_gib", "choice", "share"),
    [
        (16.0, "a", 0.37),  # of less than it is made for, where the plan has the last word: 1 - 10 / 16 = 0.375
        (22.2, "a", 0.54),  # of the 24 GB of an A10
        (23.5, "a", 0.57),
        (31.8, "a", 0.68),
        (39.4, "b", 0.49),  # 1 - 20 / 39.4 = 0.492
        (47.5, "b", 0.57),
        (79.2, "c", 0.62),
        (139.8, "c", 0.78),
        (None, "c", 0.62),  # 1 - 30 / 80, where no GPU is
    ],
)
def test_a_card_has_the_numbers_of_the_largest_one_that_is_no_larger(memory_gib, choice, share, monkeypatch):
    monkeypatch.setattr("arpo.run.build.smallest_gpu_gib", lambda: None)
    assert for_card(memory_gib, ["a", "b", "c"]) == choice
    assert share_beside(memory_gib, [10.0, 20.0, 30.0]) == share
    monkeypatch.setattr("arpo.run.build.smallest_gpu_gib", lambda: 23.5)
    assert for_card(None, ["a", "b", "c"]) == "a"  # of the GPU here
    assert share_beside(8.0, [10.0, 20.0, 30.0]) == 0.01  # nothing is left, and a plan says so


def test_the_resolver_of_run_names_can_be_registered_again():
    register_resolvers()
    register_resolvers()
    cfg = OmegaConf.create({"overrides": ["seed=1", "resume=auto"], "name": "${run_name:${overrides}}"})
    assert cfg.name == "seed=1"


@pytest.mark.parametrize(
    ("cfg", "path"),
    [
        ({"datamodule": {}, "warmstart": None, "model": {"path": "here"}}, "here"),
        ({"datamodule": {}, "warmstart": None, "model": {"path": "???"}}, ""),
        ({"datamodule": {}, "warmstart": "warmstart_fake", "model": {"path": "here"}}, None),
        ({"datamodule": {"make_model": {}}, "warmstart": None, "model": {"path": "???"}}, None),
    ],
    ids=["named", "nobody said", "warm start", "made by the run"],
)
def test_a_checkpoint_is_required_unless_the_run_makes_it(cfg, path):
    assert required_model(OmegaConf.create(cfg)) == path


@pytest.mark.parametrize("experiment", ["arpo_desktop32", "arpo_miniwob"])
def test_what_is_built_holds_no_configuration(experiment):
    """Hydra wraps dataclasses in a mapping without a target, such as the task lists of the evaluation, as its own."""
    tasks = build(composed(f"experiment={experiment}").callbacks.evaluation).tasks["in_domain"]
    assert {type(task) for task in tasks} == {Task}
    assert {type(task.config) for task in tasks} == {dict}
    assert not any(isinstance(value, DictConfig | ListConfig) for task in tasks for value in task.config.values())
