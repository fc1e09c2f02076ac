"""Samples and minibatches of an update, and its screenshots."""

from dataclasses import replace

import pytest
import torch

from arpo.methods.method import Credit
from arpo.models.policy import Policy
from arpo.models.tokenization import TokenizedTrajectory
from arpo.modules.grpo import visual_sizes
from arpo.modules.minibatch import (
    Minibatch,
    Sample,
    chunk_by_tokens,
    scatter,
    shares,
    split,
    step_entropies,
    without_flat_groups,
    without_untrained,
    without_zero_advantage,
)
from tests.models.samples import screenshot


def sample(length: int, *, actions: int = 2, advantage: float = 1.0) -> Sample:
    mask = torch.arange(length) >= length - actions
    nothing = torch.zeros(length, dtype=torch.bool)
    ids = torch.arange(length)
    tokens = TokenizedTrajectory(ids, mask, nothing, ("screen",), torch.zeros(actions), ((0, actions),))
    return Sample(tokens, {"screen": b"png"}, torch.full((actions,), advantage))


def minibatch(*samples: Sample) -> Minibatch:
    return Minibatch(samples, len(samples), sum(each.action_tokens for each in samples), len(samples))


def groups(count: int, size: int = 2) -> list[list[Sample]]:
    return [[sample(10 * group + member + 3) for member in range(size)] for group in range(count)]


def lengths(minibatches: list[Minibatch]) -> list[list[int]]:
    return [[each.length for each in each_minibatch.samples] for each_minibatch in minibatches]


def test_groups_are_dealt_whole_into_minibatches_of_nearly_equal_size():
    minibatches = split(groups(5), 2, seed=0)
    assert [len(each.samples) for each in minibatches] == [6, 4]
    for each in minibatches:
        by_group = [each_sample.length // 10 for each_sample in each.samples]
        assert all(by_group.count(group) == 2 for group in by_group)
    dealt = [length for minibatch_lengths in lengths(minibatches) for length in minibatch_lengths]
    assert sorted(dealt) == sorted(each.length for group in groups(5) for each in group)


def test_the_order_of_groups_follows_from_the_seed_alone():
    assert len({str(lengths(split(groups(6), 2, seed))) for seed in (1, 2, 3, 1, 2, 3)}) == 3


def test_there_are_no_more_minibatches_than_groups_and_each_knows_its_sizes():
    assert len(split(groups(2), 5, seed=0)) == 2
    assert split([], 5, seed=0) == []
    (whole,) = split([[sample(5, actions=1), sample(6, actions=4)]], 1, seed=0)
    assert (whole.sequences, whole.action_tokens) == (2, 5)
    assert [each.length for each in whole.samples] == [5, 6]


def test_samples_without_advantage_are_left_out_and_still_counted():
    whole = minibatch(sample(5, advantage=0.0), sample(6, advantage=-1.0), sample(7, advantage=0.0))
    rest = without_zero_advantage(whole)
    assert lengths([rest]) == [[6]]
    assert (rest.sequences, rest.action_tokens) == (3, 6)


def test_a_group_in_which_somebody_has_an_advantage_stays_whole():
    groups = [replace(sample(5 + n, advantage=a), group=n // 2) for n, a in enumerate((0.0, 1.0, 0.0, 0.0))]
    left = without_flat_groups(minibatch(*groups))
    assert [each.length for each in left.samples] == [5, 6]
    assert (left.sequences, left.action_tokens) == (4, 8)


def test_the_tokens_of_steps_that_are_left_out_are_marked():
    tokens = replace(sample(6, actions=4).tokens, spans=((0, 1), (1, 4)))
    assert Sample(tokens, {}, torch.ones(4)).selected().tolist() == [1, 1, 1, 1]
    assert Sample(tokens, {}, torch.ones(4), trained=(False, True)).selected().tolist() == [0, 1, 1, 1]


def test_a_sequence_gets_its_part_of_a_credit_wherever_its_responses_stand():
    tokens = replace(sample(6, actions=3).tokens, spans=((0, 2), (4, 5)))
    credit = Credit(torch.arange(7.0), 10 * torch.arange(7.0))
    learned = Sample(tokens, {}, torch.zeros(3), group=1, member=2).credited(credit)
    assert (learned.advantages.tolist(), learned.returns.tolist()) == ([0, 1, 4], [0, 10, 40])
    assert learned.key == (1, 2, ((0, 2), (4, 5)))


def test_a_sequence_of_which_no_step_is_trained_is_left_out_and_still_counted():
    trained = [None, (False,), (False, True), (True,)]
    whole = minibatch(*(replace(sample(5 + number), trained=each) for number, each in enumerate(trained)))
    left = without_untrained(whole)
    assert [each.length for each in left.samples] == [5, 7, 8]
    assert (left.sequences, left.action_tokens) == (4, 8)
    assert not any(each.filler for each in left.samples)


def test_a_rank_that_trains_none_of_its_sequences_keeps_the_shortest_as_a_filler():
    left = without_untrained(minibatch(*(replace(sample(length), trained=(False,)) for length in (9, 4, 6))))
    assert [(each.length, each.filler) for each in left.samples] == [(4, True)]
    empty = replace(left, samples=())
    assert without_untrained(empty) == empty


def test_shares_are_balanced_by_tokens_and_lose_nothing():
    # longest first to the lightest: 9 -> 0, 6 -> 1, 5 -> 1 (6 < 9), 4 -> 0 (9 < 11): 13 and 11
    dealt = shares(minibatch(sample(4), sample(9), sample(5), sample(6)), ranks=2)
    assert lengths(dealt) == [[9, 4], [6, 5]]
    assert {(share.sequences, share.action_tokens) for share in dealt} == {(4, 8)}


def test_a_long_sequence_weighs_more_than_its_tokens():
    # by tokens 60 + 10 against 30 + 30 thousand;
    # by cost 60 x (1 + 60/65) = 115 against 2 x 30 x (1 + 30/65) = 88, and so the 10 go to the latter
    dealt = shares(minibatch(sample(60_000), sample(30_000), sample(30_000), sample(10_000)), ranks=2)
    assert lengths(dealt) == [[60_000], [30_000, 30_000, 10_000]]


def test_a_rank_without_a_sample_gets_the_shortest_one_as_a_filler_and_of_an_empty_minibatch_none():
    first, second, third = shares(minibatch(sample(9), sample(4)), ranks=3)
    assert lengths([first, second, third]) == [[9], [4], [4]]
    assert [share.samples[0].filler for share in (first, second, third)] == [False, False, True]
    empty = replace(minibatch(sample(4)), samples=())
    assert shares(empty, ranks=3) == [empty] * 3


def test_a_single_process_keeps_everything():
    minibatches = [minibatch(sample(4)), minibatch(sample(5))]
    assert scatter(minibatches) == (minibatches, {"screen": b"png"})
    assert scatter(None) == ([], {})


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
    tokens, nbytes = visual_sizes(screenshots, policy)
    made = policy.visual_tokens([policy.images.packed(key, png) for key, png in screenshots.items()])
    assert tokens == [len(each) for each in made]
    assert nbytes == sum(each.nbytes for each in made)


def test_a_step_has_the_mean_entropy_of_its_tokens() -> None:
    # (.3 + .3 + .3) / 3 and .5: a long step does not win by its length
    entropies = torch.tensor([0.3, 0.3, 0.3, 0.5])
    torch.testing.assert_close(step_entropies(entropies, (3, 1)), torch.tensor([0.3, 0.5]))
    torch.testing.assert_close(step_entropies(entropies, (1, 0, 3)), torch.tensor([0.3, 0.0, 1.1 / 3]))
