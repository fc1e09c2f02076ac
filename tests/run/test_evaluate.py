"""From a checkpoint to a policy that other programs load."""

from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch.testing import assert_close

from arpo.callbacks.checkpoint import AtomicCheckpointIO
from arpo.errors import ConfigError
from arpo.models.policy import Policy
from arpo.run.build import compose
from arpo.run.check import check_evaluation
from arpo.run.evaluate import card_of, policy_directory, recorded
from arpo.run.train import train


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


def test_a_checkpoint_becomes_a_directory_with_the_trained_weights_and_a_card_where_it_is_exported(
    run_folder, tiny_model, tmp_path
):
    folder, trained = run_folder
    checkpoint = folder / "checkpoints" / "iteration_000003.ckpt"
    directory = policy_directory(checkpoint, tmp_path / "export", card=card_of(checkpoint))
    assert directory == tmp_path / "export"
    loaded = dict(Policy(directory).named_parameters())
    for name, parameter in trained.named_parameters():
        assert_close(loaded[name], parameter)
    assert ", iteration 3\n" in (directory / "README.md").read_text()
    assert ", an unknown iteration\n" in card_of(checkpoint.with_name("best.ckpt"))
    assert not (policy_directory(checkpoint, tmp_path / "evaluated") / "README.md").exists()
    assert policy_directory(tiny_model, tmp_path / "other") == tiny_model
    assert not (tmp_path / "other").exists()


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


def check(tiny_model: Path, *overrides: str, config: str = "evaluate", experiment: str = "smoke") -> DictConfig:
    places = [f"checkpoint={tiny_model}", "paths.run_dir=run"]
    cfg = compose(config, [f"experiment={experiment}", "engine=hf", *places, *overrides])
    check_evaluation(cfg)
    return cfg


@pytest.mark.parametrize(
    ("experiment", "lists"),
    [
        ("smoke", ["train", "held_out"]),
        ("arpo_miniwob", ["in_domain", "held_out", "held_out_pages"]),  # a sample of its training tasks
        ("arpo_desktop", ["in_domain", "held_out_instances", "held_out_templates", "held_out_applications"]),
    ],
)
def test_a_policy_is_judged_on_what_its_run_is_judged_on(tiny_model, experiment, lists):
    here = ("requires.docker=false",) if experiment == "arpo_desktop" else ()  # on a machine without an engine, too
    assert list(check(tiny_model, *here, experiment=experiment).lists) == lists
    assert list(check(tiny_model, "lists=[train]", *here, experiment=experiment).lists) == ["train"]


@pytest.mark.parametrize(
    ("config", "override", "sentence"),
    [
        ("evaluate", "engine.max_batch=0", r"engine\.max_batch=0 should be at least 1"),
        ("select", "selection.min_successes=17", "min_successes=17 of rollouts_per_task=16 episodes is impossible"),
    ],
)
def test_an_engine_and_a_selection_that_cannot_work_are_refused_before_anything_starts(
    tiny_model, config, override, sentence
):
    with pytest.raises(ConfigError, match=sentence):
        check(tiny_model, override, config=config)
