"""What a run saves is what it asks for when it goes on: whole or in shards, all weights or adapters, tied or not."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from transformers import AutoConfig, Qwen2_5_VLForConditionalGeneration

from arpo.callbacks.checkpoint import load_policy
from arpo.models.policy import LoraSettings, Policy
from arpo.types import RolloutBatch
from tests.invariant.pairs import CASES, SAVED, WAYS

ROOT = Path(__file__).parents[2]
MODELS = ("tied", "untied")
HEAD, EMBEDDING = "policy.model.lm_head.weight", "policy.model.model.language_model.embed_tokens.weight"
ADAPTERS = {"lora": LoraSettings(rank=4, alpha=8.0), "train_vision": False}
pytestmark = pytest.mark.slow


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


@pytest.fixture(scope="module")
def directory(make_group, tiny_model, tmp_path_factory):
    """What `tests.invariant.pairs` leaves."""
    at = tmp_path_factory.mktemp("pairs")
    (at / "tied").symlink_to(tiny_model)
    untie(tiny_model, at / "untied")
    batches = [
        RolloutBatch(number, number, [make_group(1.0, 0.0, first=4 * number), make_group(0.0, 1.0, first=5)])
        for number in range(2)
    ]
    (at / "batches").write_bytes(pickle.dumps(batches))
    command = [sys.executable, "-m", "tests.invariant.pairs", str(at / "batches"), str(at)]
    command += [str(at / model) for model in MODELS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return at


def names_in(checkpoint: Path) -> set[str]:
    """The names of the weights that a checkpoint holds."""
    if checkpoint.is_dir():
        entries = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
        return {name.removeprefix("weights.") for name in entries if name.startswith("weights.")}
    return set(torch.load(checkpoint, weights_only=True)["state_dict"])


@pytest.mark.parametrize(("way", "ranks"), WAYS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("model", MODELS)
def test_a_run_that_goes_on_ends_bit_for_bit_like_one_that_never_stopped(directory, model, case, way, ranks):
    paths = [directory / f"{model} {way} {kind}.{case}.{way}{ranks}.0" for kind in ("whole", "again")]
    whole, again = (torch.load(path, weights_only=True)["weights"] for path in paths)
    assert whole.keys() == again.keys()
    for name, weight in whole.items():
        assert torch.equal(again[name], weight), name


@pytest.mark.parametrize(("way", "ranks"), WAYS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("model", MODELS)
def test_a_checkpoint_holds_the_names_that_it_always_had(directory, model, case, way, ranks):
    """Those of adapters alone; or all, a shared weight under both of its names."""
    names = names_in(directory / f"{model} {way} whole" / case / SAVED)
    if case == "lora":
        assert len(names) == 2 * 2 * 7  # A and B of seven layers in each of two blocks
        assert all(".lora_" in name for name in names)
    else:
        own = Policy(directory / model).state_dict()
        assert names == {f"policy.{name}" for name in own}
        assert {HEAD, EMBEDDING} < names


@pytest.mark.parametrize(("way", "ranks"), WAYS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("model", MODELS)
def test_one_process_reads_the_policy_of_each(directory, model, case, way, ranks):
    policy = Policy(directory / model, **(ADAPTERS if case == "lora" else {}))
    load_policy(policy, directory / f"{model} {way} whole" / case / "iteration_000002.ckpt")
    ended = torch.load(directory / f"{model} {way} whole.{case}.{way}{ranks}.0", weights_only=True)["weights"]
    for name, parameter in policy.named_parameters():
        assert torch.equal(parameter, ended[name]), name


def test_only_one_of_the_models_shares_its_output_layer_with_the_embedding(directory):
    parts = [Policy(directory / model).model for model in MODELS]
    assert [part.lm_head.weight is part.get_input_embeddings().weight for part in parts] == [True, False]
