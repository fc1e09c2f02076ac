"""An environment that is slow in every step, and misses no deadline, is noticed and built anew."""

import pytest

from arpo.agent.actions import Wait
from arpo.envs.fake import fake_tasks
from arpo.envs.pool.slots import Pace, make_slots
from tests.envs.pool.support import make_pool, until, with_pool


def complaints(*steps_s, slow_step_s=2.0):
    """What is said of each environment, by the seconds of its last steps."""
    slots = make_slots(len(steps_s), 1)
    pace = Pace(slow_step_s)
    for slot, each in zip(slots, steps_s, strict=True):
        pace.add(slot, each)
    return [pace.complaint(slot) for slot in slots]


def test_a_slow_one_is_named_with_the_pace_of_the_others_where_there_are_some():
    words = "its steps take 2.1 s in the median, more than slow_step_s=2"
    assert complaints([2.1] * 8) == [words]
    others = ([0.3] * 8, [0.4] * 8, [0.5] * 16)
    assert complaints([2.1] * 8, *others) == [f"{words}, those of the others 0.4 s", None, None, None]


@pytest.mark.parametrize(
    "steps_s",
    [
        [4.8] * 7,  # too few to say
        [0.3] * 9 + [59.0] * 7,  # a few long texts
        [4.8] * 16 + [0.3] * 16,  # slow long ago
        [2.0] * 8,  # as slow as may be
    ],
)
def test_one_that_is_fast_by_now_is_left_alone(steps_s):
    assert complaints(steps_s, [0.1] * 8) == [None, None]


def test_where_all_are_slow_the_machine_is_and_none_is_replaced():
    assert complaints([6.0] * 8, [2.4] * 8, [5.0] * 8) == [None, None, None]
    # the median of the others is 1.9 s, three times that 5.7 s
    assert complaints([5.8] * 8, [1.4] * 8, [2.4] * 8)[0] is not None
    assert complaints([5.6] * 8, [1.4] * 8, [2.4] * 8)[0] is None


def test_one_that_is_as_slow_after_it_was_built_anew_is_named_again_only_once_it_has_been_fast():
    (slot,) = make_slots(1, 1)
    pace = Pace(2.0)
    named = []
    for its_s in (4.8, 4.8, 4.8, 0.3, 4.8, 4.8):
        pace.add(slot, [its_s] * 16)
        named.append(pace.complaint(slot) is not None)
        pace.forget(slot)
    assert named == [True, False, False, False, True, False]


@pytest.mark.parametrize(("slow_step_s", "replaced"), [(1e-9, 1), (None, 0), (600.0, 0)])
def test_a_pool_of_one_that_is_always_slow_builds_it_anew_once_and_its_episodes_count(slow_step_s, replaced, caplog):
    async def scenario(pool):
        for task in fake_tasks(5):
            async with pool.lease(task) as env:
                await env.reset(task)
                for _ in range(8):
                    await env.step(Wait())
        await until(lambda: pool.states()["idle"] == 1)
        return pool.counters()

    counters = with_pool(make_pool(slow_step_s=slow_step_s), scenario)
    assert counters["env/episodes"] == 5
    assert counters["env/slow"] == counters["env/recycled"] == replaced
    assert counters["env/restarts"] == sum(value for name, value in counters.items() if "fault" in name) == 0
    assert ("is slow and is built anew: its steps take" in caplog.text) == bool(replaced)
