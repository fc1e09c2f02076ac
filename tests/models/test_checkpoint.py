"""Files of a checkpoint: weights, and settings in the forms of transformers 4 and 5.

Only version 5 is installed here, so what 4 reads is checked by its keys.
"""

import json
import shutil
import weakref
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoProcessor, Qwen2_5_VLForConditionalGeneration

from arpo.errors import ConfigError
from arpo.models.checkpoint import CheckpointWeights, complete_companions, write_config, write_weights
from arpo.models.policy import LoraSettings, Policy
from arpo.models.tokenization import ChatTokenizer

SECTIONS = [4, 6, 6]


def test_weights_have_their_published_names_and_those_of_the_model(tiny_model):
    weights = CheckpointWeights(tiny_model)
    whole = dict(Policy(tiny_model).checkpoint_tensors())
    assert all(torch.equal(weights[name], tensor) for name, tensor in whole.items())
    assert weights.shapes == {name: tuple(tensor.shape) for name, tensor in whole.items()}
    assert torch.equal(weights["model.language_model.norm.weight"], whole["model.norm.weight"])


def test_weights_that_are_not_there_are_refused_by_name(tiny_model, tmp_path):
    with pytest.raises(ConfigError, match=r"has no weight lm_head\.bias"):
        CheckpointWeights(tiny_model)["lm_head.bias"]
    with pytest.raises(ConfigError, match=r"no \*\.safetensors"):
        CheckpointWeights(tmp_path)


def test_what_fits_is_one_file_without_an_index_and_a_tensor_larger_than_a_file_has_one_of_its_own(tmp_path):
    write_weights([("a", torch.ones(3)), ("b", torch.zeros(2, 2))], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert load_file(tmp_path / "model.safetensors")["b"].shape == (2, 2)
    write_weights([("a", torch.ones(2)), ("b", torch.ones(100)), ("c", torch.ones(2))], tmp_path, file_bytes=16)
    assert [len(load_file(path)) for path in sorted(tmp_path.glob("model-*.safetensors"))] == [1, 1, 1]


def test_what_does_not_fit_is_several_files_and_an_index_that_transformers_reads(tiny_model, tmp_path):
    policy = Policy(tiny_model)
    policy.model.config.save_pretrained(tmp_path)
    # 725,440 parameters of 4 bytes, and an embedding of 640 x 128 x 4 = 327,680 bytes as the largest tensor
    write_weights(policy.checkpoint_tensors(), tmp_path, file_bytes=1_000_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert files == [f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)]
    assert len(files) >= 3
    assert set(index["weight_map"].values()) == set(files)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for _, tensor in policy.checkpoint_tensors())
    assert all((tmp_path / name).stat().st_size < 1_100_000 for name in files)
    loaded = Qwen2_5_VLForConditionalGeneration.from_pretrained(tmp_path)
    assert all(map(torch.equal, loaded.parameters(), policy.model.parameters()))


def test_tensors_are_let_go_file_by_file(tmp_path):
    alive = weakref.WeakSet()
    most = []

    def tensors():
        for number in range(40):
            tensor = torch.ones(1000)  # 4,000 bytes
            alive.add(tensor)
            most.append(len(alive))
            yield str(number), tensor
            del tensor

    write_weights(tensors(), tmp_path, file_bytes=20_000)  # five tensors a file
    assert max(most) <= 6  # those of a file, and the one that did not fit


# --- settings beside the weights ---


@pytest.fixture
def published(tiny_model, tmp_path):
    """The tiny model with the files of transformers 4.49, as Qwen2.5-VL was published."""
    directory = shutil.copytree(tiny_model, tmp_path / "published")
    config = read(directory, "config")
    text = config.pop("text_config")
    rotations = text.pop("rope_parameters")
    sections = {"type": "mrope", "mrope_section": rotations["mrope_section"]}
    config |= {key: value for key, value in text.items() if key not in ("model_type", "layer_types", "dtype")}
    config |= {"rope_theta": rotations["rope_theta"], "rope_scaling": sections, "torch_dtype": config.pop("dtype")}
    (directory / "config.json").write_text(json.dumps(config))
    images = read(directory, "processor_config")["image_processor"]
    images["size"] = {"min_pixels": images["size"]["shortest_edge"], "max_pixels": images["size"]["longest_edge"]}
    (directory / "preprocessor_config.json").write_text(json.dumps(images))
    (directory / "processor_config.json").unlink()
    return directory


def read(directory, name) -> dict[str, Any]:
    return json.loads((directory / f"{name}.json").read_text())


def exported(path, directory, **options):
    Policy(path, **options).save(directory)
    return directory


