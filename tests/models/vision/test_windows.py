import numpy as np
import pytest
import torch
from transformers import Qwen2_5_VLConfig
from transformers.vision_utils import (
    get_vision_attention_seqlens,
    get_vision_position_ids,
    get_vision_window_index,
)

from arpo.models.vision.windows import Grid, Segments, cumulative_layout, vision_layout

SCREEN = (1, 78, 138)
"""A 1080p screenshot."""


@pytest.mark.parametrize(
    "grids", [((1, 10, 8),), ((1, 8, 8),), (SCREEN, (1, 10, 8)), ((1, 4, 30), (1, 4, 30), (1, 18, 6)), ((3, 10, 12),)]
)
def test_layouts_are_those_of_transformers(grids: tuple[Grid, ...]) -> None:
    sizes = torch.tensor(grids)
    ours = cumulative_layout(grids, 2, 4)
    index, windows = get_vision_window_index(sizes, spatial_merge_size=2, window_size=112, patch_size=14)
    pictures, _ = get_vision_attention_seqlens(sizes, Qwen2_5_VLConfig().vision_config)
    assert np.array_equal(ours["position_ids"], get_vision_position_ids(sizes, 2))
    assert np.array_equal(ours["window_index"], index)
    assert np.array_equal(ours["cu_window_seqlens"], windows)
    assert np.array_equal(ours["cu_seqlens"], pictures)
    assert ours["max_window_seqlen"] == windows.diff().max()
    assert ours["max_seqlen"] == pictures.diff().max()
    # Without windows, the order is transformers' too.
    assert np.array_equal(vision_layout(grids, 2, 4, windowed=False).window_index, index)


def test_screenshots_have_windows_of_four_sizes_however_many_they_are() -> None:
    # 39 x 69 visual tokens in windows of 4 x 4: 9 x 17 whole ones, 17 below of 3 x 4, 9 beside of 4 x 1, one of 3 x 1;
    # 4 patches a token.
    assert vision_layout((SCREEN,), 2, 4).windows.runs == ((153, 64), (17, 48), (9, 16), (1, 12))
    layout = vision_layout((SCREEN,) * 15, 2, 4)
    assert layout.windows.runs == ((15 * 153, 64), (15 * 17, 48), (15 * 9, 16), (15, 12))
    assert layout.pictures.runs == ((15, 78 * 138),)


def test_the_order_of_the_pictures_brings_the_patches_of_each_together() -> None:
    grids = ((1, 10, 8), (1, 20, 30), (1, 10, 8))
    layout = vision_layout(grids, 2, 4)
    picture_of_token = np.repeat([0, 1, 2], [20, 150, 20])
    seen = np.repeat(picture_of_token[layout.window_index], 4)
    assert layout.pictures.order is not None
    # The largest first: 600 patches, then twice 80.
    assert layout.pictures.runs == ((1, 600), (2, 80))
    assert seen[layout.pictures.order].tolist() == [1] * 600 + [0] * 80 + [2] * 80


def test_an_order_that_changes_nothing_is_none() -> None:
    assert Segments.of([4, 4, 2], np.arange(10)) == Segments(((2, 4), (1, 2)), None)
    assert vision_layout(((1, 10, 8), (1, 10, 8)), 2, 4, windowed=False).pictures.order is None
