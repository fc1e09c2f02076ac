"""A run finds all that it saved when it goes on: whole or in shards, all weights or adapters, tied or not."""

from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from transformers import AutoConfig, Qwen2_5_VLForConditionalGeneration

from arpo.callbacks.checkpoint import load_policy
from arpo.models.policy import LoraSettings, Policy
from arpo.types import RolloutBatch
from tests.invariant.ranks import on_ranks, train_saving

SAVED = "iteration_000001.ckpt"
MODELS = ("tied", "untied")
CASES = ("arpo", "lora")
"""All weights are trained, or adapters."""
WAYS = (("one", 1), ("ddp", 2), ("fsdp", 2))
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
    at = tmp_path_factory.mktemp("pairs")
    (at / "tied").symlink_to(tiny_model)
    untie(tiny_model, at / "untied")
    return at


@pytest.fixture
def batches(make_group):
    return [
        RolloutBatch(number, number, [make_group(1.0, 0.0, first=4 * number), make_group(0.0, 1.0, first=5)])
        for number in range(2)
    ]


def names_in(checkpoint: Path) -> set[str]:
    if checkpoint.is_dir():
        entries = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
        return {name.removeprefix("weights.") for name in entries if name.startswith("weights.")}
    return set(torch.load(checkpoint, weights_only=True)["state_dict"])


@pytest.mark.parametrize(("way", "ranks"), WAYS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("model", MODELS)
def test_a_run_goes_on_bit_for_bit_and_one_process_reads_all_that_it_saved(
    models, batches, model, case, way, ranks, forks
):
    forks.call(go_on, batches, models / model, case, way, ranks)
    whole, again = (Path(f"{models / model} {case} {way} {kind}") for kind in ("whole", "again"))
    ended, of_again = (torch.load(f"{folder}.{case}.{way}{ranks}.0")["weights"] for folder in (whole, again))
    policy = Policy(models / model, **(ADAPTERS if case == "lora" else {}))
    load_policy(policy, whole / "iteration_000002.ckpt")
    for weights in (of_again, dict(policy.named_parameters())):
        assert weights.keys() == ended.keys()
        for name, weight in ended.items():
            assert torch.equal(weights[name], weight), name

    names = names_in(whole / SAVED)
    if case == "lora":
        assert len(names) == 2 * 2 * 7  # A and B of seven layers in each of two blocks
        assert all(".lora_" in name for name in names)
    else:  # a shared weight under both of its names
        assert names == {f"policy.{name}" for name in Policy(models / model).state_dict()}
        assert {HEAD, EMBEDDING} < names


def test_only_one_of_the_models_shares_its_output_layer_with_the_embedding(models):
    parts = [Policy(models / model).model for model in MODELS]
    assert [part.lm_head.weight is part.get_input_embeddings().weight for part in parts] == [True, False]
