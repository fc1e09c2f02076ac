"""The desktop in memory and its faults."""

import io
from itertools import combinations

import pytest
from PIL import Image

from arpo.agent.actions import Call, Click, Fail, Finished, TypeText, Wait
from arpo.envs.contract import check_env
from arpo.envs.fake import COLORS, FUNCTIONS, FakeDesktop, fake_functions, fake_tasks, make_scene
from arpo.errors import EnvError, TaskFormatError
from arpo.types import Task
from tests.envs.planned_faults import Fault, Faults, FaultyDesktop

ALL_KINDS = ("click", "sequence", "type", "infeasible")


def pixel(png, point):
    with Image.open(io.BytesIO(png)) as image:
        return image.convert("RGB").getpixel(point)


@pytest.mark.parametrize("task", fake_tasks(8, seed=5, kinds=ALL_KINDS), ids=lambda task: task.id)
def test_it_keeps_the_contract_on_every_kind_of_task(task):
    check_env(FakeDesktop(), task)


@pytest.mark.parametrize("task", fake_tasks(8, seed=5, kinds=ALL_KINDS), ids=lambda task: task.id)
def test_it_keeps_the_contract_with_functions_too(task):
    check_env(FakeDesktop(functions=True), task)


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


def test_a_press_does_what_a_click_on_the_button_does():
    clicking, calling = FakeDesktop(), FakeDesktop(functions=True)
    for task in fake_tasks(2, kinds=("sequence",)):
        clicking.reset(task)
        calling.reset(task)
        for button in make_scene("sequence", task.config["seed"]).buttons[:2]:
            clicked = clicking.step(Click(*button.center))
            assert calling.step(press(button.color)) == clicked
        assert clicked.terminated
        assert clicking.evaluate() == calling.evaluate() == 1.0


def test_a_press_of_the_wrong_button_ends_the_episode_as_a_click_does():
    env = FakeDesktop(functions=True)
    env.reset(fake_tasks(1, kinds=("click",))[0])
    assert env.step(press(make_scene("click", 0).buttons[1].color)).terminated
    assert env.evaluate() == 0.0


def test_what_is_filled_in_takes_the_place_of_what_was_typed():
    env, scene = FakeDesktop(functions=True), make_scene("type", 0)
    env.reset(fake_tasks(1, kinds=("type",))[0])
    env.step(Click(*scene.field.center))
    env.step(TypeText("wrong"))
    filled = env.step(fill(scene.text)).observation
    assert env.evaluate() == 1.0
    typing = FakeDesktop()
    typing.reset(fake_tasks(1, kinds=("type",))[0])
    typing.step(Click(*scene.field.center))
    assert typing.step(TypeText(scene.text)).observation == filled


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (Call("fake.jump"), "there is no function"),
        (Call("fake.press"), "takes label, got nothing"),
        (Call("fake.press", {"label": 3}), "must be a str"),
        (press("mauve"), "finds nothing of that kind"),
        (fill("cat"), "finds nothing of that kind"),  # there is no field
    ],
)
def test_a_call_that_is_refused_does_nothing_and_the_log_says_why(call, said, caplog):
    env = FakeDesktop(functions=True)
    before = env.reset(fake_tasks(1, kinds=("click",))[0])
    with caplog.at_level("INFO"):
        after = env.step(call)
    assert (after.observation, after.terminated) == (before, False)
    assert said in caplog.text
    assert env.evaluate() == 0.0


def test_without_functions_every_call_does_nothing():
    env = FakeDesktop()
    before = env.reset(fake_tasks(1, kinds=("click",))[0])
    for color in COLORS:
        assert env.step(press(color)).observation == before
    assert FUNCTIONS


def test_tasks_are_different_and_the_same_for_the_same_seed():
    assert fake_tasks(30, seed=1) == fake_tasks(30, seed=1)
    ids = [task.id for seed in (0, 1) for task in fake_tasks(30, seed=seed)]
    assert len(set(ids)) == 60
    first, second = (make_scene("click", seed).buttons for seed in (0, 1))
    assert [button.center for button in first] != [button.center for button in second]


def test_buttons_are_where_the_screenshot_shows_them():
    (task,) = fake_tasks(1, kinds=("click",))
    screenshot = FakeDesktop().reset(task).screenshot
    for button in make_scene("click", 0).buttons:
        assert pixel(screenshot, button.center) == COLORS[button.color]


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


