"""What the records promise beyond their fields."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.types import Exchange, screenshot_key
from tests.rollout.trajectories import foreign, make_trajectory


def test_a_screenshot_is_named_by_the_sha_256_of_its_bytes():
    # the first example of FIPS 180-2, appendix B: the message "abc"
    assert screenshot_key(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_path_is_a_training_sequence_and_a_shared_beginning_is_trained_in_the_first():
    made = foreign()
    assert made.sequences() == [([0, 3], [0, 3]), ([0, 2, 4], [2, 4])]
    assert made.trained_lengths == [2, 0, 2, 1, 2, 0]
    assert (made.action_tokens, made.policy_version) == (7, 6)
    assert not made.has_a_step_an_exchange
    assert replace(made, steps=(), exchanges=()).policy_version == 0


def test_a_context_is_all_that_was_added_and_delivered_on_the_way():
    made = foreign()
    ids, pictures = made.context(4)
    assert ids == (1, 99, 2, 99, 3, 40, 41, 8, 43, 44, 13, 99)  # without 45, which is behind a stop
    assert [picture.key for picture in pictures] == list(made.screenshots)
    assert made.context(1) == ((1, 6), ())


@given(st.data())
def test_every_trained_response_is_in_one_sequence_behind_those_it_goes_on_from(data):
    exchanges = []
    for number in range(data.draw(st.integers(1, 12))):
        parent = data.draw(st.none() | st.integers(0, number - 1)) if number else None
        length, trained = data.draw(st.integers(0, 2)), data.draw(st.booleans())
        exchanges.append(Exchange(parent, (1,), (), (2,) * length, (0.0,) * length, 0, trained=trained))
    made = replace(make_trajectory(), steps=(), exchanges=tuple(exchanges))
    found = made.sequences()
    trained = [number for _, own in found for number in own]
    assert sorted(trained) == [number for number, each in enumerate(exchanges) if each.trained_ids]
    assert len(set(trained)) == len(trained)
    for path, own in found:
        assert exchanges[path[0]].parent is None
        assert [exchanges[number].parent for number in path[1:]] == path[:-1]
        assert own == sorted(own)
        assert own[-1] == path[-1]


@pytest.mark.parametrize(
    ("number", "changes", "sentence"),
    [
        (2, {"parent": 2}, "'3/0/2': exchange 2 goes on from 2, which does not come before it; record exchanges in"),
        (2, {"parent": -1}, "exchange 2 goes on from -1"),
        (2, {"sampler_logprobs": (0.0,)}, "3 response ids came with 1 log-probabilities: each needs its own"),
        (2, {"delivered": 4}, "delivered must be between 0 and the 3 response ids, got 4"),
    ],
)
def test_an_exchange_that_cannot_have_been_is_refused(number, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        _ = with_one(foreign(), number, **changes)


def with_one(made, number, **changes):
    exchanges = list(made.exchanges)
    exchanges[number] = replace(exchanges[number], **changes)
    return replace(made, exchanges=tuple(exchanges))


def test_a_step_of_an_exchange_that_is_not_there_is_refused():
    made = foreign()
    with pytest.raises(ValueError, match="'3/0/2': step 2 is of exchange 4, and there are 4"):
        replace(made, exchanges=made.exchanges[:4])
