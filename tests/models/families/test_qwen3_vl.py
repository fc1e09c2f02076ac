"""Qwen3-VL: its tiny model, its points, its learned places and DeepStack."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoProcessor, Qwen3VLForConditionalGeneration

from arpo.agent.actions import Click
from arpo.errors import ConfigError
from arpo.models.families.qwen3_vl import FAMILY, layout, make_tiny
from arpo.models.family import family_named
from arpo.models.images import ImageProcessor
from tests.conftest import TINY_CORPUS
from tests.models.samples import assert_same, screenshot

PICTURES = ((0, (112, 140)), (1, (333, 200)), (2, (112, 140)), (3, (220, 150)))
"""Seeds and sizes: two pictures of one size apart from each other."""


@pytest.fixture(scope="module")
def model(tiny_qwen3: Path) -> Any:
    return Qwen3VLForConditionalGeneration.from_pretrained(tiny_qwen3).eval()


def test_a_point_is_in_thousandths_of_the_screen_whatever_the_picture_s_size() -> None:
    for seen in ((1920, 1088), (640, 352)):
        frame = FAMILY.frame((1920, 1080), seen)
        assert frame.to_screen(Click(500, 250)) == Click(960, 270)
        assert frame.to_screen(Click(1000, 1000)) == Click(1919, 1079)
        assert frame.to_model(Click(960, 270)) == Click(500, 250)


def test_names_of_weights_stay(model: Any) -> None:
    assert all(FAMILY.checkpoint_name(name) == name for name, _ in model.named_parameters())


def test_a_model_with_experts_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match="got 'qwen3_vl_moe'"):
        family_named("qwen3_vl_moe")


def test_the_directory_loads_like_a_real_checkpoint(tiny_qwen3: Path, model: Any) -> None:
    processor = AutoProcessor.from_pretrained(tiny_qwen3)
    assert type(processor).__name__ == FAMILY.processor_class
    assert processor.image_processor.patch_size == 16
    assert 0.8e6 < model.num_parameters() < 1.2e6
    assert all(len(processor.tokenizer.encode(str(number))) == 1 for number in range(1000))
    assert model.config.text_config.rope_parameters["mrope_interleaved"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": 1}, "layers must be at least 2, got 1"),
        ({"words": 200}, r"words must be at least 1269 \(special tokens, bytes and numbers to 999\), got 1200"),
        ({"min_pixels": 200, "max_pixels": 100}, "got 200 and 100"),
    ],
)
def test_numbers_that_make_no_model_are_refused(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_tiny(tmp_path, corpus=TINY_CORPUS, **arguments)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_visual_tokens_and_gradients_are_those_of_transformers(tiny_qwen3: Path, model: Any, attention: str) -> None:
    images = ImageProcessor(tiny_qwen3)
    plain = [images(*screenshot(seed, *size)) for seed, size in PICTURES]
    seen = model.model.visual(
        torch.cat([picture.pixel_values for picture in plain]), grid_thw=torch.tensor([each.grid for each in plain])
    )
    expected = torch.cat([seen.pooler_output, *seen.deepstack_features], dim=1)
    ours = Qwen3VLForConditionalGeneration.from_pretrained(tiny_qwen3, attn_implementation=attention).eval()
    tower = FAMILY.tower(ours, images.mean, images.std)
    packed = [images.packed(*screenshot(seed, *size)) for seed, size in PICTURES]
    tokens = tower(torch.cat([picture.pixels for picture in packed]), tuple(picture.grid for picture in packed))
    assert_same(tokens, expected)
    wanted = dict(model.model.visual.named_parameters())
    gradients = torch.autograd.grad(expected.square().sum(), list(wanted.values()))
    found = dict(ours.model.visual.named_parameters())
    own = torch.autograd.grad(tokens.square().sum(), [found[name] for name in wanted])
    for gradient, mine in zip(gradients, own, strict=True):
        assert_same(mine, gradient)


def test_pictures_of_one_size_attend_in_one_call() -> None:
    segments = layout(((1, 4, 4), (1, 6, 8), (1, 4, 4)), 8, 2, by_segments=True)["cu_seqlens"]
    assert segments.runs == ((1, 48), (2, 16))
    assert segments.order is not None
    assert segments.order[:48].tolist() == list(range(16, 64))


def test_deepstack_reaches_the_first_layers_and_the_pictures_places_alone(tiny_qwen3: Path) -> None:
    ours = Qwen3VLForConditionalGeneration.from_pretrained(tiny_qwen3).eval()
    images = ImageProcessor(tiny_qwen3)
    FAMILY.tower(ours, images.mean, images.std)
    hidden = ours.config.text_config.hidden_size
    torch.manual_seed(0)
    embeddings, visual = torch.randn(2, 5, hidden), torch.randn(3, 3 * hidden)
    places = torch.tensor([1, 2, 8])  # the second and third token of one row, the fourth of the other
    positions = torch.arange(5).expand(3, 2, 5)

    def states(visual: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return FAMILY.hidden_states(ours, embeddings, visual, places, positions)

    without = visual.clone()
    without[:, hidden:] = 0
    changed = (states(visual) - states(without)).abs().amax(-1) > 1e-4
    assert changed.tolist() == [[False, True, True, True, True], [False, False, False, True, True]]
    for part in (1, 2):
        one = visual.clone()
        one[:, part * hidden : (part + 1) * hidden] = 0
        assert not torch.allclose(states(one), states(visual), atol=1e-4)
