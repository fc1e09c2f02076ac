"""A run finds all that it saved when it goes on: whole or in shards, all weights or adapters, tied or not."""

from functools import cache
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from transformers import AutoConfig, Qwen2_5_VLForConditionalGeneration

from arpo.callbacks.checkpoint import load_policy
from arpo.models.policy import LoraSettings, Policy
from arpo.types import RolloutBatch
from tests.invariant.ranks import on_ranks, train_saving
from tests.invariant.running import run_alone

SAVED = "iteration_000001.ckpt"
MODELS = ("tied", "untied")
CASES = ("arpo", "lora")
"""All weights are trained, or adapters."""
WAYS = (("one", 1), ("ddp", 2), ("fsdp", 2))
in_pairs = pytest.mark.parametrize(
    ("model", "case", "way", "ranks"), [(model, case, *way) for model in MODELS for case in CASES for way in WAYS]
)
HEAD, EMBEDDING = "policy.model.lm_head.weight", "policy.model.model.language_model.embed_tokens.weight"
ADAPTERS = {"lora": LoraSettings(rank=4, alpha=8.0), "train_vision": False}
pytestmark = [pytest.mark.slow, pytest.mark.long]


def untie(model: Path, directory: Path) -> None:
    """Write the model with an output layer of its own, which is not the embedding."""
    config = AutoConfig.from_pretrained(model)
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = False
    tied = Qwen2_5_VLForConditionalGeneration.from_pretrained(model)
    own = Qwen2_5_VLForConditionalGeneration(config)
    own.load_state_dict(tied.state_dict())
    with torch.no_grad():
        own.lm_head.weight.mul_(0.9)
    own.save_pretrained(directory)
    for path in model.iterdir():
        if not (directory / path.name).exists():
            (directory / path.name).symlink_to(path)


def go_on(batches, model, case, way, ranks) -> None:
    """Train to the end, and once more from the checkpoint in the middle."""
    whole, again = (Path(f"{model} {case} {way} {kind}") for kind in ("whole", "again"))
    for folder, resume in ((whole, None), (again, whole / SAVED)):
        on_ranks(ranks, train_saving, model, batches, folder, way, ranks, case, resume)


@pytest.fixture(scope="module")
def models(tiny_model, tmp_path_factory):
    """The folder of both models."""
    at = tmp_path_factory.mktemp("pairs")
    (at / "tied").symlink_to(tiny_model)
    untie(tiny_model, at / "untied")
    return at


@pytest.fixture(scope="module")
def went(models, make_group):
    """Goes on once a pair, and gives the beginning of the names of what that leaves."""
    batches = [
        RolloutBatch(number, number, [make_group(1.0, 0.0, first=4 * number), make_group(0.0, 1.0, first=5)])
        for number in range(2)
    ]

    @cache
    def of(model, case, way, ranks):
        run_alone(go_on, batches, models / model, case, way, ranks)
        return f"{models / model} {case} {way}"

    return of


def ended(begun, kind, case, way, ranks):
    """The weights on rank 0 at the end."""
    return torch.load(f"{begun} {kind}.{case}.{way}{ranks}.0")["weights"]


def names_in(checkpoint: Path) -> set[str]:
    """The names of the weights that a checkpoint holds."""
    if checkpoint.is_dir():
        entries = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
        return {name.removeprefix("weights.") for name in entries if name.startswith("weights.")}
    return set(torch.load(checkpoint, weights_only=True)["state_dict"])


@in_pairs
def test_a_run_that_goes_on_ends_bit_for_bit_like_one_that_never_stopped(went, model, case, way, ranks):
    begun = went(model, case, way, ranks)
    whole, again = (ended(begun, kind, case, way, ranks) for kind in ("whole", "again"))
    assert whole.keys() == again.keys()
    for name, weight in whole.items():
        assert torch.equal(again[name], weight), name


@in_pairs
def test_a_checkpoint_holds_the_names_that_it_always_had(went, models, model, case, way, ranks):
    """Those of adapters alone; or all, a shared weight under both of its names."""
    names = names_in(Path(f"{went(model, case, way, ranks)} whole") / SAVED)
    if case == "lora":
        assert len(names) == 2 * 2 * 7  # A and B of seven layers in each of two blocks
        assert all(".lora_" in name for name in names)
    else:
        own = Policy(models / model).state_dict()
        assert names == {f"policy.{name}" for name in own}
        assert {HEAD, EMBEDDING} < names


@in_pairs
def test_one_process_reads_the_policy_of_each(went, models, model, case, way, ranks):
    policy = Policy(models / model, **(ADAPTERS if case == "lora" else {}))
    begun = went(model, case, way, ranks)
    load_policy(policy, Path(f"{begun} whole") / "iteration_000002.ckpt")
    weights = ended(begun, "whole", case, way, ranks)
    for name, parameter in policy.named_parameters():
        assert torch.equal(parameter, weights[name]), name


def test_only_one_of_the_models_shares_its_output_layer_with_the_embedding(models):
    parts = [Policy(models / model).model for model in MODELS]
    assert [part.lm_head.weight is part.get_input_embeddings().weight for part in parts] == [True, False]
