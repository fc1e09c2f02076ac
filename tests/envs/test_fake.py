"""The desktop in memory and its faults."""

import io
import math
from itertools import combinations

import pytest
from PIL import Image

from arpo.agent.actions import Click, Fail, Finished, TypeText, Wait
from arpo.envs.contract import check_env
from arpo.envs.fake import COLORS, FakeDesktop, fake_tasks, make_scene
from arpo.errors import ConfigError, EnvError, TaskFormatError
from arpo.types import Task
from tests.envs.planned_faults import Fault, Faults, FaultyDesktop

ALL_KINDS = ("click", "sequence", "type", "infeasible")


def pixel(png, point):
    with Image.open(io.BytesIO(png)) as image:
        return image.convert("RGB").getpixel(point)


@pytest.mark.parametrize("task", fake_tasks(8, seed=5, kinds=ALL_KINDS), ids=lambda task: task.id)
def test_it_keeps_the_contract_on_every_kind_of_task(task):
    check_env(FakeDesktop(), task)


def test_tasks_are_different_and_the_same_for_the_same_seed():
    assert fake_tasks(30, seed=1) == fake_tasks(30, seed=1)
    ids = [task.id for seed in (0, 1) for task in fake_tasks(30, seed=seed)]
    assert len(set(ids)) == 60


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


def test_the_field_shows_its_focus_and_what_was_typed():
    env = FakeDesktop()
    blank = env.reset(fake_tasks(1, kinds=("type",))[0]).screenshot
    scene = make_scene("type", 0)
    corner = (scene.field.left, scene.field.top)
    focused = env.step(Click(*scene.field.center)).observation.screenshot
    assert (pixel(blank, corner), pixel(focused, corner)) == ((170, 170, 170), (0, 0, 0))
    assert env.step(TypeText(scene.text)).observation.screenshot != focused


def test_the_layout_depends_on_the_seed():
    first, second = (make_scene("click", seed).buttons for seed in (0, 1))
    assert [button.center for button in first] != [button.center for button in second]


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


def test_text_without_focus_goes_nowhere():
    env = FakeDesktop()
    env.reset(fake_tasks(1, kinds=("type",))[0])
    scene = make_scene("type", 0)
    env.step(TypeText(scene.text))
    assert env.evaluate() == 0.0
    env.step(Click(*scene.field.center))
    env.step(TypeText(scene.text))
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
    env = FaultyDesktop(Faults(plan=[Fault("error", "step", number=1)]))
    env.reset(fake_tasks(1)[0])
    env.step(Wait())
    with pytest.raises(EnvError, match="planned fault") as caught:
        env.step(Wait())
    assert caught.value.kind == "step"
    env.step(Wait())


def test_planned_garbage_is_no_screenshot_and_no_reward():
    plan = [Fault("garbage", "step"), Fault("garbage", "evaluate")]
    env = FaultyDesktop(Faults(plan=plan))
    env.reset(fake_tasks(1)[0])
    assert not env.step(Wait()).observation.screenshot.startswith(b"\x89PNG")
    assert math.isnan(env.evaluate())


def test_a_planned_screenshot_without_all_its_pixels_has_the_right_checksums():
    env = FaultyDesktop(Faults(plan=[Fault("undecodable", "step")]))
    env.reset(fake_tasks(1)[0])
    png = env.step(Wait()).observation.screenshot
    Image.open(io.BytesIO(png)).verify()
    with pytest.raises(OSError, match="truncated"):
        Image.open(io.BytesIO(png)).load()


def test_a_fault_can_be_limited_to_the_first_attempts_at_a_task():
    env = FaultyDesktop(Faults(plan=[Fault("error", "reset", attempts=2)]))
    task, other = fake_tasks(2)
    for _ in range(2):
        with pytest.raises(EnvError, match="planned"):
            env.reset(task)
    env.reset(task)
    with pytest.raises(EnvError, match="planned"):
        env.reset(other)


def test_with_a_ledger_the_attempts_of_all_environments_count_together(tmp_path):
    faults = Faults(plan=[Fault("error", "reset", attempts=1)], ledger=str(tmp_path))
    (task,) = fake_tasks(1)
    with pytest.raises(EnvError, match="planned"):
        FaultyDesktop(faults).reset(task)
    FaultyDesktop(faults).reset(task)


def faulty_resets(env, tasks):
    failed = []
    for task in tasks:
        try:
            env.reset(task)
        except EnvError:
            failed.append(task.id)
    return failed


def test_the_probability_of_a_fault_is_drawn_from_seed_task_and_attempt():
    plan = [Fault("error", "reset", probability=0.3)]
    tasks = fake_tasks(200)
    failed = faulty_resets(FaultyDesktop(Faults(plan=plan)), tasks)
    assert 40 <= len(failed) <= 80  # 200 draws at 0.3: 60, standard deviation 6.5
    in_another_order = faulty_resets(FaultyDesktop(Faults(plan=plan)), tasks[::-1])
    assert set(in_another_order) == set(failed)
    assert set(faulty_resets(FaultyDesktop(Faults(plan=plan, seed=1)), tasks)) != set(failed)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FakeDesktop(width=10), "at least"),
        (lambda: fake_tasks(-1), "count"),
        (lambda: fake_tasks(1, kinds=("swim",)), "kinds"),
    ],
)
def test_wrong_arguments_are_named(build, message):
    with pytest.raises(ConfigError, match=message):
        build()
