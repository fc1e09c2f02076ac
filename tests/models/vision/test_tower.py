from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import AutoImageProcessor, Qwen2_5_VLForConditionalGeneration

from arpo.models.images import ImageProcessor, normalized_films
from arpo.models.tiny import make_tiny
from arpo.models.vision.tower import PatchEmbedding, VisionTower
from tests.conftest import TINY_CORPUS
from tests.models.samples import screenshot


@pytest.mark.parametrize("size", [(112, 140), (333, 1000)])
def test_bytes_become_what_the_checkpoints_own_processor_gives_bit_for_bit(
    tiny_model: Path, images: ImageProcessor, size: tuple[int, int]
) -> None:
    key, png = screenshot(0, *size)
    expected = AutoImageProcessor.from_pretrained(tiny_model)(images=Image.open(BytesIO(png)), return_tensors="pt")
    films = normalized_films(images.packed(key, png).pixels, images.mean, images.std, 2)
    assert torch.equal(films, expected["pixel_values"])


def assert_same(ours: torch.Tensor, expected: torch.Tensor) -> None:
    """Up to what the order of sums costs, beside the largest number."""
    scale = expected.abs().max()
    torch.testing.assert_close(ours / scale, expected / scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_layer_sees_the_same_as_the_original_convolution(
    tiny_model: Path, images: ImageProcessor, dtype: torch.dtype
) -> None:
    plain = Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny_model, dtype=dtype).model.visual.patch_embed
    key, png = screenshot(0)
    expected = plain(images(key, png).pixel_values)
    ours = PatchEmbedding(plain.proj, images)(images.packed(key, png).pixels)
    assert ours.dtype == dtype
    assert_same(ours, expected)


PICTURES = (
    (0, (112, 140)),
    (1, (333, 200)),
    (2, (112, 140)),
    (3, (220, 150)),
)
"""Seeds and sizes: windows of many sizes, two pictures of one size apart from each other."""


class KernelCalls(TorchFunctionMode):
    """Counts calls of the attention kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.nn.functional.scaled_dot_product_attention
        return function(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(
        tmp_path_factory.mktemp("windowed"), corpus=TINY_CORPUS, words=1000, max_pixels=84_000, full_attention=(1,)
    )


@pytest.fixture(params=["windowed", "tiny_model"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def seen(tower: VisionTower, images: ImageProcessor) -> Tensor:
    packed = [images.packed(*screenshot(seed, *size)) for seed, size in PICTURES]
    return tower(torch.cat([picture.pixels for picture in packed]), tuple(picture.grid for picture in packed))


def seen_by_transformers(model: Any, images: ImageProcessor) -> Tensor:
    patches = [images(*screenshot(seed, *size)) for seed, size in PICTURES]
    grids = torch.tensor([picture.grid for picture in patches])
    return model.model.visual(torch.cat([p.pixel_values for p in patches]), grid_thw=grids).pooler_output


def test_visual_tokens_and_gradients_are_those_of_transformers_loop_over_windows(checkpoint: Path) -> None:
    images = ImageProcessor(checkpoint)
    plain, ours = (Qwen2_5_VLForConditionalGeneration.from_pretrained(checkpoint) for _ in range(2))
    expected = seen_by_transformers(plain, images)
    tokens = seen(VisionTower(ours.model.visual, images), images)
    assert_same(tokens, expected)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0))
    (expected * weights).sum().backward()
    (tokens * weights).sum().backward()
    gradients = {name: parameter.grad for name, parameter in plain.model.visual.named_parameters()}
    for name, parameter in ours.model.visual.named_parameters():
        scale = gradients[name].abs().max().item()
        torch.testing.assert_close(parameter.grad / scale, gradients[name] / scale, atol=1e-5, rtol=0, msg=name)


def test_the_tower_of_another_kernel_sees_the_same(windowed: Path) -> None:
    images = ImageProcessor(windowed)
    plain = Qwen2_5_VLForConditionalGeneration.from_pretrained(windowed)
    eager = Qwen2_5_VLForConditionalGeneration.from_pretrained(windowed, attn_implementation="eager")
    expected = seen_by_transformers(plain, images)
    assert_same(seen(VisionTower(eager.model.visual, images), images), expected)


def test_the_kernel_is_called_once_a_size_of_windows(windowed: Path) -> None:
    images = ImageProcessor(windowed)
    plain, ours = (Qwen2_5_VLForConditionalGeneration.from_pretrained(windowed) for _ in range(2))
    tower = VisionTower(ours.model.visual, images)
    with KernelCalls() as many:
        seen_by_transformers(plain, images)
    with KernelCalls() as few:
        seen(tower, images)
    # Pictures of 5 x 4 (twice), 7 x 12 and 5 x 8 visual tokens have 2, 6 and 4 windows of 4 x 4, 1 x 4 and 3 x 4
    # tokens: 14 windows of 3 sizes. The other layer sees 4 pictures of 3 sizes.
    assert many.count == 14 + 4
    assert few.count == 3 + 3
