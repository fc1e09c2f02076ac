import pytest

from arpo.models.policy import Policy
from arpo.modules.pictures import VisualSizes, chunk_by_tokens
from tests.models.samples import screenshot


@pytest.mark.parametrize(
    ("tokens", "runs"),
    [
        ([], []),
        ([20] * 10, [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9]]),  # 8 x 20 = 160
        ([100, 30, 30, 100], [[0, 1, 2], [3]]),  # in order, whatever their sizes
        ([10, 500, 10, 10], [[0], [1], [2, 3]]),
        ([500, 500], [[0], [1]]),
    ],
)
def test_pictures_go_through_the_vision_tower_in_order_as_many_at_once_as_the_tokens_allow(tokens, runs):
    assert chunk_by_tokens(tokens, most=160) == runs


def test_sizes_are_those_of_what_the_vision_tower_makes_of_the_screenshots(each_tiny):
    policy = Policy(each_tiny, train_vision=False)
    screenshots = dict([screenshot(0), screenshot(1, 140, 224)])
    sizes = VisualSizes.of(screenshots, policy)
    made = policy.visual_tokens([policy.images.packed(key, png) for key, png in screenshots.items()])
    assert sizes.tokens == [len(each) for each in made]
    assert sizes.nbytes == sum(each.nbytes for each in made)
