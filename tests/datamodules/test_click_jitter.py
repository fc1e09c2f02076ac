"""Demonstrations with jittered clicks: texts that mean nearly the same."""

import random
from dataclasses import replace
from statistics import fmean, pstdev

from arpo.agent.actions import Click
from arpo.agent.grammar import GRAMMARS
from arpo.agent.parser import parse_response
from arpo.datamodules.click_jitter import with_click_jitter
from arpo.types import Outcome, Step, Trajectory

UI_TARS = GRAMMARS["ui_tars"]

RESPONSES = ("Action: click(start_box='(60,2)')", "Thought: a name\nAction: type(content='ann')", "Action: wait()")


def demonstration(responses=RESPONSES):
    steps = tuple(Step(f"screen {number}", 140, 112, (), (), (), 0, text) for number, text in enumerate(responses))
    return Trajectory("demonstration-0/0/0", "t", "", "", 0, steps, Outcome.TERMINATED, 1.0, 0.0)


def clicks(across, down, count=2000, at=(60, 2)):
    rng, recorded = random.Random(0), demonstration([f"Action: click(start_box='({at[0]},{at[1]})')"])
    for _ in range(count):
        (action,) = parse_response(with_click_jitter(recorded, UI_TARS, (across, down), rng).steps[0].response).actions
        assert isinstance(action, Click)
        yield action


def test_clicks_are_spread_around_their_place_as_widely_as_asked_for():
    moved = list(clicks(across=3.0, down=0.0))
    across = [click.x for click in moved]
    assert abs(fmean(across) - 60) < 0.3
    assert abs(pstdev(across) - 3.0) < 0.2
    assert {click.y for click in moved} == {2}


def test_a_click_never_leaves_the_screen_at_its_top_or_left():
    down = [click.y for click in clicks(across=0.0, down=3.0)]
    assert min(down) == 0
    assert max(down) > 5
    across = [click.x for click in clicks(across=3.0, down=0.0, at=(2, 60))]
    assert min(across) == 0
    assert max(across) > 5


def test_what_is_no_click_and_all_that_is_not_the_text_stay():
    told = demonstration()
    moved = with_click_jitter(told, UI_TARS, (3.0, 3.0), random.Random(1))
    assert moved.steps[1:] == told.steps[1:]
    assert replace(moved, steps=told.steps) == told
    assert replace(moved.steps[0], response=told.steps[0].response) == told.steps[0]


def test_a_thought_before_a_click_stays():
    moved = with_click_jitter(
        demonstration(["Thought: here\nAction: click(start_box='(60,50)')"]), UI_TARS, (3.0, 3.0), random.Random(1)
    )
    assert parse_response(moved.steps[0].response).thought == "here"
