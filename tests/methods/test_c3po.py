"""C3PO's budget of tokens: what is drawn, what is cut, and what the sum is divided by."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from arpo.methods.c3po import C3PO
from arpo.methods.grpo import GRPO
from arpo.types import Group, Task
from tests.methods.conftest import trajectory


def batch(iteration: int = 0, groups: int = 3) -> list[Group]:
    """Groups of a success and a failure, of 2 and 3 tokens; all have an advantage, 1 or -1."""
    made = []
    for number in range(groups):
        pair = (trajectory("a", 1.0, lengths=(2,)), trajectory("a", 0.0, lengths=(3,)))
        members = tuple(replace(each, id=f"{iteration}/{number}/{place}") for place, each in enumerate(pair))
        made.append(Group(Task(f"task {number}", ""), members))
    return made


def trained(method: GRPO, groups: list[Group]) -> dict[str, int]:
    """How many tokens of each trajectory have something to teach, where some have."""
    counts = {
        member.id: int(torch.count_nonzero(credit.advantages))
        for group, row in zip(groups, method.credits(groups), strict=True)
        for member, credit in zip(group.trajectories, row, strict=True)
    }
    return {id: count for id, count in counts.items() if count}


LENGTHS = {id: 2 if id.endswith("0") else 3 for id in (each.id for group in batch() for each in group.trajectories)}


def the_order(groups: list[Group]) -> list[str]:
    """The order in which trajectories are drawn: with a budget one token larger, one more of them is whole."""
    order: list[str] = []
    for budget in range(1, 16):
        whole = [id for id, count in trained(C3PO(budget=budget), groups).items() if count == LENGTHS[id]]
        order += [id for id in whole if id not in order]
        assert set(order) == set(whole)
    return order


def test_trajectories_are_drawn_until_the_next_one_would_exceed_the_budget():
    groups = batch()
    order = the_order(groups)
    assert sorted(order) == sorted(LENGTHS)
    for budget in range(1, 16):
        whole, sums = [], 0
        for id in order:
            sums += LENGTHS[id]
            if sums > budget:
                break
            whole.append(id)
        assert set(trained(C3PO(budget=budget), groups)) == set(whole)


def test_what_would_exceed_it_is_cut_behind_its_first_tokens():
    groups = batch()
    order = the_order(groups)
    for budget in range(1, 16):
        method = C3PO(budget=budget, over="truncate")
        counts = trained(method, groups)
        assert sum(counts.values()) == budget
        assert list(counts) == sorted(order[: len(counts)])
        for group, row in zip(groups, method.credits(groups), strict=True):
            for member, credit in zip(group.trajectories, row, strict=True):
                count, sign = counts.get(member.id, 0), 2 * member.task_reward - 1
                expected = [sign] * count + [0.0] * (len(credit.advantages) - count)
                assert credit.advantages.tolist() == pytest.approx(expected, abs=1e-5)


def test_all_of_a_batch_within_the_budget_learn_as_in_grpo_and_a_buffer_compares_as_if_all_were():
    groups = batch()
    for credits in (C3PO(budget=15).credits(groups), C3PO(budget=1).all_credits(groups)):
        for mine, plain in zip(credits, GRPO().credits(groups), strict=True):
            assert all(torch.equal(one.advantages, same.advantages) for one, same in zip(mine, plain, strict=True))


def test_what_has_no_advantage_takes_no_room():
    flat = [replace(each, trajectories=(each.trajectories[0],) * 2) for each in batch(1, 9)]
    assert len(trained(C3PO(budget=15), [*flat, *batch()])) == 6


@pytest.mark.parametrize("over", ["drop", "truncate"])
def test_no_order_of_groups_or_members_changes_what_is_cut(over):
    groups = batch()
    turned = [replace(each, trajectories=each.trajectories[::-1]) for each in reversed(groups)]
    for budget in range(1, 16):
        method = C3PO(budget=budget, over=over)
        assert trained(method, turned) == trained(method, groups)


def test_every_place_is_as_likely_to_be_cut_and_a_replayed_success_is_drawn_anew_each_time():
    counts, old = Counter(), replace(trajectory("a", 1.0, lengths=(2,)), id="old")
    for iteration in range(600):
        first, *others = batch(iteration)
        replayed = replace(first, trajectories=(old, first.trajectories[1]), injected=(0,))
        drawn = trained(C3PO(budget=8, over="truncate"), [replayed, *others])
        counts.update(id.partition("/")[2] or id for id in drawn)
    assert len(counts) == 6
    # of those that begin within 8 of 15 tokens, successes and failures alike
    assert max(counts.values()) - min(counts.values()) < 0.1 * 600


def test_the_sum_is_divided_by_the_share_of_the_budget_whatever_the_lengths():
    values, mask = torch.ones(2, 4), torch.tensor([[True] * 4, [True, False, False, False]])
    for sequences, tokens in ((2.0, 5.0), (7.0, 100.0)):
        average = C3PO(budget=40).average(sequences, tokens, 1.0, 1 / 4)  # two minibatches on two ranks
        assert average(values, mask).item() == pytest.approx(5 / 10)


def test_how_much_of_the_budget_and_of_the_batch_is_used_is_measured():
    groups = batch()  # of 15 tokens, all with an advantage
    for method, used in ((C3PO(budget=8, over="truncate"), 8), (C3PO(budget=60), 15)):
        found = method.measure(groups, method.credits(groups))
        assert found == {"train/budget_used": used / method.budget, "train/budget_share": used / 15}
    flat = [replace(each, trajectories=each.trajectories[:1]) for each in groups]
    assert C3PO(budget=8).measure(flat, C3PO(budget=8).credits(flat)) == {"train/budget_used": 0.0}


def test_a_budget_that_no_batch_can_reach_is_complained_of_with_the_scale_that_is_lost():
    assert C3PO(budget=300).complaint(300) is None
    words = C3PO().complaint(214)
    assert "budget=409600 is above the 214 sampled tokens of a batch" in words
    assert "1914 times smaller" in words
