"""Processor files of transformers 4 and 5: the limits that are read, and the sentences that refuse the rest."""

import json
import re
import shutil

import pytest

from arpo.errors import ConfigError
from arpo.inference.hf import HfEngine
from arpo.models.images import ImageProcessor
from arpo.models.tokenization import ChatTokenizer
from tests.models.samples import screenshot

PLAIN = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
}
PIXELS = {"min_pixels": 3136, "max_pixels": 15680}
DEFAULT_MOST = 28 * 28 * 1280


def checkpoint(tiny_model, directory, said, *, nested=False):
    shutil.copytree(tiny_model, directory, dirs_exist_ok=True)
    file = directory / "processor_config.json"
    if nested:
        file.write_text(json.dumps(json.loads(file.read_text()) | {"image_processor": said}))
    else:
        file.unlink()
        (directory / "preprocessor_config.json").write_text(json.dumps(said))
    return directory


@pytest.mark.parametrize("nested", [False, True], ids=["4", "5"])
@pytest.mark.parametrize(
    ("said", "most", "missing"),
    [
        (PIXELS, 15680, {}),
        ({"size": PIXELS}, 15680, PIXELS),
        ({"size": {"shortest_edge": 3136, "longest_edge": 15680}}, 15680, {}),
        ({**PIXELS, "size": PIXELS}, 15680, {}),
        ({**PIXELS, "size": {"shortest_edge": 56, "longest_edge": 99}}, 15680, {}),
        ({}, DEFAULT_MOST, {}),
        ({"size": None}, DEFAULT_MOST, {}),
        ({"min_pixels": None, "max_pixels": None}, DEFAULT_MOST, {}),
        ({"max_pixels": 15680}, 15680, {}),
    ],
    ids=str,
)
def test_limits_are_read_in_every_form(tiny_model, tmp_path, said, most, missing, nested):
    path = checkpoint(tiny_model, tmp_path, PLAIN | said, nested=nested)
    chat = ChatTokenizer(path)
    assert (chat.pictures.sizes.min_pixels, chat.pictures.sizes.max_pixels) == (3136, most)
    assert chat.pictures.missing_limits == missing
    grid = ImageProcessor(path)(*screenshot(0, 640, 480)).grid
    assert grid[1] * grid[2] == 4 * chat.image_tokens(640, 480)


@pytest.mark.parametrize("nested", [False, True], ids=["4", "5"])
@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"size": {"height": 3136, "width": 15680}}, "size must hold shortest_edge or min_pixels .* got None"),
        ({"min_pixels": 3136, "size": {"max_pixels": 15680}}, "size must have one of the following .* keys"),
        ({"size": 448}, "size must hold longest_edge or max_pixels"),
        ({"size": {"longest_edge": 15680}}, r"shortest_edge or min_pixels .* in size=\{'longest_edge': 15680\}"),
        ({"min_pixels": "3136", "max_pixels": "15680"}, "whole number of pixels above 0, got '3136'"),
        ({**PIXELS, "max_pixels": 15680.5}, r"whole number of pixels above 0, got 15680\.5"),
        ({**PIXELS, "max_pixels": True}, "got True"),
        ({"min_pixels": 20000, "max_pixels": 15680}, "max_pixels=15680 must not be below min_pixels=20000"),
        ({"min_pixels": 1, "max_pixels": 700}, "below 784, the pixels of one token"),
        ({**PIXELS, "patch_size": None}, "patch_size must be a whole number above 0, got None"),
        ({**PIXELS, "merge_size": "2"}, "merge_size must be a whole number above 0, got '2'"),
        ({**PIXELS, "image_mean": 0.5}, r"image_mean must be 3 numbers above -1, got 0\.5"),
        ({**PIXELS, "image_std": [0.5, 0.5, 0]}, "image_std must be 3 numbers above 0"),
        ({**PIXELS, "image_mean": [10**400] * 3}, "image_mean must be 3 numbers"),
        ({"size": []}, "cannot be read by transformers .* IndexError"),
        ({**PIXELS, "rescale_factor": None}, "rescale_factor must be 1 numbers above 0, got None"),
        ({**PIXELS, "do_resize": False}, "do_resize must be true, got False"),
        ({**PIXELS, "do_normalize": None}, "do_normalize must be true"),
        ({**PIXELS, "resample": 2}, r"resample must be 3 \(BICUBIC\)"),
        ({**PIXELS, "image_processor_type": "Qwen2_5_VLImageProcessor"}, "image_processor_type Qwen2VLImageProcessor"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_one_sentence_with_file_and_key(tiny_model, tmp_path, said, message, nested):
    path = checkpoint(tiny_model, tmp_path, PLAIN | said, nested=nested)
    file = re.escape(str(path / ("processor_config.json" if nested else "preprocessor_config.json")))
    for make in (ChatTokenizer, ImageProcessor, HfEngine):
        with pytest.raises(ConfigError, match=rf"{file}.*{message}"):
            make(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("preprocessor_config.json", "{", "preprocessor_config.json|cannot load a processor"),
        ("processor_config.json", "null", "cannot be read by transformers"),
        (  # without its video part
            "processor_config.json",
            json.dumps({"image_processor": PLAIN | PIXELS}),
            r"processor_config\.json cannot be read by transformers .* OSError",
        ),
        ("tokenizer_config.json", "[" * 100_000, "cannot be read by transformers .* RecursionError"),
        ("chat_template.jinja", "", "chat template of .* cannot be rendered"),
        ("chat_template.jinja", "{% for", "chat template of .* cannot be rendered"),
        ("preprocessor_config.json", "[]", "preprocessor_config.json cannot be read"),
        (
            "config.json",
            json.dumps({"model_type": "llama"}),
            r"config\.json: model_type must be one of qwen2_5_vl, qwen3_5, qwen3_vl, got 'llama'",
        ),
        ("config.json", json.dumps({"model_type": "qwen2_5_vl", "text_config": "none"}), "config.json"),
    ],
)
def test_files_that_are_none_are_refused_by_name(tiny_model, tmp_path, name, content, message):
    path = checkpoint(tiny_model, tmp_path, PLAIN | PIXELS, nested="image_processor" in content)
    (path / name).write_text(content)
    with pytest.raises(ConfigError, match=message):
        HfEngine(path)
