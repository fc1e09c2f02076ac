"""The mean of policies: tensor by tensor what averaging gives, and a sentence where there is none."""

import json
import shutil
import weakref

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2_5_VLForConditionalGeneration

from arpo.__main__ import main
from arpo.apps import merge as merging
from arpo.apps.merge import merge
from arpo.errors import ConfigError
from arpo.models.checkpoint import CheckpointWeights, write_weights
from arpo.models.policy import Policy


@pytest.fixture(scope="module")
def tensors(tiny_model):
    """The weights of two policies that training has moved apart, in bfloat16."""
    generator = torch.Generator().manual_seed(0)
    whole = dict(Policy(tiny_model, dtype="bfloat16").saved_tensors())
    moved = {
        name: (tensor + 0.1 * torch.randn(tensor.shape, generator=generator)).to(tensor.dtype)
        for name, tensor in whole.items()
    }
    return whole, moved


@pytest.fixture
def policies(tiny_model, tensors, tmp_path):
    """The two as exports: the first in one file, the second, which lies in `policy/`, in several and their index."""
    folders = [tmp_path / "first", tmp_path / "seed=1" / "policy"]
    for folder, weights, file_bytes in zip(folders, tensors, (2**30, 300_000), strict=True):
        Policy(tiny_model, dtype="bfloat16").save(folder)
        (folder / "model.safetensors").unlink()
        write_weights(weights.items(), folder, file_bytes)
    return [folders[0], folders[1].parent]


def test_each_weight_is_the_mean_in_float32_in_the_format_of_the_policies(policies, tensors, tmp_path):
    merge([(policies[0], 0.3), (policies[1], 0.7)], tmp_path / "mean")
    assert Qwen2_5_VLForConditionalGeneration.from_pretrained(tmp_path / "mean").dtype == torch.bfloat16
    mean = dict(Policy(tmp_path / "mean", dtype="bfloat16").saved_tensors())
    assert mean.keys() == tensors[0].keys()
    for name, tensor in mean.items():
        one, other = (each[name].double() for each in tensors)
        assert tensor.dtype == torch.bfloat16
        torch.testing.assert_close(tensor, (0.3 * one + 0.7 * other).to(torch.bfloat16), rtol=2**-7, atol=1e-6)


def test_halves_of_one_policy_are_the_policy_bit_for_bit_with_its_files(policies, tensors, tmp_path):
    merge([(policies[0], 0.5), (policies[0], 0.5)], tmp_path / "mean")
    mean = CheckpointWeights(tmp_path / "mean")
    assert all(torch.equal(mean[name], tensor) for name, tensor in tensors[0].items())
    theirs = {path.name for path in policies[0].iterdir()}
    assert {path.name for path in (tmp_path / "mean").iterdir()} == theirs
    for name in theirs - {"model.safetensors"}:
        files = [folder / name for folder in (tmp_path / "mean", policies[0])]
        mine, first = (json.loads(f.read_text()) if name.endswith(".json") else f.read_bytes() for f in files)
        assert mine == first, name


def test_a_policy_and_the_published_model_that_it_began_as_are_alike(policies, tiny_model, tensors, tmp_path):
    """The settings of the one are in the forms of both versions of transformers, those of the other in one."""
    base = shutil.copytree(tiny_model, tmp_path / "base")
    (base / "model.safetensors").unlink()
    save_file(tensors[0], base / "model.safetensors")
    assert (base / "config.json").read_bytes() != (policies[0] / "config.json").read_bytes()
    merge([(base, 0.5), (policies[1], 0.5)], tmp_path / "mean")
    Qwen2_5_VLForConditionalGeneration.from_pretrained(tmp_path / "mean")


def test_files_of_the_size_that_was_asked_for_are_all_that_is_in_memory(policies, tmp_path, monkeypatch):
    alive, most, get = weakref.WeakSet(), [], CheckpointWeights.__getitem__

    def watched(self, name):
        tensor = get(self, name)
        alive.add(tensor)
        most.append(sum(each.nbytes for each in alive))
        return tensor

    monkeypatch.setattr(CheckpointWeights, "__getitem__", watched)
    monkeypatch.setattr(merging, "FILE_BYTES", 200_000)
    merge([(policies[0], 0.5), (policies[1], 0.5)], tmp_path / "mean")
    largest = 640 * 128 * 2  # the embedding
    assert max(most) <= 2 * largest
    assert len(list((tmp_path / "mean").glob("model-*.safetensors"))) > 3