def test_both_ends_of_a_button_are_on_it_and_the_next_pixel_is_not():
    button = make_scene("click", 0).buttons[0]
    assert button.holds(button.left, button.top)
    assert button.holds(button.right, button.bottom)
    for x, y in ((button.left - 1, button.top), (button.right + 1, button.top)):
        assert not button.holds(x, y)
    for x, y in ((button.left, button.top - 1), (button.left, button.bottom + 1)):
        assert not button.holds(x, y)


def test_the_field_shows_its_focus_and_what_was_typed_into_it():
    env = FakeDesktop()
    blank = env.reset(fake_tasks(1, kinds=("type",))[0]).screenshot
    scene = make_scene("type", 0)
    corner = (scene.field.left, scene.field.top)
    assert env.step(TypeText(scene.text)).observation.screenshot == blank  # without focus it goes nowhere
    assert env.evaluate() == 0.0
    focused = env.step(Click(*scene.field.center)).observation.screenshot
    assert (pixel(blank, corner), pixel(focused, corner)) == ((170, 170, 170), (0, 0, 0))
    assert env.step(TypeText(scene.text)).observation.screenshot != focused
    assert env.evaluate() == 1.0


def test_a_click_on_the_wrong_button_ends_the_episode_without_success():
    env = FakeDesktop()
    env.reset(fake_tasks(1, kinds=("click",))[0])
    wrong = make_scene("click", 0).buttons[1]
    assert env.step(Click(*wrong.center)).terminated
    assert env.evaluate() == 0.0
    with pytest.raises(EnvError, match="terminated"):
        env.step(Wait())


def test_a_click_on_the_background_changes_nothing():
    env = FakeDesktop()
    before = env.reset(fake_tasks(1, kinds=("click",))[0])
    after = env.step(Click(0, 0))
    assert (after.observation, after.terminated) == (before, False)


def test_a_sequence_needs_its_order():
    env = FakeDesktop()
    env.reset(fake_tasks(1, kinds=("sequence",))[0])
    first, second, _ = make_scene("sequence", 0).buttons
    assert env.step(Click(*second.center)).terminated
    assert env.evaluate() == 0.0

    env.reset(fake_tasks(1, kinds=("sequence",))[0])
    halfway = env.step(Click(*first.center))
    assert not halfway.terminated
    assert pixel(halfway.observation.screenshot, first.center) not in COLORS.values()
    assert env.step(Click(*second.center)).terminated
    assert env.evaluate() == 1.0


def test_an_infeasible_task_wants_to_be_declared_so():
    env = FakeDesktop()
    env.reset(fake_tasks(1, kinds=("infeasible",))[0])
    env.step(Finished())
    assert env.evaluate() == 0.0
    env.step(Fail())
    assert env.evaluate() == 1.0


def test_a_task_without_instruction_gets_it_on_reset():
    config = {"kind": "type", "seed": 3}
    told = FakeDesktop().reset(Task("untold", "", config=config)).instruction
    assert told == make_scene("type", 3).instruction


def test_a_task_of_another_desktop_is_refused():
    with pytest.raises(TaskFormatError, match=r"config\.kind"):
        FakeDesktop().reset(Task("osworld/1", "open the file", config={"evaluator": {}}))


def test_a_planned_error_comes_in_its_call_and_only_once():
    env = FaultyDesktop(Faults(plan=[Fault("error", "step")]))
    env.reset(fake_tasks(1)[0])
    with pytest.raises(EnvError, match="planned fault in step"):
        env.step(Wait())
    env.step(Wait())


def test_the_probability_of_a_fault_is_drawn_from_seed_task_and_attempt():
    def failed(tasks, seed=0):
        env, names = FaultyDesktop(Faults([Fault("error", "reset", probability=0.3)], seed=seed)), set()
        for task in tasks:
            try:
                env.reset(task)
            except EnvError:
                names.add(task.id)
        return names

    tasks = fake_tasks(200)
    assert 40 <= len(failed(tasks)) <= 80  # 200 draws at 0.3: 60, standard deviation 6.5
    assert failed(tasks[::-1]) == failed(tasks) != failed(tasks, seed=1)
