"""Qwen2.5-VL: its tiny model, its names, its places and its windows."""

import pytest
import torch
from safetensors.torch import load_file
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoProcessor, AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from arpo.agent.actions import Click
from arpo.models.families.qwen2_5_vl import FAMILY, cumulative_layout, make_tiny, segment_layout
from arpo.models.images import ImageProcessor
from arpo.models.tiny import SPECIAL_TOKENS
from tests.conftest import TINY_CORPUS
from tests.models.families.test_families import PICTURES
from tests.models.samples import assert_same, screenshot


def test_module_names_and_checkpoint_names_are_the_same_tensor():
    name = FAMILY.checkpoint_name
    assert name("model.language_model.norm.weight") == "model.norm.weight"
    assert name("model.visual.merger.weight") == "visual.merger.weight"
    assert name("lm_head.weight") == "lm_head.weight"


def test_a_picture_stands_still_in_time_and_text_goes_on_behind_its_longer_side():
    # Two words, a picture of 2 x 3 tokens, a word: it begins at 2, and 2 + 3 = 5 comes next.
    mask = torch.tensor([False, False, True, True, True, True, True, True, False])
    assert FAMILY.position_ids(mask, [(1, 4, 6)], 2).tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5],
        [0, 1, 2, 2, 2, 3, 3, 3, 5],
        [0, 1, 2, 3, 4, 2, 3, 4, 5],
    ]


def test_a_point_is_one_of_the_resized_picture():
    # 966 of 1,932 pixels is the middle of 1,920
    assert FAMILY.frame((1920, 1080), (1932, 1092)).to_screen(Click(966, 546)) == Click(960, 540)


def test_the_directory_loads_like_a_real_checkpoint_whose_vision_layers_see_whole_screenshots(tiny_model):
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny_model)
    processor = AutoProcessor.from_pretrained(tiny_model)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    assert 0.6e6 < model.num_parameters() < 0.8e6
    assert tokenizer.convert_ids_to_tokens(range(14)) == list(SPECIAL_TOKENS)
    assert model.config.image_token_id == processor.image_token_id == tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.config.text_config.vocab_size % 64 == 0
    assert len(tokenizer) <= model.config.text_config.vocab_size
    config = model.config.vision_config
    assert list(config.fullatt_block_indexes) == list(range(config.depth))


