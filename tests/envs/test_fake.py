"""The desktop in memory."""

import io
from itertools import combinations
from typing import get_args

import pytest
from PIL import Image

from arpo.agent.actions import Call, Click, Fail, Finished, TypeText, Wait
from arpo.envs.contract import check_env
from arpo.envs.fake import COLORS, FakeDesktop, Kind, fake_functions, fake_tasks, make_scene
from arpo.errors import EnvError, TaskFormatError
from arpo.types import Task


def pixel(png, point):
    with Image.open(io.BytesIO(png)) as image:
        return image.convert("RGB").getpixel(point)


def begun(kind, **options):
    """A desktop with the first task of a kind, its first observation, and its scene."""
    env = FakeDesktop(**options)
    return env, env.reset(fake_tasks(1, kinds=(kind,))[0]), make_scene(kind, 0)


@pytest.mark.parametrize("functions", [False, True])
@pytest.mark.parametrize("task", fake_tasks(8, seed=5, kinds=get_args(Kind)), ids=lambda task: task.id)
def test_it_keeps_the_contract_on_every_kind_of_task(task, functions):
    check_env(FakeDesktop(functions=functions), task)


def press(label):
    return Call("fake.press", {"label": label})


def fill(text):
    return Call("fake.fill", {"text": text})


def test_with_functions_a_solution_calls_them_and_without_it_does_not():
    for task, calls in zip(fake_tasks(3), ([press], [press, press], [fill]), strict=True):
        plain, env = FakeDesktop(), FakeDesktop(functions=True)
        assert plain.reset(task) == env.reset(task)
        assert not any(isinstance(action, Call) for action in plain.solve())
        solution = [action for action in env.solve() if not isinstance(action, Finished)]
        assert [action.function for action in solution] == [each("").function for each in calls]
    assert {function.name for function in fake_functions()} == {"fake.press", "fake.fill"}


@pytest.mark.parametrize(
    ("kind", "order", "reward"),
    [("sequence", [0, 1], 1.0), ("sequence", [1], 0.0), ("click", [0], 1.0), ("click", [1], 0.0)],
)
def test_a_click_on_a_button_or_a_press_of_it_ends_the_episode_where_it_is_the_last_or_the_wrong_one(
    kind, order, reward
):
    (clicking, _, scene), (calling, _, _) = begun(kind), begun(kind, functions=True)
    for number in order:
        button = scene.buttons[number]
        clicked = clicking.step(Click(*button.center))
        assert calling.step(press(button.color)) == clicked
        assert clicked.terminated == (number == order[-1])
        assert pixel(clicked.observation.screenshot, button.center) not in COLORS.values()
    assert clicking.evaluate() == calling.evaluate() == reward
    with pytest.raises(EnvError, match="terminated"):
        clicking.step(Wait())


def test_what_is_filled_in_takes_the_place_of_what_was_typed():
    (env, _, scene), (typing, _, _) = begun("type", functions=True), begun("type")
    env.step(Click(*scene.field.center))
    env.step(TypeText("wrong"))
    filled = env.step(fill(scene.text)).observation
    assert env.evaluate() == 1.0
    typing.step(Click(*scene.field.center))
    assert typing.step(TypeText(scene.text)).observation == filled


@pytest.mark.parametrize(
    ("functions", "action", "said"),
    [
        (True, Call("fake.jump"), "there is no function"),
        (True, Call("fake.press"), "takes label, got nothing"),
        (True, Call("fake.press", {"label": 3}), "must be a str"),
        (True, press("mauve"), "finds nothing of that kind"),
        (True, fill("cat"), "finds nothing of that kind"),  # there is no field
        (False, press(make_scene("click", 0).order[0]), "there is no function"),
        (False, Click(0, 0), ""),  # on the background
    ],
)
def test_a_call_that_is_refused_does_nothing_and_the_log_says_why(functions, action, said, caplog):
    env, before, _ = begun("click", functions=functions)
    with caplog.at_level("INFO"):
        after = env.step(action)
    assert (after.observation, after.terminated) == (before, False)
    assert said in caplog.text
    assert env.evaluate() == 0.0


def test_tasks_are_different_and_the_same_for_the_same_seed():
    assert fake_tasks(30, seed=1) == fake_tasks(30, seed=1)
    ids = [task.id for seed in (0, 1) for task in fake_tasks(30, seed=seed)]
    assert len(set(ids)) == 60
    first, second = (make_scene("click", seed).buttons for seed in (0, 1))
    assert [button.center for button in first] != [button.center for button in second]


def test_buttons_are_where_the_screenshot_shows_them_to_their_last_pixels():
    _, first, scene = begun("click")
    for button in scene.buttons:
        assert pixel(first.screenshot, button.center) == COLORS[button.color]
        for x, y in ((button.left, button.top), (button.right, button.bottom)):
            assert button.holds(x, y)
            assert pixel(first.screenshot, (x, y)) == COLORS[button.color]
        beside = [(button.left - 1, button.top), (button.right + 1, button.top)]
        for x, y in (*beside, (button.left, button.top - 1), (button.left, button.bottom + 1)):
            assert not button.holds(x, y)


@pytest.mark.parametrize("size", [(64, 48), (112, 84), (320, 200)])
def test_buttons_lie_apart_and_inside_the_screen_and_are_two_thirds_of_a_cell(size):
    width, height = size
    for seed in range(50):
        scene = make_scene("type", seed, width, height)
        boxes = [*scene.buttons, scene.field]
        assert len(boxes) == 4
        for box in boxes:
            assert 0 < box.left < box.right < width
            assert 0 < box.top < box.bottom < height
            assert box.right - box.left + 1 == 2 * (width // 4) // 3  # four columns of cells, three rows
            assert box.bottom - box.top + 1 == 2 * (height // 3) // 3
        for one, two in combinations(boxes, 2):
            beside = one.right < two.left or two.right < one.left
            assert beside or one.bottom < two.top or two.bottom < one.top


def test_the_field_shows_its_focus_and_what_was_typed_into_it():
    env, first, scene = begun("type")
    blank, corner = first.screenshot, (scene.field.left, scene.field.top)
    assert env.step(TypeText(scene.text)).observation.screenshot == blank  # without focus it goes nowhere
    assert env.evaluate() == 0.0
    focused = env.step(Click(*scene.field.center)).observation.screenshot
    assert (pixel(blank, corner), pixel(focused, corner)) == ((170, 170, 170), (0, 0, 0))
    assert env.step(TypeText(scene.text)).observation.screenshot != focused
    assert env.evaluate() == 1.0


def test_an_infeasible_task_wants_to_be_declared_so():
    env, _, _ = begun("infeasible")
    env.step(Finished())
    assert env.evaluate() == 0.0
    env.step(Fail())
    assert env.evaluate() == 1.0


def test_a_task_without_instruction_gets_it_on_reset_and_one_of_another_desktop_is_refused():
    shown = FakeDesktop().reset(Task("t", "", config={"kind": "type", "seed": 3})).instruction
    assert shown == make_scene("type", 3).instruction
    with pytest.raises(TaskFormatError, match=r"config\.kind"):
        FakeDesktop().reset(Task("osworld/1", "open the file", config={"evaluator": {}}))
