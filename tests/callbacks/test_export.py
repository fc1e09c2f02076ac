from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

from arpo.callbacks.export import ExportPolicy, export_policy
from arpo.models.collate import collate
from arpo.models.policy import Policy
from arpo.models.tokenization import tokenize
from tests.callbacks.support import IdleModule
from tests.models import samples


@pytest.fixture
def trained(tiny_model):
    """A policy that is no longer what is on disk."""
    policy = Policy(tiny_model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return policy


def logprobs(policy):
    trajectory = samples.trajectory(policy.chat, (1, 2))
    batch = collate(tokenize(trajectory, policy.chat), trajectory.screenshots, policy.images)
    with torch.no_grad():
        return policy.action_logprobs(batch).logprobs


def run(policy, directory, rank=0, iteration=3):
    module = IdleModule()
    module.policy = policy
    trainer = SimpleNamespace(is_global_zero=rank == 0, current_epoch=iteration - 1, max_epochs=3)
    ExportPolicy(directory).on_train_epoch_end(trainer, module)


def test_what_was_trained_is_what_is_loaded_also_by_transformers_alone(trained, tmp_path, tiny_model):
    run(trained, tmp_path / "policy")
    assert_close(logprobs(Policy(tmp_path / "policy")), logprobs(trained))
    assert not torch.allclose(logprobs(Policy(tiny_model)), logprobs(trained))
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(tmp_path / "policy")
    processor = AutoProcessor.from_pretrained(tmp_path / "policy")
    assert torch.equal(model.model.language_model.norm.weight, trained.model.model.language_model.norm.weight)
    assert processor.tokenizer.eos_token == "<|im_end|>"


def test_an_older_export_is_replaced_and_nothing_else_is_left(trained, tmp_path):
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "old").write_text("old")
    (tmp_path / "policy.partial").mkdir()
    (tmp_path / "policy.partial" / "torn").write_text("torn")
    export_policy(trained, tmp_path / "policy")
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    names = {path.name for path in (tmp_path / "policy").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert names.isdisjoint({"old", "torn"})


def test_only_rank_0_writes(trained, tmp_path):
    run(trained, tmp_path / "policy", rank=1)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_stopped_early_leaves_no_policy_that_others_would_start_from(trained, tmp_path):
    run(trained, tmp_path / "policy", iteration=2)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_export_leaves_the_one_before(trained, tmp_path):
    export_policy(trained, tmp_path / "policy")
    before = (tmp_path / "policy" / "config.json").stat().st_ino
    trained.path = tmp_path / "gone"  # where the tokenizer is copied from

    with pytest.raises(Exception, match="gone"):
        export_policy(trained, tmp_path / "policy")
    assert (tmp_path / "policy" / "config.json").stat().st_ino == before
    assert_close(logprobs(Policy(tmp_path / "policy")), logprobs(trained))
