import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2_5_VLForConditionalGeneration

from arpo.models.collate import collate, micro_batches
from arpo.models.images import ImageProcessor
from tests.models.samples import prepare, screenshot, trajectory


def test_position_ids_equal_the_models_own(tiny_model, chat, images):
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny_model)
    wide = trajectory(chat, (4, 5), size=(1920, 1080))
    tokens, screenshots = prepare(chat, trajectory(chat, (0,)), wide, trajectory(chat, (1, 2, 3)))
    batch = collate(tokens, screenshots, images)
    valid = torch.arange(batch.input_ids.shape[1]) < torch.tensor([len(sequence) for sequence in tokens])[:, None]
    # No screenshot is shared here, so the distinct ones are all, in order.
    pictures = (batch.image_mask.int(), torch.tensor(batch.image_grid))
    expected, _ = model.model.get_rope_index(batch.input_ids, *pictures, attention_mask=valid.int())
    for row in range(3):
        torch.testing.assert_close(batch.position_ids[:, row, valid[row]], expected[:, row, valid[row]])


def test_a_screenshot_that_is_seen_often_is_embedded_once(chat, images):
    episodes = [trajectory(chat, seeds) for seeds in ((7, 8), (7, 9), (8, 7))]
    batch = collate(*prepare(chat, *episodes), images)
    assert len(batch.image_grid) == 3
    assert batch.pixels.shape == (3 * 80, 3, 14, 14)  # 10 x 8 patches each
    assert batch.pixels.dtype == torch.uint8
    # 20 tokens a screenshot: the three distinct ones start at rows 0, 20 and 40 of the vision tower's output.
    assert batch.image_index[::20].tolist() == [0, 20, 0, 40, 20, 0]
    assert len(batch.image_index) == int(batch.image_mask.sum()) == 120
    assert images.decoded == 3


def test_rows_keep_their_order_and_are_padded_on_the_right_and_places_say_where_the_masks_are_true(chat, images):
    tokens, screenshots = prepare(chat, trajectory(chat, (0,)), trajectory(chat, (1, 2)))
    batch = collate(tokens, screenshots, images)
    assert batch.input_ids.shape == (2, len(tokens[1]))
    for row, sequence in enumerate(tokens):
        length = len(sequence)
        assert torch.equal(batch.input_ids[row, :length], sequence.input_ids)
        assert torch.equal(batch.action_mask[row, :length], sequence.action_mask)
        assert not batch.action_mask[row, length:].any()
        assert not batch.image_mask[row, length:].any()
    assert torch.equal(batch.input_ids.flatten()[batch.action_places], batch.input_ids[batch.action_mask])
    assert torch.equal(batch.image_places, batch.image_mask.flatten().nonzero()[:, 0])
    assert batch.packed_mask.sum(1).tolist() == batch.action_mask.sum(1).tolist()
    assert torch.equal(batch.packed_places, batch.packed_mask.flatten().nonzero()[:, 0])


def test_a_missing_screenshot_one_of_another_size_than_noted_and_nothing_are_refused(chat, images):
    tokens, screenshots = prepare(chat, trajectory(chat, (0, 1)))
    first, second = screenshots
    with pytest.raises(ValueError, match=f"1 of 2 screenshots are missing, the first is {second}"):
        collate(tokens, {first: screenshots[first]}, images)
    with pytest.raises(ValueError, match="40 image placeholders but 35 visual tokens"):
        collate(tokens, screenshots | {first: screenshot(0, 1920, 1080)[1]}, images)
    with pytest.raises(ValueError, match="give at least 1"):
        collate([], {}, images)


def test_micro_batches_by_hand():
    # Longest first: 200 is over the limit; 90 stands alone (2 x 90 > 100); 50 and 46 pad 4; 30, 29 and 20 pad 11. That
    # is 15 of 480, 3 %, and fewer than 4 groups have no room for it.
    assert micro_batches([30, 90, 20, 50, 200, 29, 46], max_tokens=100) == [[4], [1], [3, 6], [0, 5, 2]]
    assert micro_batches([20, 18, 18], max_tokens=60) == [[0], [1, 2]]  # 4 of 60 would be more than 5 %
    assert micro_batches([20, 18, 18, 44], max_tokens=60) == [[3], [0, 1, 2]]  # 4 of 104 is less
    assert micro_batches([7, 7, 7, 7], max_tokens=14) == [[0, 1], [2, 3]]
    assert micro_batches([], max_tokens=100) == []


@given(st.lists(st.integers(1, 100)), st.integers(1, 400))
def test_micro_batches_hold_everything_once_and_stay_within_the_limits(lengths, limit):
    groups = micro_batches(lengths, limit)
    assert sorted(position for group in groups for position in group) == list(range(len(lengths)))
    sizes = [len(group) * max(lengths[position] for position in group) for group in groups]
    assert all(len(group) == 1 or size <= limit for group, size in zip(groups, sizes, strict=True))
    assert sum(lengths) >= 0.95 * sum(sizes)


def every_partition(positions):
    if not positions:
        yield []
        return
    for rest in every_partition(positions[1:]):
        yield [[positions[0]], *rest]
        for number, group in enumerate(rest):
            yield [*rest[:number], [positions[0], *group], *rest[number + 1 :]]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=7), st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_there_are_no_fewer_micro_batches_and_none_with_less_padding(lengths, limit):
    """Of all partitions, not only those of neighbours."""

    def size(groups):
        return len(groups), sum(len(group) * max(lengths[position] for position in group) for group in groups)

    def fits(group):
        return len(group) == 1 or len(group) * max(lengths[position] for position in group) <= limit

    allowed = [groups for groups in every_partition(list(range(len(lengths)))) if all(map(fits, groups))]
    best = min(size(groups) for groups in allowed if 0.95 * size(groups)[1] <= sum(lengths))
    assert size(micro_batches(lengths, limit)) == best


def test_what_the_tower_has_seen_takes_the_place_of_the_patches(chat, images):
    tokens, screenshots = prepare(chat, trajectory(chat, (0, 1)), trajectory(chat, (1, 2)))
    features = {key: torch.full((20, 4), float(number)) for number, key in enumerate(screenshots)}
    batch = collate(tokens, screenshots, images, features)
    assert batch.pixels is None
    assert batch.visual[::20, 0].tolist() == [0.0, 1.0, 2.0]
    assert torch.equal(batch.position_ids, collate(tokens, screenshots, ImageProcessor(chat.path)).position_ids)
    assert images.decoded == 0
