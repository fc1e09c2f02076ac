import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from arpo.models.vision.tower import PatchEmbedding, Segments
from tests.models.samples import assert_same, screenshot


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_layer_sees_the_same_as_the_original_convolution(tiny_model, images, dtype):
    plain = Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny_model, dtype=dtype).model.visual.patch_embed
    key, png = screenshot(0)
    expected = plain(images(key, png).pixel_values)
    ours = PatchEmbedding(plain.proj, images.mean, images.std)(images.packed(key, png).pixels)
    assert ours.dtype == dtype
    assert_same(ours, expected)


def test_segments_of_one_length_are_a_run_and_an_order_that_changes_nothing_is_none():
    plain = Segments.of([4, 4, 2], torch.arange(10))
    assert (plain.runs, plain.order, plain.back) == (((2, 4), (1, 2)), None, None)
    turned = Segments.of([2], torch.tensor([1, 2, 0]))
    assert turned.back.tolist() == [2, 0, 1]  # 0 stands last, 1 first, 2 second