def settings(changes, *inside, names=("config.json",)):
    """The change of settings in the files that are there, inside of a part of each where it has that."""

    def change(folder):
        for file in (folder / name for name in names if (folder / name).exists()):
            content = part = json.loads(file.read_text(encoding="utf-8"))
            for key in inside:
                part = part.get(key, part)
            part.update(changes)
            file.write_text(json.dumps(content), encoding="utf-8")

    return change


IMAGES = ("processor_config.json", "preprocessor_config.json")  # the forms of both versions of transformers
SAMPLING = {"top_p": 0.5, "transformers_version": "4.49.0"}
SMALLER = {"size": {"shortest_edge": 3136, "longest_edge": 50_176}, "min_pixels": 3136, "max_pixels": 50_176}


def other_turns(folder):
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text(encoding="utf-8") + "{{- '<think>' }}", encoding="utf-8")


def weights(change):
    """The change of the weights in the first file, given with the name of one of them."""

    def changed(folder):
        file = min(folder.glob("*.safetensors"))
        tensors = load_file(file)
        change(tensors, next(iter(tensors)))
        save_file(tensors, file, metadata={"format": "pt"})

    return changed


def damaged(folder):
    file = min(folder.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:100])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (settings({"rms_norm_eps": 0.5}, "text_config"), r"differ in config.json: text_config: rms_norm_eps$"),
        (settings({"new": 639}, "model", "vocab", names=("tokenizer.json",)), r"differ in tokenizer.json$"),
        (settings(SMALLER, "image_processor", names=IMAGES), r"differ in images: sizes: max_pixels$"),
        (settings({"image_mean": [0.5] * 3}, "image_processor", names=IMAGES), r"differ in images: mean$"),
        (other_turns, r"differ in chat template$"),
        (settings({"pad_token": "<|im_end|>"}, names=("tokenizer_config.json",)), r"in special tokens: padding$"),
        (settings(SAMPLING, names=("generation_config.json",)), r"differ in generation_config.json: top_p$"),
        (weights(lambda found, name: found.update({name: found[name][:1].clone()})), r"differ in weights: [\w.]+$"),
        (weights(lambda found, name: found.pop(name)), r"differ in weights: [\w.]+$"),
        (weights(lambda found, name: found.update({name: found[name].float()})), r"bfloat16 in .* torch.float32 in"),
        (weights(lambda found, name: found[name].view(-1)[:1].fill_(torch.nan)), r"mean of [\w.]+ is not finite: .*"),
        (damaged, r"a file of .* cannot be read"),
        (shutil.rmtree, r"holds no policy: name a folder"),
    ],
)
def test_policies_of_two_models_are_refused_with_what_differs_and_nothing_is_left(policies, tmp_path, change, message):
    change(policies[1] / "policy")
    with pytest.raises(ConfigError, match=message):
        merge([(policies[0], 0.5), (policies[1], 0.5)], tmp_path / "mean")
    assert not list(tmp_path.glob("mean*"))


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([1.0], "at least two"),
        ([0.5, 0.6], "add up to 1, and these add up to 1.1"),
        ([1.5, -0.5], "must be above 0, got -0.5"),
        ([float("nan"), 1.0], "must be above 0"),
    ],
)
def test_weights_that_make_no_mean_are_refused(tmp_path, shares, message):
    with pytest.raises(ConfigError, match=message):
        merge([(tmp_path, share) for share in shares], tmp_path / "mean")


def test_the_command_writes_it_once(policies, tmp_path, caplog, capsys):
    command = ["merge", f"{policies[0]}=0.25", f"{policies[1]}=0.75", "--to", str(tmp_path / "mean")]
    assert main(command) == 0
    assert (tmp_path / "mean" / "model.safetensors").exists()
    assert main(command) == 2
    assert "exists: name another folder" in caplog.text
    for wrong in (f"{policies[0]}", "=1"):
        with pytest.raises(SystemExit, match="2"):
            main(["merge", wrong, "--to", "somewhere"])
        assert "argument POLICY=WEIGHT" in capsys.readouterr().err
