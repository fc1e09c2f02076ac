"""What is drawn is checked where it must be: on the target, in the right colour, inside the picture."""

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from arpo.agent.actions import Click, DoubleClick, Drag, Finished, Hover, RightClick, Scroll, TypeText, Wait
from arpo.agent.render import render
from arpo.display.drawing import ACTION, ERROR, GOOD, draw_action, draw_parse_error, film_strip, step_picture
from arpo.types import Outcome, Trajectory
from tests.callbacks.support import make_png, make_step, make_trajectory

SMALL, LARGE = (168, 210), (1920, 1080)


def blank(size: tuple[int, int], color: tuple[int, int, int] = (255, 255, 255)) -> Image.Image:
    return Image.new("RGB", size, color)


def marked(picture: Image.Image, color: tuple[int, int, int] = ACTION) -> np.ndarray:
    """The (x, y) of every pixel of a colour."""
    rows, columns = np.nonzero((np.asarray(picture) == color).all(axis=-1))
    return np.stack([columns, rows], axis=1)


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("action", [Click, DoubleClick, Hover])
def test_a_pointer_action_is_drawn_around_its_point(action, size) -> None:
    point = (round(size[0] * 0.3), round(size[1] * 0.6))
    pixels = marked(draw_action(blank(size), action(*point)))
    if action is Hover:  # its name stands right of it
        pixels = pixels[pixels[:, 0] <= point[0]]
        assert abs(np.median(pixels[:, 1]) - point[1]) < 0.05 * size[1]
    else:
        middle = (pixels.min(axis=0) + pixels.max(axis=0)) / 2
        assert np.abs(middle - point).max() <= 1


def test_marks_grow_with_the_picture_so_that_they_can_be_seen_on_a_large_screen() -> None:
    def extent(size: tuple[int, int]) -> int:
        pixels = marked(draw_action(blank(size), Click(size[0] / 2, size[1] / 2)))
        return int(np.ptp(pixels[:, 0]))

    # radius 9 at up to 400 pixels; 1920 / 400 = 4.8 times that on the large screen
    assert extent(SMALL) == pytest.approx(20, abs=3)
    assert extent(LARGE) == pytest.approx(4.8 * 20, abs=8)


def test_a_double_click_has_a_ring_more_than_a_click() -> None:
    click, double = (marked(draw_action(blank(SMALL), kind(80, 100))) for kind in (Click, DoubleClick))
    assert np.ptp(double[:, 0]) > 1.3 * np.ptp(click[:, 0])


def test_a_mark_can_be_seen_on_its_own_colour() -> None:
    picture = draw_action(blank(SMALL, ACTION), Click(80, 100))
    assert len(marked(picture, (255, 255, 255))) > 20


def test_a_drag_leads_from_its_start_to_its_end() -> None:
    pixels = marked(draw_action(blank((400, 400)), Drag(50, 300, 350, 100)))
    for point in ((50, 300), (200, 200), (350, 100)):
        assert np.abs(pixels - point).sum(axis=1).min() <= 8, point


def test_a_drag_that_goes_nowhere_can_be_drawn() -> None:
    assert len(marked(draw_action(blank(SMALL), Drag(50, 50, 50, 50)))) > 0


@pytest.mark.parametrize(
    ("direction", "axis", "sign"), [("down", 1, 1), ("up", 1, -1), ("right", 0, 1), ("left", 0, -1)]
)
def test_the_head_of_a_scroll_arrow_is_where_the_wheel_turns(direction, axis, sign) -> None:
    pixels = marked(draw_action(blank((400, 400)), Scroll(direction, 200, 200))) - 200
    pixels = pixels[np.abs(pixels).max(axis=1) <= 22]  # without the word beside it
    across = np.abs(pixels[:, 1 - axis])
    widest = pixels[across >= 3][:, axis]
    assert np.sign(np.median(widest)) == sign


def test_a_scroll_without_a_point_is_drawn_in_the_middle() -> None:
    assert np.array_equal(
        draw_action(blank((400, 400)), Scroll("down")), draw_action(blank((400, 400)), Scroll("down", 200, 200))
    )


@pytest.mark.parametrize("action", [TypeText("hello"), TypeText("ä 語 \ud83d " * 100), Wait(), Finished()])
@pytest.mark.parametrize("size", [(20, 20), SMALL, LARGE])
def test_what_has_no_place_is_a_line_of_text_in_the_lower_left_corner(action, size) -> None:
    pixels = marked(draw_action(blank(size), action))
    assert pixels[:, 1].max() == size[1] - 1
    assert pixels[:, 0].min() == 0
    assert (pixels[:, 1] < size[1] / 2).sum() == 0 or size == (20, 20)


