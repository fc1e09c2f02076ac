"""Certificates: solutions, near-misses and attacks are played on a small desktop that types into one window."""

import logging
from functools import partial

import pytest

from arpo.agent.actions import Call, Fail, Finished, TypeText, Wait
from arpo.envs.guest import certificate
from arpo.envs.guest.certificate import Window, certify, holds, play, read_scripts
from arpo.envs.protocol import Execution
from arpo.errors import BlamedError, EnvError, TaskFormatError
from arpo.types import Task

RECORD = {
    "solution": ["hotkey(key='ctrl alt t')", "window('Terminal')", "type(content='right')"],
    "near_misses": {"another word": ["hotkey(key='ctrl alt t')", "type(content='wrong')"]},
    "attacks": {"asks for it": ["call_user()"]},
}
TASK = Task("typing", "Type right.", domain="os", config={})
IMPOSSIBLE = Task("impossible", "Fly.", domain="os", config={}, infeasible=True)


class Desk:
    """A desktop and its guest: hot keys open a terminal, and what is typed there counts, by a checker of any kind."""

    titles = ("Desktop", "user - Terminal")

    def __init__(self, checker=lambda desk, score: score):
        self.checker, self.played, self.closed = checker, 0, False

    @property
    def guest(self):
        return self

    def execute(self, command):
        self.ended = command[0] == "pkill"
        return Execution(self.titles[self.open] + "\n")

    def screenshot(self, **_):
        return b""

    def reset(self, task):
        self.task, self.open, self.typed, self.last, self.ended = task, 0, "", None, False

    def step(self, action):
        self.last = action
        if isinstance(action, TypeText):
            self.typed += action.text
        elif not isinstance(action, Finished | Fail | Wait | Call):
            self.open = 1

    def evaluate(self):
        if self.task.infeasible or isinstance(self.last, Fail):
            return float(self.task.infeasible and isinstance(self.last, Fail))
        self.played += self.typed == "right"
        return self.checker(self, float(self.typed == "right"))

    def close(self):
        self.closed = True


CONTENT_WITH_LESS = {
    "any word": lambda desk, score: float(bool(desk.typed)),
    "an application that is gone": lambda desk, score: max(score, float(desk.ended)),
    "every other time": lambda desk, score: score * (desk.played % 2),
}


def breaks_on_rubbish(desk, score):
    if desk.typed == "wrong" or desk.ended:
        raise BlamedError("result", "KeyError")
    return score


def breaks_always(desk, score):
    raise BlamedError("result", "KeyError")


def certified(desk, task, record, **repeats):
    return certify(partial(play, desk), task, read_scripts(record), **repeats)


def test_a_certificate_has_the_scores_of_all_that_was_played(caplog):
    caplog.set_level(logging.DEBUG, "arpo.envs.guest.certificate")
    found = certified(Desk(), TASK, RECORD, repeats=3)
    assert found == {
        "idle": 0.0,
        "solution": [1.0, 1.0, 1.0],
        "near_misses": {"another word": 0.0},
        "attacks": {"ends every application": 0.0, "asks for it": 0.0},
    }
    assert holds(found)
    assert caplog.messages[:2] == ["typing untouched: 0", "typing solved: 1"]
    assert len(caplog.messages) == 7


@pytest.mark.parametrize("what", CONTENT_WITH_LESS)
def test_a_checker_that_is_content_with_less_or_not_always_with_the_solution_gets_none(what):
    assert not holds(certified(Desk(CONTENT_WITH_LESS[what]), TASK, RECORD, repeats=2))


@pytest.mark.parametrize("change", [{"idle": 1.0}, {"solution": []}, {"attacks": {"ends every application": 1.0}}])
def test_a_certificate_does_not_hold_where_one_score_is_wrong(change):
    sound = {"idle": 0.0, "solution": [1.0], "near_misses": {}, "attacks": {"ends every application": 0.0}}
    assert holds(sound)
    assert not holds({**sound, **change})


def test_of_an_infeasible_task_giving_up_is_the_solution():
    found = certified(Desk(), IMPOSSIBLE, {}, repeats=1)
    assert holds(found)
    assert (found["idle"], found["solution"]) == (0.0, [1.0])


def test_a_script_waits_for_its_window_and_says_which_one_came_in_its_place(monkeypatch):
    monkeypatch.setattr(certificate, "WINDOW_S", 0.05)
    with pytest.raises(EnvError, match="no window with 'Terminal' in its title has the keyboard, but 'Desktop'"):
        play(Desk(), TASK, [Window("Terminal")])


def test_a_line_that_is_no_action_and_no_window_is_refused():
    with pytest.raises(TaskFormatError, match=r"'dance\(\)' is neither an action nor window"):
        read_scripts({"solution": ["dance()"]})


def test_a_checker_that_raises_on_rubbish_gives_it_zero_and_one_that_raises_on_the_untouched_desktop_is_broken():
    found = certified(Desk(breaks_on_rubbish), TASK, RECORD, repeats=1)
    assert holds(found)
    assert (found["near_misses"], found["attacks"][certificate.KILLED]) == ({"another word": 0.0}, 0.0)
    broken = "its grader is broken: it gives no score of the untouched desktop: KeyError"
    with pytest.raises(BlamedError, match=broken):
        certified(Desk(breaks_always), TASK, RECORD, repeats=1)
