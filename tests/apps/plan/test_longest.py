from pathlib import Path

import pytest

from arpo.apps.plan.longest import WorstCaseTrajectory
from arpo.errors import ConfigError
from arpo.models.tokenization import ChatTokenizer


def longest(**changed: int | None) -> WorstCaseTrajectory:
    numbers = {"max_context": 1000, "max_steps": 15, "max_tokens": 8192, "image_tokens": 20} | changed
    return WorstCaseTrajectory(**numbers, screen=(112, 140))


def test_the_text_of_the_longest_trajectory_is_sampled_as_far_as_responses_may_be_long():
    # 1000 - 15 screenshots of 20 tokens = 700, of which the first is no response: nothing precedes it
    assert (longest().steps, longest().action_tokens) == (15, 699)
    assert longest(max_tokens=10).action_tokens == 150


def test_with_an_image_window_every_step_is_a_sequence_with_the_last_screenshots():
    # 1000 - 2 screenshots of 20 - 15 responses of 10 = 810 of prompt; the last response alone is trained
    windowed = longest(max_tokens=10, image_window=2)
    assert (windowed.steps, windowed.shown, windowed.sampled_tokens, windowed.action_tokens) == (15, 2, 150, 10)
    assert windowed.lengths[:3] == (810 + 20 + 10, 810 + 40 + 20, 810 + 40 + 30)
    assert (windowed.lengths[-1], len(windowed.lengths)) == (1000, 15)
    assert windowed.screenshots == (1, *[2] * 14)


def test_an_image_window_that_is_never_full_shows_what_fits():
    # a screenshot and one token of a response each: 99 // 21
    assert (longest(max_context=100, image_window=5).steps, longest(max_context=100, image_window=5).shown) == (4, 4)
    # two screenshots of 20, and 59 responses of a token behind something that is no response
    assert longest(max_context=100, max_steps=80, image_window=2).steps == 59


def test_a_short_context_has_room_for_fewer_screenshots_and_one_without_room_for_any_is_refused():
    assert longest(max_context=100).steps == 4  # a screenshot and one token of a response each: 99 // 21
    with pytest.raises(ConfigError, match="max_context=21 has no room for a screenshot of 112 x 140 pixels"):
        longest(max_context=21)


def test_its_tokens_are_as_many_as_it_says(tiny_model: Path):
    windowed = longest(image_window=2), longest(image_window=2, max_tokens=10)
    for bounds in (longest(), longest(max_tokens=10), longest(max_context=100), *windowed):
        tokens = bounds.tokens(ChatTokenizer(tiny_model))
        assert len(tokens) == bounds.max_context
        assert int(tokens.image_mask.sum()) == bounds.shown * 20 == len(tokens.screenshots) * 20
        assert int(tokens.action_mask.sum()) == len(tokens.sampler_logprobs) == bounds.action_tokens
        assert not (tokens.image_mask & tokens.action_mask).any()


def test_a_micro_batch_has_as_many_as_fit_and_one_at_least(tiny_model: Path):
    chat = ChatTokenizer(tiny_model)
    assert len(longest().minibatch(chat, 3500).samples) == 3
    assert len(longest().minibatch(chat, 10).samples) == 1


@pytest.mark.parametrize("wrong", [{"max_steps": 0}, {"max_tokens": 0}])
def test_an_episode_without_a_step_or_a_response_is_refused(wrong: dict[str, int]):
    with pytest.raises(ConfigError, match="must be at least 1, got 0"):
        longest(**wrong)