def test_the_seed_alone_decides_the_weights(tiny_model, tmp_path):
    torch.manual_seed(123)
    before = torch.get_rng_state()
    same = make_tiny(tmp_path / "same", corpus=TINY_CORPUS * 4, words=600)
    other = make_tiny(tmp_path / "other", corpus=TINY_CORPUS * 4, words=600, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    weights = load_file(tiny_model / "model.safetensors")
    torch.testing.assert_close(load_file(same / "model.safetensors"), weights, rtol=0, atol=0)
    assert (tiny_model / "tokenizer.json").read_bytes() == (same / "tokenizer.json").read_bytes()
    embedding = "model.embed_tokens.weight"
    assert not torch.equal(load_file(other / "model.safetensors")[embedding], weights[embedding])


def test_the_rotations_of_places_and_the_longest_conversation_are_parameters(tmp_path):
    numbers = {"hidden": 64, "layers": 1, "rotary_base": 100.0, "rotary_sections": (2, 3, 11), "context": 131_072}
    directory = make_tiny(tmp_path, corpus=TINY_CORPUS, words=600, **numbers)
    config = AutoConfig.from_pretrained(directory).text_config
    assert config.rope_parameters["rope_theta"] == 100.0
    assert config.rope_parameters["mrope_section"] == [2, 3, 11]
    assert config.max_position_embeddings == 131_072


class KernelCalls(TorchFunctionMode):
    """Counts calls of the attention kernel."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.nn.functional.scaled_dot_product_attention
        return function(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def windowed(tmp_path_factory):
    return make_tiny(
        tmp_path_factory.mktemp("windowed"),
        corpus=TINY_CORPUS,
        words=1000,
        max_pixels=84_000,
        vision={"fullatt_block_indexes": [1]},
    )


def seen(tower, images):
    packed = [images.packed(*screenshot(seed, *size)) for seed, size in PICTURES]
    return tower(torch.cat([picture.pixels for picture in packed]), tuple(picture.grid for picture in packed))


def seen_by_transformers(model, images):
    patches = [images(*screenshot(seed, *size)) for seed, size in PICTURES]
    grids = torch.tensor([picture.grid for picture in patches])
    return model.model.visual(torch.cat([p.pixel_values for p in patches]), grid_thw=grids).pooler_output


def test_visual_tokens_and_gradients_are_those_of_transformers_loop_over_windows(windowed):
    images = ImageProcessor(windowed)
    plain, ours = (Qwen2_5_VLForConditionalGeneration.from_pretrained(windowed) for _ in range(2))
    expected = seen_by_transformers(plain, images)
    tokens = seen(FAMILY.tower(ours, images.mean, images.std), images)
    assert_same(tokens, expected)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0))
    (expected * weights).sum().backward()
    (tokens * weights).sum().backward()
    gradients = {name: parameter.grad for name, parameter in plain.model.visual.named_parameters()}
    for name, parameter in ours.model.visual.named_parameters():
        scale = gradients[name].abs().max().item()
        torch.testing.assert_close(parameter.grad / scale, gradients[name] / scale, atol=1e-5, rtol=0, msg=name)
    eager = Qwen2_5_VLForConditionalGeneration.from_pretrained(windowed, attn_implementation="eager")
    assert_same(seen(FAMILY.tower(eager, images.mean, images.std), images), expected)


def test_the_kernel_is_called_once_a_size_of_windows(windowed):
    images = ImageProcessor(windowed)
    plain, ours = (Qwen2_5_VLForConditionalGeneration.from_pretrained(windowed) for _ in range(2))
    tower = FAMILY.tower(ours, images.mean, images.std)
    with KernelCalls() as many:
        seen_by_transformers(plain, images)
    with KernelCalls() as few:
        seen(tower, images)
    # Pictures of 5 x 4 (twice), 7 x 12 and 5 x 8 visual tokens have 2, 6 and 4 windows of 4 x 4, 1 x 4 and 3 x 4
    # tokens: 14 windows of 3 sizes. The other layer sees 4 pictures of 3 sizes.
    assert many.count == 14 + 4
    assert few.count == 3 + 3


SCREEN = (1, 78, 138)
"""A 1080p screenshot."""
SIZES = (2, 112, 14)
"""The real model's, and the tiny one's: tokens of 2 x 2 patches, windows of 112 and patches of 14 pixels."""


@pytest.mark.parametrize(
    "grids", [((1, 10, 8),), ((1, 8, 8),), (SCREEN, (1, 10, 8)), ((1, 4, 30), (1, 4, 30), (1, 18, 6)), ((3, 10, 12),)]
)
def test_without_windows_the_order_is_that_of_transformers(grids):
    plain, ours = cumulative_layout(grids, *SIZES), segment_layout(grids, *SIZES, windowed=False)
    assert torch.equal(ours["window_index"], plain["window_index"])
    assert segment_layout(((1, 10, 8),) * 2, *SIZES, windowed=False)["cu_seqlens"].order is None


def test_screenshots_have_windows_of_four_sizes_however_many_they_are():
    # 39 x 69 visual tokens in windows of 4 x 4: 9 x 17 whole ones, 17 below of 3 x 4, 9 beside of 4 x 1, one of 3 x 1;
    # 4 patches a token.
    one = segment_layout((SCREEN,), *SIZES, windowed=True)
    assert one["cu_window_seqlens"].runs == ((153, 64), (17, 48), (9, 16), (1, 12))
    fifteen = segment_layout((SCREEN,) * 15, *SIZES, windowed=True)
    assert fifteen["cu_window_seqlens"].runs == ((15 * 153, 64), (15 * 17, 48), (15 * 9, 16), (15, 12))
    assert fifteen["cu_seqlens"].runs == ((15, 78 * 138),)


def test_the_order_of_the_pictures_brings_the_patches_of_each_together():
    layout = segment_layout(((1, 10, 8), (1, 20, 30), (1, 10, 8)), *SIZES, windowed=True)
    picture_of_token = torch.tensor([0, 1, 2]).repeat_interleave(torch.tensor([20, 150, 20]))
    seen = picture_of_token[layout["window_index"]].repeat_interleave(4)
    # The largest first: 600 patches, then twice 80.
    assert layout["cu_seqlens"].runs == ((1, 600), (2, 80))
    assert seen[layout["cu_seqlens"].order].tolist() == [1] * 600 + [0] * 80 + [2] * 80
