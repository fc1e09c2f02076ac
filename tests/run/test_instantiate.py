"""From a configuration to objects, and from a checkpoint to a policy that other programs load."""

from types import SimpleNamespace

import pytest
import torch
from hydra.errors import InstantiationException
from omegaconf import OmegaConf
from torch.testing import assert_close

from arpo.callbacks.checkpoint import AtomicCheckpointIO
from arpo.callbacks.graceful_stop import GracefulStop
from arpo.envs.fake import fake_tasks
from arpo.errors import ConfigError
from arpo.evaluation.scores import evaluate as score
from arpo.models.policy import Policy
from arpo.run.instantiate import (
    build,
    build_trainer,
    check_export,
    evaluate,
    exit_code,
    flatten,
    policy_directory,
    register_resolvers,
    required_model,
    show,
)
from tests.rollout.trajectories import make_trajectory


def test_a_refusal_of_a_constructor_keeps_its_words_and_says_where_it_is():
    node = OmegaConf.create({"a": {"buffer": {"_target_": "arpo.replay.ReplayBuffer", "capacity_per_task": 0}}})
    with pytest.raises(ConfigError, match=r"capacity_per_task must be at least 1, got 0.*key: a\.buffer\)"):
        build(node.a)


def test_a_bug_of_a_constructor_stays_what_it_is():
    node = OmegaConf.create({"_target_": "arpo.replay.ReplayBuffer", "capacity_per_task": "eight"})
    with pytest.raises(InstantiationException):
        build(node)


def test_the_resolver_of_run_names_can_be_registered_again():
    register_resolvers()
    register_resolvers()
    cfg = OmegaConf.create({"overrides": ["seed=1", "resume=auto"], "name": "${run_name:${overrides}}"})
    assert cfg.name == "seed=1"


def test_a_configuration_becomes_a_flat_table():
    tree = {"seed": 1, "module": {"lr": 1e-6, "clip": {"low": 0.2}}, "tasks": ["a", "b"], "resume": None}
    assert flatten(tree) == {
        "seed": 1,
        "module.lr": 1e-6,
        "module.clip.low": 0.2,
        "tasks": '["a", "b"]',
        "resume": "null",
    }


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


def test_a_run_that_a_signal_ended_says_so_to_the_shell():
    stop = GracefulStop()
    trainer = SimpleNamespace(callbacks=[stop])
    assert exit_code(trainer) == 0
    stop.received = 15
    assert exit_code(trainer) == 143


def test_callbacks_that_are_switched_off_are_left_out_and_the_others_keep_their_order(tmp_path):
    cfg = OmegaConf.create(
        {
            "callbacks": {
                "stop": {"_target_": "arpo.callbacks.graceful_stop.GracefulStop"},
                "replay": {"_target_": None, "buffer": {}},
                "nothing": None,
                "timer": {"_target_": "lightning.pytorch.callbacks.Timer"},
            },
            "logger": None,
            "paths": {"run_dir": str(tmp_path)},
            "trainer": {"_target_": "lightning.Trainer", "enable_checkpointing": False, "enable_progress_bar": False},
        }
    )
    trainer = build_trainer(cfg, None)
    names = [type(callback).__name__ for callback in trainer.callbacks]
    assert names[:2] == ["GracefulStop", "Timer"]
    assert "ReplayInjection" not in names
    assert isinstance(trainer.strategy.checkpoint_io, AtomicCheckpointIO)


# --- policies -------------------------------------------------------------------------------------------------------


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


def test_an_export_destroys_nothing(run_folder, tmp_path):
    folder, _ = run_folder
    checkpoint = folder / "checkpoints" / "iteration_000003.ckpt"
    check_export(None, checkpoint)
    check_export(str(tmp_path / "new"), checkpoint)
    with pytest.raises(ConfigError, match="exists and is not empty"):
        check_export(str(folder), checkpoint)
    with pytest.raises(ConfigError, match="exists and is not empty"):
        check_export(str(checkpoint), checkpoint)


def test_a_directory_that_engines_load_is_not_exported_again(tiny_model, tmp_path):
    with pytest.raises(ConfigError, match="copy it instead"):
        check_export(str(tmp_path / "new"), tiny_model)


def test_a_directory_is_taken_as_it_is(tiny_model, tmp_path):
    assert policy_directory(tiny_model, tmp_path / "export") == tiny_model
    assert not (tmp_path / "export").exists()


def test_what_is_neither_a_directory_nor_a_checkpoint_of_a_run_is_refused(tmp_path, run_folder):
    folder, _ = run_folder
    alone = tmp_path / "a" / "b" / "alone.ckpt"
    alone.parent.mkdir(parents=True)
    alone.write_bytes((folder / "checkpoints" / "iteration_000003.ckpt").read_bytes())
    for path in (alone, folder / "checkpoints" / "gone.ckpt", folder):
        with pytest.raises(ConfigError, match=r"neither a Hugging Face directory nor a \.ckpt inside the folder"):
            policy_directory(path, tmp_path / "export")


def test_an_evaluation_wants_to_know_of_what():
    with pytest.raises(ConfigError, match="say what to evaluate: checkpoint="):
        evaluate(OmegaConf.create({"checkpoint": "???"}))


def test_the_table_has_a_row_a_domain_and_pass_at_k(capsys):
    tasks = fake_tasks(2)
    trajectories = [
        make_trajectory(f"eval-0/{number}/{member}", task_id=task.id, domain=task.domain, task_reward=float(member))
        for number, task in enumerate(tasks)
        for member in range(2)
    ]
    show(score(trajectories, tasks, name="held_out"))
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("held_out", "fake-click", "fake-sequence", "50.0 %", "pass@2 100.0 %"))
