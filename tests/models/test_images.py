from io import BytesIO

import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor

from arpo.models.families.qwen2_5_vl import make_tiny
from arpo.models.images import ImageProcessor
from tests.conftest import TINY_CORPUS
from tests.models.samples import screenshot


@pytest.mark.parametrize("size", [(112, 140), (160, 210), (30, 50), (640, 480), (333, 1000)])
def test_patches_equal_the_checkpoints_own_processor_bit_for_bit(tiny_model, images, size):
    key, png = screenshot(0, *size)
    expected = AutoImageProcessor.from_pretrained(tiny_model)(images=Image.open(BytesIO(png)), return_tensors="pt")
    patches = images(key, png)
    assert torch.equal(patches.pixel_values, expected["pixel_values"])
    assert list(patches.grid) == expected["image_grid_thw"][0].tolist()


@pytest.mark.long
def test_a_full_hd_screen_has_the_patches_of_the_paper(tmp_path):
    directory = make_tiny(tmp_path, corpus=TINY_CORPUS * 4, words=2300, max_pixels=2_116_800)
    patches = ImageProcessor(directory)(*screenshot(0, 1920, 1080))
    # 1092 x 1932 pixels: 78 x 138 patches of 14, 10,764 in all
    assert patches.grid == (1, 78, 138)
    assert patches.pixel_values.shape == (10_764, 1176)


def test_a_screenshot_is_decoded_once_and_a_changed_result_does_not_change_the_cache(images):
    key, png = screenshot(0)
    first = images(key, png).pixel_values.clone()
    images(key, b"never looked at").pixel_values.zero_()
    assert torch.equal(first, images(key, b"never looked at").pixel_values)
    assert images.decoded == 1


def test_the_least_recently_used_screenshot_leaves_first(tiny_model):
    # 10 x 8 patches of 588 bytes are 47,040 bytes; 0.1 MB hold two.
    images = ImageProcessor(tiny_model, cache_mb=0.1)
    shots = [screenshot(seed) for seed in range(3)]
    for index in (0, 1, 0, 2):
        images(*shots[index])
    assert images.decoded == 3
    images(*shots[0])
    assert images.decoded == 3
    images(*shots[1])
    assert images.decoded == 4


def test_what_an_update_wants_stays_however_long_ago_it_was_used(tiny_model):
    images = ImageProcessor(tiny_model, cache_mb=0.1)  # room for two
    shots = [screenshot(seed) for seed in range(4)]
    images(*shots[0])
    images(*shots[1])
    images.prepare(dict([shots[0], shots[2], shots[3]]), 1)  # three of 47,040 bytes, and shots[1] is not wanted
    for index in (2, 3, 0):
        images(*shots[index])
    assert images.decoded == 4


def test_without_a_cache_every_call_decodes(tiny_model):
    images = ImageProcessor(tiny_model, cache_mb=0)
    for _ in range(2):
        images(*screenshot(0))
    assert images.decoded == 2
