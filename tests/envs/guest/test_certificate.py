"""Certificates: solutions, near-misses and attacks are played on a small desktop that types into one window."""

import logging
from functools import partial

import pytest

from arpo.agent.actions import Call, Fail, Finished, TypeText, Wait
from arpo.envs.guest import certificate
from arpo.envs.guest.certificate import Window, certify, holds, play, read_scripts
from arpo.envs.guest.client import Execution
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
    """A desktop and its guest: hot keys open a terminal, and what is typed there counts."""

    titles = ("Desktop", "user - Terminal")

    def __init__(self):
        self.closed = False

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
        return float(self.typed == "right")

    def close(self):
        self.closed = True


class Lenient(Desk):
    """One whose checker is content with any word."""

    def evaluate(self):
        return float(bool(self.typed))


class Crashing(Desk):
    """One whose checker takes an application that is gone for a task that is done."""

    def evaluate(self):
        return 1.0 if self.ended else super().evaluate()


class Broken(Desk):
    """One whose checker raises on what it is given, or on the untouched desktop too."""

    def __init__(self, always=False):
        super().__init__()
        self.always = always

    def evaluate(self):
        if self.always or self.typed == "wrong" or self.ended:
            raise BlamedError("result", "KeyError")
        return super().evaluate()


class Fickle(Desk):
    """One whose solution works every other time."""

    played = 0

    def evaluate(self):
        score = super().evaluate()
        self.played += score
        return float(self.played % 2) if score else 0.0


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


@pytest.mark.parametrize("desk", [Lenient, Fickle, Crashing])
def test_a_checker_that_is_content_with_less_or_not_always_with_the_solution_gets_none(desk):
    assert not holds(certified(desk(), TASK, RECORD, repeats=2))


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


def test_a_checker_that_raises_on_rubbish_gives_it_zero():
    found = certified(Broken(), TASK, RECORD, repeats=1)
    assert holds(found)
    assert (found["near_misses"], found["attacks"][certificate.KILLED]) == ({"another word": 0.0}, 0.0)


def test_a_checker_that_raises_on_the_untouched_desktop_is_broken():
    with pytest.raises(
        BlamedError, match="its grader is broken: it gives no score of the untouched desktop: KeyError"
    ):
        certified(Broken(always=True), TASK, RECORD, repeats=1)
