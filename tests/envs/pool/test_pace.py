"""An environment that is slow in every step, and misses no deadline, is noticed and built anew."""

from functools import partial

import pytest

from arpo.agent.actions import Wait
from arpo.envs.fake import FakeDesktop, fake_tasks
from arpo.envs.pool.slots import make_slots, slow_reason
from tests.envs.pool.support import make_pool, until, with_pool


def one_desktop(path):
    """A desktop that can be built once for each time that a file is put there."""
    try:
        path.unlink()
    except FileNotFoundError as error:
        raise OSError("no machine") from error
    return FakeDesktop()


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


def test_where_too_few_others_have_taken_enough_steps_the_machine_may_be_slow_and_none_is_named():
    slow, few, fast = [6.0] * 8, [6.0] * 7, [0.3] * 8
    assert complaints(slow, few, few) == [None, None, None]  # the others were just built
    assert complaints(slow, fast, few, few) == [None] * 4  # one of three is less than half
    assert complaints(slow, fast, few)[0] is not None
    assert complaints(slow, few, few, fast, fast)[0] is not None


def test_one_whose_others_are_built_anew_is_not_named_before_they_have_taken_steps():
    slots = make_slots(3, 1)
    named = []
    for slot in slots:  # on a busy machine, one after the other ends its episode
        slot.steps_s.extend([6.0] * 8)
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


def test_an_environment_is_not_built_anew_while_the_others_of_its_pool_have_taken_no_step():
    async def scenario(pool):
        for task in fake_tasks(2):
            async with pool.lease(task) as env:
                await env.reset(task)
                for _ in range(8):
                    await env.step(Wait())
            await until(lambda: pool.states()["idle"] == 3)
        return pool.counters()

    counters = with_pool(make_pool(size=3, slow_step_s=1e-9), scenario)
    assert counters["env/episodes"] == 2
    assert counters["env/slow"] == counters["env/recycled"] == 0


def test_one_whose_others_are_all_lost_is_as_one_that_is_alone(tmp_path):
    path = tmp_path / "only one"
    path.touch()

    async def scenario(pool):
        await until(lambda: pool.states()["lost"] == 1)
        path.touch()
        (task,) = fake_tasks(1)
        async with pool.lease(task) as env:
            await env.reset(task)
            for _ in range(8):
                await env.step(Wait())
        await until(lambda: pool.states()["idle"] == 1)
        return pool.counters()

    pool = make_pool(partial(one_desktop, path), size=2, slow_step_s=1e-9, reset_timeout_s=0.1)
    assert with_pool(pool, scenario)["env/slow"] == 1