def test_a_short_text_hides_only_a_part_of_the_lower_edge() -> None:
    assert marked(draw_action(blank((400, 300)), Wait()))[:, 0].max() < 100


def test_the_tag_of_a_right_click_at_the_edge_stays_inside() -> None:
    pixels = marked(draw_action(blank(SMALL), RightClick(165, 100)))
    assert pixels[:, 0].min() < 150  # the word went to the left


def test_a_parse_error_is_framed_in_red() -> None:
    picture = np.asarray(draw_parse_error(blank(SMALL), "no_action"))
    for edge in (picture[1], picture[-2], picture[:, 1], picture[:, -2]):
        assert (edge == ERROR).all(axis=-1).mean() > 0.5


def test_drawing_leaves_the_screenshot_as_it_was() -> None:
    screenshot = blank(SMALL)
    draw_action(screenshot, Click(80, 100))
    draw_parse_error(screenshot, "empty")
    assert len(marked(screenshot)) == len(marked(screenshot, ERROR)) == 0


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_step_shows_its_action_at_the_same_place_after_scaling(size) -> None:
    x, y = round(size[0] * 0.75), round(size[1] * 0.25)
    picture = step_picture(make_step(action=Click(x, y), size=size), make_png(size), width=400)
    assert 300 <= picture.width <= 500
    pixels = marked(picture)
    middle = (pixels.min(axis=0) + pixels.max(axis=0)) / 2
    factor = picture.width / size[0]
    assert np.abs(middle - ((x + 0.5) * factor, (y + 0.5) * factor)).max() <= 1.5


def test_a_step_shows_all_of_its_actions() -> None:
    step = make_step(action=Click(20, 30))
    both = replace(step, action=f"{step.action}\n{render(Click(150, 180))}")
    one, two = (len(marked(step_picture(each, make_png(SMALL), width=168))) for each in (step, both))
    assert two > 1.5 * one


def test_a_small_screen_grows_by_a_whole_factor() -> None:
    # 400 / 168 = 2.38, rounded 2
    assert step_picture(make_step(action=Wait()), make_png(SMALL), width=400).size == (336, 420)


def strip_of(trajectory: Trajectory, success_threshold: float = 0.5, **kwargs: int) -> Image.Image:
    return film_strip(trajectory, success_threshold=success_threshold, **kwargs)


def test_a_strip_holds_every_step_and_the_last_screen() -> None:
    trajectory = make_trajectory([Click(20, 30), TypeText("a"), Finished()])
    strip = strip_of(trajectory, columns=5, rows=1, width=168)
    # 4 pictures of 168 with gaps of 10 around them: 10 + 4 * 178
    assert strip.width == 722


def test_a_long_episode_wraps_and_its_middle_is_left_out() -> None:
    trajectory = make_trajectory([Wait()] * 9 + ["no_action"], task_reward=0.0, outcome=Outcome.PARSE_ERROR)
    short = strip_of(trajectory, columns=3, rows=2, width=168)
    whole = strip_of(trajectory, columns=3, rows=4, width=168)
    assert short.width == whole.width == 10 + 3 * 178
    assert short.height < whole.height
    assert len(marked(short, ERROR)) > 0  # the last step is among those shown


def test_a_strip_without_a_last_screen_or_an_instruction_can_be_drawn() -> None:
    assert strip_of(make_trajectory([Wait()], last=False, instruction=""), width=168).width == 10 + 178


def test_half_a_surrogate_pair_in_an_instruction_can_be_drawn() -> None:
    strip_of(make_trajectory([Wait()], instruction="click \ud83d ä 語"))


def test_a_strip_survives_a_trip_through_a_file() -> None:
    buffer = io.BytesIO()
    strip_of(make_trajectory([Click(1, 2)]), width=168).save(buffer, "PNG")
    assert len(buffer.getvalue()) < 60_000


@pytest.mark.parametrize(("reward", "color"), [(0.7, ERROR), (0.75, ERROR), (0.8, GOOD)])
def test_the_ending_is_green_above_the_threshold_of_the_run(reward: float, color) -> None:
    strip = strip_of(make_trajectory([Wait()], task_reward=reward), success_threshold=0.75, width=168)
    assert len(marked(strip, color)) > 0
    assert len(marked(strip, {ERROR: GOOD, GOOD: ERROR}[color])) == 0
