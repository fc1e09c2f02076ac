import pytest

from arpo.modules.pictures import chunk_by_tokens


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