def test_a_flat_base_stays_flat_and_keeps_what_it_says(published, tmp_path):
    base, made = read(published, "config"), read(exported(published, tmp_path / "made"), "config")
    assert "text_config" not in made
    rotations = {"rope_type": "default", "mrope_section": SECTIONS}
    assert made["rope_scaling"] == {"type": "mrope"} | rotations
    assert made["rope_parameters"] == {"rope_theta": base["rope_theta"]} | rotations
    changed = {key for key in made if made[key] != base.get(key)}
    assert changed == {"dtype", "rope_scaling", "rope_parameters"}


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)], ids=["all weights", "LoRA"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_number_format_is_that_of_the_weights_by_both_names(tiny_model, tmp_path, dtype, lora):
    made = exported(tiny_model, tmp_path / "made", dtype=dtype, lora=lora, train_vision=lora is None)
    config = read(made, "config")
    assert config["dtype"] == config["torch_dtype"] == dtype
    assert AutoConfig.from_pretrained(made).dtype == getattr(torch, dtype)


@pytest.mark.parametrize("form", ["4", "5"])
def test_an_export_is_the_same_model_to_transformers_and_to_us(tiny_model, published, tmp_path, form):
    base = published if form == "4" else tiny_model
    made = exported(base, tmp_path / "made")
    ids = torch.arange(20, 60)[None]
    models = [Qwen2_5_VLForConditionalGeneration.from_pretrained(path).eval() for path in (tiny_model, base, made)]
    with torch.no_grad():
        first, *others = [model(input_ids=ids).logits for model in models]
    assert all(torch.equal(first, other) for other in others)
    chat = ChatTokenizer(made)
    assert chat.pictures.missing_limits == {}
    assert chat.model_size(1920, 1080) == ChatTokenizer(base).model_size(1920, 1080)
    again = exported(made, tmp_path / "again")
    for name in ("config", "preprocessor_config", "tokenizer_config"):
        assert read(again, name) == read(made, name)


def test_version_4_finds_the_rotations_processors_and_special_tokens_of_version_5(tiny_model, tmp_path):
    nested, made = read(tiny_model, "processor_config"), exported(tiny_model, tmp_path / "made")
    text = read(made, "config")["text_config"]
    theta = read(tiny_model, "config")["text_config"]["rope_parameters"]["rope_theta"]
    assert text["rope_theta"] == text["rope_parameters"]["rope_theta"] == theta
    assert text["rope_scaling"]["mrope_section"] == text["rope_parameters"]["mrope_section"] == SECTIONS
    assert text["rope_scaling"]["rope_type"] == text["rope_scaling"]["type"] == "default"
    images = read(made, "preprocessor_config")
    assert images["size"] == nested["image_processor"]["size"]
    assert (images["min_pixels"], images["max_pixels"]) == (3136, 15680)
    assert images["processor_class"] == "Qwen2_5_VLProcessor"
    assert read(made, "video_preprocessor_config")["size"] == nested["video_processor"]["size"]
    tokenizer, before = read(made, "tokenizer_config"), read(tiny_model, "tokenizer_config")
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert tokenizer["additional_special_tokens"] == before["extra_special_tokens"]
    assert "extra_special_tokens" not in tokenizer
    loaded, base = (AutoProcessor.from_pretrained(path).tokenizer for path in (made, tiny_model))
    assert loaded.all_special_ids == base.all_special_ids
    assert loaded.get_added_vocab() == base.get_added_vocab()


@pytest.mark.parametrize(
    "text",
    [{"rope_theta": 10000.0}, {"rope_scaling": None, "rope_theta": 10000.0}, {"rope_parameters": None}],
    ids=str,
)
def test_settings_without_sections_are_left_alone(tmp_path, text):
    write_config({"text_config": text}, "float32", tmp_path)
    assert read(tmp_path, "config")["text_config"] == text


def test_what_version_4_names_by_keys_is_left_alone(tmp_path):
    said = {"tokenizer_class": "Qwen2Tokenizer", "extra_special_tokens": {"image_token": "<|image_pad|>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    complete_companions(tmp_path)
    assert read(tmp_path, "tokenizer_config") == said
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer_config.json"]


def test_a_base_of_rotations_that_is_null_for_version_4_is_taken_from_version_5(tmp_path):
    rotations = {"rope_type": "default", "rope_theta": 5e5, "mrope_section": SECTIONS}
    text = {"rope_theta": None, "rope_scaling": None, "rope_parameters": rotations}
    write_config({"text_config": text}, "float32", tmp_path)
    made = read(tmp_path, "config")["text_config"]
    assert (made["rope_theta"], made["rope_parameters"]) == (5e5, rotations)
    assert made["rope_scaling"]["mrope_section"] == SECTIONS


@pytest.mark.parametrize("content", [b"", b"{", b"5", b"null", b"\xff", b"[" * 100_000], ids=len)
def test_a_damaged_file_that_version_5_does_not_read_is_written_anew(tiny_model, tmp_path, content):
    base = shutil.copytree(tiny_model, tmp_path / "base")
    (base / "preprocessor_config.json").write_bytes(content)
    images = read(exported(base, tmp_path / "made"), "preprocessor_config")
    assert images["size"] == read(tiny_model, "processor_config")["image_processor"]["size"]
