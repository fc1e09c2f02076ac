"""The phone in memory."""

import io

import pytest
from PIL import Image

from arpo.agent.actions import Click, Drag, Finished, Press, TypeText
from arpo.agent.phone import Back, Home, LongPress, OpenApp, Swipe
from arpo.envs.contract import check_env
from arpo.envs.fake import COLORS
from arpo.envs.fake_phone import HEIGHT, WIDTH, FakePhone, fake_phone_tasks, make_phone
from arpo.errors import EnvError, TaskFormatError
from arpo.types import Task

TO_THE_SECOND, TO_THE_FIRST = Swipe(70, 56, 14, 56), Swipe(14, 56, 70, 56)


def begun(seed):
    env = FakePhone()
    env.reset(fake_phone_tasks(seed + 1)[seed])
    return env, make_phone(seed)


def colors(png):
    with Image.open(io.BytesIO(png)) as image:
        assert image.size == (WIDTH, HEIGHT)
        return {name for name, color in COLORS.items() if color in image.convert("RGB").getdata()}


def icons(phone, page):
    return {icon.color for number, icon in phone.icons if number == page}


@pytest.mark.parametrize("task", fake_phone_tasks(8, seed=5), ids=lambda task: task.id)
def test_it_keeps_the_contract_on_every_kind_of_task(task):
    check_env(FakePhone(), task)


def test_tasks_are_different_and_the_same_for_the_same_seed_and_four_need_every_gesture():
    assert fake_phone_tasks(30, seed=1) == fake_phone_tasks(30, seed=1)
    assert len({task.id for seed in (0, 1) for task in fake_phone_tasks(30, seed=seed)}) == 60
    used = set()
    for task in fake_phone_tasks(4):
        env = FakePhone()
        env.reset(task)
        for action in env.solve():
            used.add(type(action))
            env.step(action)
        assert env.evaluate() == 1.0
    assert used == {Swipe, Click, TypeText, Back, Home, Finished}
    with pytest.raises(TaskFormatError, match=r"integer config\.seed"):
        FakePhone().reset(Task("t", "open red", config={"kind": "click"}))


@pytest.mark.parametrize("way", [TO_THE_SECOND, Drag(70, 20, 14, 90)], ids=str)
def test_a_swipe_turns_the_page_and_one_that_is_short_or_across_does_not(way):
    env, phone = begun(0)
    for action, page in (
        (Swipe(50, 56, 40, 56), 0), (Swipe(50, 100, 50, 10), 0), (way, 1), (TO_THE_SECOND, 1), (Home(), 0),
        (way, 1), (TO_THE_FIRST, 0),
    ):  # fmt: skip
        assert colors(env.step(action).observation.screenshot) == icons(phone, page)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_wrong_app_ends_the_episode_and_so_does_the_right_one_where_opening_it_is_all(seed):
    for right in (False, True):
        env, phone = begun(seed)
        page, icon = next((page, icon) for page, icon in phone.icons if (icon.color == phone.wanted) == right)
        if page:
            env.step(TO_THE_SECOND)
        for nothing in (LongPress(*icon.center), Click(*icon.center, button="right"), Press("enter"), Back()):
            assert not env.step(nothing).terminated
        opened = env.step(Click(*icon.center))
        assert colors(opened.observation.screenshot) == {icon.color}
        assert opened.terminated == (not right or not phone.word)
        assert env.evaluate() == float(right and not phone.word)
        if opened.terminated:
            with pytest.raises(EnvError, match="terminated"):
                env.step(Home())


@pytest.mark.parametrize(("button", "word", "reward"), [(Back(), "", 1.0), (Home(), "", 0.0), (Back(), "s", 0.0)])
def test_back_keeps_what_was_typed_and_home_drops_it(button, word, reward):
    env, phone = begun(1)
    empty = env.step(OpenApp(phone.wanted)).observation
    typed = env.step(TypeText(phone.word + word)).observation
    assert typed != empty
    assert colors(typed.screenshot) == {phone.wanted}
    left = env.step(button)
    assert colors(left.observation.screenshot) == icons(phone, 0)
    assert not left.terminated
    assert env.evaluate() == reward


def test_an_episode_may_begin_in_a_wrong_app_where_taps_find_no_icon():
    env, phone = begun(2)
    assert phone.app != phone.wanted
    shown = env.step(TO_THE_SECOND).observation
    assert colors(shown.screenshot) == {phone.app}
    assert all(env.step(Click(*icon.center)).observation == shown for _, icon in phone.icons)
    assert colors(env.step(Home()).observation.screenshot) == icons(phone, 0)
