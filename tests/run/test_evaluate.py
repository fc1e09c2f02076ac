"""From a checkpoint to a policy that other programs load."""

from pathlib import Path

import hydra
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch.testing import assert_close

from arpo.callbacks.checkpoint import AtomicCheckpointIO
from arpo.errors import ConfigError
from arpo.models.policy import Policy
from arpo.run.build import register_resolvers
from arpo.run.check import check_evaluation
from arpo.run.evaluate import card_of, policy_directory, recorded
from arpo.run.train import train

CONF = Path(__file__).parent.parent.parent / "conf"


@pytest.fixture
def run_folder(tmp_path, tiny_model):
    """A run's folder with a checkpoint of a policy that was trained away from where it began."""
    policy = Policy(tiny_model)
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(1.25)
    state = {f"policy.{name}": tensor for name, tensor in policy.state_dict().items()}
    AtomicCheckpointIO().save_checkpoint({"state_dict": state}, tmp_path / "checkpoints" / "iteration_000003.ckpt")
    node = {"_target_": "arpo.models.policy.Policy", "_partial_": True, "path": str(tiny_model)}
    OmegaConf.save(OmegaConf.create({"model": {"policy": node}}), tmp_path / "config.yaml")
    return tmp_path, policy


def test_a_checkpoint_becomes_a_directory_with_the_trained_weights(run_folder, tmp_path):
    folder, trained = run_folder
    directory = policy_directory(folder / "checkpoints" / "iteration_000003.ckpt", tmp_path / "export")
    assert directory == tmp_path / "export"
    loaded = dict(Policy(directory).named_parameters())
    for name, parameter in trained.named_parameters():
        assert_close(loaded[name], parameter)


def test_a_finished_run_that_has_lost_its_policy_writes_it_again(run_folder, tmp_path):
    """A run that starts from it would end in an error for ever: the finished one has nothing left to train."""
    folder, trained = run_folder
    paths = {"run_dir": str(folder), "checkpoints": str(folder / "checkpoints")}
    export = {"export": {"directory": str(tmp_path / "policy")}}
    cfg = OmegaConf.create({"paths": paths, "resume": "auto", "iterations": 3, "callbacks": export})
    assert train(cfg) == 0
    assert_close(dict(Policy(tmp_path / "policy").named_parameters()), dict(trained.named_parameters()))
    (tmp_path / "policy" / "mark").touch()
    assert train(cfg) == 0
    assert (tmp_path / "policy" / "mark").exists()  # it was there
    del cfg.callbacks.export
    assert train(cfg) == 0


def test_an_export_has_a_card_and_a_policy_that_is_only_evaluated_has_none(run_folder, tmp_path):
    folder, _ = run_folder
    checkpoint = folder / "checkpoints" / "iteration_000003.ckpt"
    directory = policy_directory(checkpoint, tmp_path / "export", card=card_of(checkpoint))
    assert ", iteration 3\n" in (directory / "README.md").read_text()
    assert not (policy_directory(checkpoint, tmp_path / "other") / "README.md").exists()


def test_a_checkpoint_that_was_renamed_has_a_card_without_an_iteration(run_folder):
    folder, _ = run_folder
    assert ", an unknown iteration\n" in card_of(folder / "checkpoints" / "best.ckpt")


def test_an_evaluation_is_recorded_with_the_directory_where_the_vocabulary_stays(run_folder, tiny_model):
    folder, _ = run_folder
    OmegaConf.save(OmegaConf.create({"model": {"path": "outputs/warm/policy"}}), folder / "config.yaml")
    for checkpoint, path in (
        (folder / "checkpoints" / "iteration_000003.ckpt", "outputs/warm/policy"),
        (tiny_model, str(tiny_model)),
    ):
        cfg = OmegaConf.create({"checkpoint": str(checkpoint), "model": {"path": str(checkpoint)}})
        assert recorded(cfg).model.path == path
        assert cfg.model.path == str(checkpoint)  # what is evaluated stays


def test_a_directory_is_taken_as_it_is(tiny_model, tmp_path):
    assert policy_directory(tiny_model, tmp_path / "export") == tiny_model
    assert not (tmp_path / "export").exists()


def check(tiny_model: Path, *overrides: str, config: str = "evaluate", experiment: str = "smoke") -> DictConfig:
    register_resolvers()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        where = [f"checkpoint={tiny_model}", "paths.run_dir=run"]
        cfg = hydra.compose(config, [f"experiment={experiment}", "engine=hf", *where, *overrides])
    check_evaluation(cfg)
    return cfg


@pytest.mark.parametrize(
    ("experiment", "lists"),
    [
        ("smoke", ["train", "held_out"]),
        ("arpo_miniwob", ["in_domain", "held_out", "held_out_pages"]),  # a sample of its training tasks
        (
            "arpo_desktop",
            ["in_domain", "held_out_instances", "held_out_templates", "held_out_applications"],
        ),
    ],
)
def test_a_policy_is_judged_on_what_its_run_is_judged_on(tiny_model, experiment, lists):
    here = ("requires.docker=false",) if experiment == "arpo_desktop" else ()  # on a machine without an engine, too
    assert list(check(tiny_model, *here, experiment=experiment).lists) == lists
    assert list(check(tiny_model, "lists=[train]", *here, experiment=experiment).lists) == ["train"]


def test_the_engine_of_an_evaluation_is_tried_before_anything_starts(tiny_model):
    with pytest.raises(ConfigError, match=r"engine.max_batch=0 should be at least 1"):
        check(tiny_model, "engine.max_batch=0")


def test_a_selection_that_no_task_can_pass_is_refused_before_anything_starts(tiny_model):
    with pytest.raises(ConfigError, match="min_successes=17 of rollouts_per_task=16 episodes is impossible"):
        check(tiny_model, "selection.min_successes=17", config="select")
