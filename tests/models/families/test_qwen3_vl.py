"""Qwen3-VL: its tiny model, its points, its learned places and DeepStack."""

import pytest
import torch
from transformers import AutoProcessor, Qwen3VLForConditionalGeneration

from arpo.agent.actions import Click
from arpo.models.families.qwen3_vl import FAMILY, layout
from arpo.models.images import ImageProcessor


@pytest.fixture(scope="module")
def model(tiny_qwen3):
    return Qwen3VLForConditionalGeneration.from_pretrained(tiny_qwen3).eval()


def test_a_point_is_in_thousandths_of_the_screen_whatever_the_picture_s_size():
    for seen in ((1920, 1088), (640, 352)):
        frame = FAMILY.frame((1920, 1080), seen)
        assert frame.to_screen(Click(500, 250)) == Click(960, 270)
        assert frame.to_screen(Click(1000, 1000)) == Click(1919, 1079)
        assert frame.to_model(Click(960, 270)) == Click(500, 250)


def test_the_directory_loads_like_a_real_checkpoint(tiny_qwen3, model):
    processor = AutoProcessor.from_pretrained(tiny_qwen3)
    assert type(processor).__name__ == FAMILY.processor_class
    assert processor.image_processor.patch_size == 16
    assert 0.8e6 < model.num_parameters() < 1.2e6
    assert all(FAMILY.checkpoint_name(name) == name for name, _ in model.named_parameters())
    assert all(len(processor.tokenizer.encode(str(number))) == 1 for number in range(1000))
    assert model.config.text_config.rope_parameters["mrope_interleaved"]


def test_pictures_of_one_size_attend_in_one_call():
    segments = layout(((1, 4, 4), (1, 6, 8), (1, 4, 4)), side=8, merge=2, by_segments=True)["cu_seqlens"]
    assert segments.runs == ((1, 48), (2, 16))
    assert segments.order[:48].tolist() == list(range(16, 64))


def test_deepstack_reaches_the_first_layers_and_the_pictures_places_alone(tiny_qwen3):
    ours = Qwen3VLForConditionalGeneration.from_pretrained(tiny_qwen3).eval()
    images = ImageProcessor(tiny_qwen3)
    FAMILY.tower(ours, images.mean, images.std)
    hidden = ours.config.text_config.hidden_size
    torch.manual_seed(0)
    embeddings, visual = torch.randn(2, 5, hidden), torch.randn(3, 3 * hidden)
    places = torch.tensor([1, 2, 8])  # the second and third token of one row, the fourth of the other
    positions = torch.arange(5).expand(3, 2, 5)

    def states(visual):
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
