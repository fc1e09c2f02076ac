from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, Qwen2_5_VLForConditionalGeneration

from arpo.models.images import ImageProcessor
from arpo.models.vision.attention import PatchEmbedding, Segments
from arpo.models.vision.patches import normalized_films
from tests.models.samples import assert_same, screenshot


@pytest.mark.parametrize("size", [(112, 140), (333, 1000)])
def test_bytes_become_what_the_checkpoints_own_processor_gives_bit_for_bit(
    tiny_model: Path, images: ImageProcessor, size: tuple[int, int]
) -> None:
    key, png = screenshot(0, *size)
    expected = AutoImageProcessor.from_pretrained(tiny_model)(images=Image.open(BytesIO(png)), return_tensors="pt")
    films = normalized_films(images.packed(key, png).pixels, images.mean, images.std, 2)
    assert torch.equal(films, expected["pixel_values"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_layer_sees_the_same_as_the_original_convolution(
    tiny_model: Path, images: ImageProcessor, dtype: torch.dtype
) -> None:
    plain = Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny_model, dtype=dtype).model.visual.patch_embed
    key, png = screenshot(0)
    expected = plain(images(key, png).pixel_values)
    ours = PatchEmbedding(plain.proj, images.mean, images.std)(images.packed(key, png).pixels)
    assert ours.dtype == dtype
    assert_same(ours, expected)


def test_segments_of_one_length_are_a_run_and_an_order_that_changes_nothing_is_none() -> None:
    plain = Segments.of([4, 4, 2], torch.arange(10))
    assert (plain.runs, plain.order, plain.back) == (((2, 4), (1, 2)), None, None)
    turned = Segments.of([2], torch.tensor([1, 2, 0]))
    assert turned.back is not None
    assert turned.back.tolist() == [2, 0, 1]  # 0 stands last, 1 first, 2 second
