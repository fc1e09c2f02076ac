import pytest

from arpo.apps.plan.longest import WorstCaseTrajectory
from arpo.errors import ConfigError
from arpo.models.tokenization import ChatTokenizer


def longest(**changed: int | None) -> WorstCaseTrajectory:
    numbers = {"max_context": 1000, "max_steps": 15, "max_tokens": 8192, "image_tokens": 20} | changed
    return WorstCaseTrajectory(**numbers, screen=(112, 140))


def test_the_longest_trajectory_has_as_many_screenshots_and_sampled_tokens_as_fit():
    # 1000 - 15 screenshots of 20 tokens = 700, of which the first is no response: nothing precedes it
    assert (longest().steps, longest().action_tokens) == (15, 699)
    assert longest(max_tokens=10).action_tokens == 150
    # 1000 - 2 screenshots of 20 - 15 responses of 10 = 810 of prompt; the last response alone is trained
    windowed = longest(max_tokens=10, image_window=2)
    assert (windowed.steps, windowed.shown, windowed.sampled_tokens, windowed.action_tokens) == (15, 2, 150, 10)
    assert windowed.lengths[:3] == (810 + 20 + 10, 810 + 40 + 20, 810 + 40 + 30)
    assert (windowed.lengths[-1], len(windowed.lengths)) == (1000, 15)
    assert windowed.screenshots == (1, *[2] * 14)
    # never full: a screenshot and one token of a response each: 99 // 21
    assert (longest(max_context=100, image_window=5).steps, longest(max_context=100, image_window=5).shown) == (4, 4)
    # two screenshots of 20, and 59 responses of a token behind something that is no response
    assert longest(max_context=100, max_steps=80, image_window=2).steps == 59


def test_a_short_context_has_room_for_fewer_screenshots_and_one_without_room_for_any_is_refused():
    assert longest(max_context=100).steps == 4  # a screenshot and one token of a response each: 99 // 21
    with pytest.raises(ConfigError, match="max_context=21 has no room for a screenshot of 112 x 140 pixels"):
        longest(max_context=21)
    for wrong in ({"max_steps": 0}, {"max_tokens": 0}):
        with pytest.raises(ConfigError, match="must be at least 1, got 0"):
            longest(**wrong)


def test_its_tokens_are_as_many_as_it_says_and_a_micro_batch_has_as_many_of_it_as_fit(tiny_model):
    windowed = longest(image_window=2), longest(image_window=2, max_tokens=10)
    for bounds in (longest(), longest(max_tokens=10), longest(max_context=100), *windowed):
        tokens = bounds.tokens(ChatTokenizer(tiny_model))
        assert len(tokens) == bounds.max_context
        assert int(tokens.image_mask.sum()) == bounds.shown * 20 == len(tokens.screenshots) * 20
        assert int(tokens.action_mask.sum()) == len(tokens.sampler_logprobs) == bounds.action_tokens
        assert not (tokens.image_mask & tokens.action_mask).any()
    chat = ChatTokenizer(tiny_model)
    assert len(longest().minibatch(chat, 3500).samples) == 3
    assert len(longest().minibatch(chat, 10).samples) == 1
