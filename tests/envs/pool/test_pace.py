"""An environment that is slow in every step, and misses no deadline, is noticed and built anew."""

import pytest

from arpo.agent.actions import Wait
from arpo.envs.fake import fake_tasks
from arpo.envs.pool.slots import SlotState, make_slots, slow_reason
from tests.envs.pool.support import make_pool, until, with_pool


def complaints(*steps_s):
    """The reason for each environment, by the seconds of its last steps."""
    slots = make_slots(len(steps_s), 1)
    for slot, each in zip(slots, steps_s, strict=True):
        slot.steps_s.extend(each)
    return [slow_reason(slot, slots, 2.0) for slot in slots]


def test_a_slow_one_is_named_with_the_pace_of_the_others_where_there_are_some():
    words = "its steps take 2.1 s in the median, more than slow_step_s=2"
    assert complaints([2.1] * 8) == [words]
    others = ([0.3] * 8, [0.4] * 8, [0.5] * 16)
    assert complaints([2.1] * 8, *others) == [f"{words}, those of the others 0.4 s", None, None, None]


SLOW, FEW, FAST = [6.0] * 8, [6.0] * 7, [0.3] * 8


@pytest.mark.parametrize(
    ("its_s", "others_s", "named"),
    [
        # fast by now
        (7 * [4.8], [FAST], False),  # too few to say
        (9 * [0.3] + 7 * [59.0], [FAST], False),  # a few long texts
        (16 * [4.8] + 16 * [0.3], [FAST], False),  # slow long ago
        (8 * [2.0], [FAST], False),  # as slow as may be
        # where all are slow, the machine is: the median of the others is 1.9 s, three times that 5.7 s
        (SLOW, [8 * [2.4], 8 * [5.0]], False),
        (8 * [5.8], [8 * [1.4], 8 * [2.4]], True),
        (8 * [5.6], [8 * [1.4], 8 * [2.4]], False),
        # where too few others have taken enough steps, the machine may be
        (SLOW, [FEW, []], False),  # the others were just built
        (SLOW, [FAST, FEW, FEW], False),  # one of three is less than half
        (SLOW, [FAST, FEW], True),
        (SLOW, [FEW, FEW, FAST, FAST], True),
    ],
)
def test_one_is_named_that_is_slow_now_and_slower_than_half_of_the_others_or_more(its_s, others_s, named):
    its_own, *of_others = complaints(its_s, *others_s)
    assert (its_own is not None) == named
    assert of_others == [None] * len(others_s)


def test_one_whose_others_are_built_anew_is_not_named_before_they_have_taken_steps():
    slots = make_slots(3, 1)
    named = []
    for slot in slots:  # on a busy machine, one after the other ends its episode
        slot.steps_s.extend(SLOW)
        named.append(slow_reason(slot, slots, 2.0))
        slot.steps_s.clear()  # for another reason, such as a deadline
    assert named == [None, None, None]


def test_one_that_is_as_slow_after_it_was_built_anew_is_named_again_only_once_it_has_been_fast():
    (slot,) = make_slots(1, 1)
    named = []
    for its_s in (4.8, 4.8, 4.8, 0.3, 4.8, 4.8):
        slot.steps_s.extend([its_s] * 16)
        named.append(slow_reason(slot, [slot], 2.0) is not None)
        slot.steps_s.clear()
    assert named == [True, False, False, False, True, False]


def test_one_whose_others_are_all_lost_is_as_one_that_is_alone():
    slow, lost = slots = make_slots(2, 1)
    slow.steps_s.extend(SLOW)
    assert slow_reason(slow, slots, 2.0) is None
    lost.state = SlotState.LOST
    assert slow_reason(slow, slots, 2.0) is not None


@pytest.mark.parametrize(("slow_step_s", "replaced"), [(1e-9, 1), (None, 0), (600.0, 0)])
def test_a_pool_of_one_that_is_always_slow_builds_it_anew_once_and_its_episodes_count(slow_step_s, replaced, caplog):
    async def scenario(pool):
        for task in fake_tasks(5):
            async with pool.lease(task) as env:
                await env.reset(task)
                for _ in range(8):
                    await env.step(Wait())
        await until(lambda: pool.states()["idle"] == 1)

    pool = make_pool(slow_step_s=slow_step_s)
    with_pool(pool, scenario)
    counters = pool.counters()
    assert counters["env/episodes"] == 5
    assert counters["env/slow"] == counters["env/recycled"] == replaced
    assert counters["env/restarts"] == sum(value for name, value in counters.items() if "fault" in name) == 0
    assert ("is slow and is built anew: its steps take" in caplog.text) == bool(replaced)
