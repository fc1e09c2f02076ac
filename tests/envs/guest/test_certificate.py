"""Certificates: solutions, near-misses and attacks are played on a small desktop that types into one window."""

import json
import logging

import pytest

from arpo.agent.actions import Call, Fail, Finished, TypeText, Wait
from arpo.apps import certify as app
from arpo.apps.tasks import main, named
from arpo.envs.guest import certificate
from arpo.envs.guest.certificate import Window, certify, holds, play, read_scripts
from arpo.envs.guest.client import Execution
from arpo.errors import BlamedError, ConfigError, EnvError, TaskFormatError
from arpo.types import Task
from tests.envs.osworld.task_files import FILES, needs_files

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


def test_a_certificate_has_the_scores_of_all_that_was_played():
    heard = []
    found = certify(Desk(), TASK, read_scripts(RECORD), repeats=3, tell=heard.append)
    assert found == {
        "idle": 0.0,
        "solution": [1.0, 1.0, 1.0],
        "near_misses": {"another word": 0.0},
        "attacks": {"ends every application": 0.0, "asks for it": 0.0},
    }
    assert holds(found)
    assert heard[:2] == ["typing untouched: 0", "typing solved: 1"]
    assert len(heard) == 6


@pytest.mark.parametrize("desk", [Lenient, Fickle, Crashing])
def test_a_checker_that_is_content_with_less_or_not_always_with_the_solution_gets_none(desk):
    assert not holds(certify(desk(), TASK, read_scripts(RECORD), repeats=2))


@pytest.mark.parametrize("change", [{"idle": 1.0}, {"solution": []}, {"attacks": {"ends every application": 1.0}}])
def test_a_certificate_does_not_hold_where_one_score_is_wrong(change):
    sound = {"idle": 0.0, "solution": [1.0], "near_misses": {}, "attacks": {"ends every application": 0.0}}
    assert holds(sound)
    assert not holds({**sound, **change})


def test_of_an_infeasible_task_giving_up_is_the_solution():
    found = certify(Desk(), IMPOSSIBLE, read_scripts({}), repeats=1)
    assert holds(found)
    assert (found["idle"], found["solution"]) == (0.0, [1.0])


def test_a_script_waits_for_its_window_and_says_which_one_came_in_its_place(monkeypatch):
    monkeypatch.setattr(certificate, "WINDOW_S", 0.05)
    with pytest.raises(EnvError, match="no window with 'Terminal' in its title has the keyboard, but 'Desktop'"):
        play(Desk(), TASK, [Window("Terminal")])


def test_a_line_that_is_no_action_and_no_window_is_refused():
    with pytest.raises(TaskFormatError, match=r"'dance\(\)' is neither an action nor window"):
        read_scripts({"solution": ["dance()"]})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "os").mkdir()
    (tmp_path / "os" / "impossible.json").write_text('{"near_misses": {}}')
    (tmp_path / "os" / "typing.json").write_text(json.dumps(RECORD))
    return tmp_path


def test_the_certificate_is_written_beside_the_scripts_and_tasks_without_a_script_are_left(folder, caplog):
    caplog.set_level(logging.INFO)
    other = Task("other", "Do it.", domain="os", config={})
    assert app.certify_each([TASK, IMPOSSIBLE, other], Desk, repeats=2, root=folder) == 0
    record = json.loads((folder / "os" / "typing.json").read_text())
    assert {key: record[key] for key in RECORD} == RECORD
    assert record["certificate"]["solution"] == [1.0, 1.0]
    assert [app.is_certified(task, folder) for task in (TASK, IMPOSSIBLE, other)] == [True, True, False]
    assert "2 of 2 tasks are certified" in caplog.text


def test_a_task_that_a_checker_of_less_accepts_is_written_down_and_not_certified(folder):
    assert app.certify_each([TASK], Lenient, repeats=1, root=folder) == 1
    assert json.loads((folder / "os" / "typing.json").read_text())["certificate"]["near_misses"] == {"another word": 1}
    assert not app.is_certified(TASK, folder)


def test_a_task_whose_desktop_fails_leaves_the_others(folder, monkeypatch, caplog):
    monkeypatch.setattr(certificate, "WINDOW_S", 0.05)
    monkeypatch.setattr(Desk, "titles", ("Desktop", "Calculator"))
    assert app.certify_each([TASK, IMPOSSIBLE], Desk, repeats=1, root=folder) == 1
    assert "typing (os): " in caplog.text
    assert [app.is_certified(task, folder) for task in (TASK, IMPOSSIBLE)] == [False, True]


class Late(Desk):
    """One of several desktops: whichever failed once fails for good, and so do all but the last."""

    def __init__(self, made, failures):
        super().__init__()
        self.last_one = len(made) == failures
        made.append(self)

    def reset(self, task):
        if not self.last_one:
            raise EnvError("reset", "the guest ended while it started")
        super().reset(task)


@pytest.mark.parametrize(("failures", "status"), [(app.RESETS - 1, 0), (app.RESETS, 1)])
def test_a_task_is_set_up_again_on_a_new_desktop_where_that_fails_a_few_times(folder, failures, status):
    made = []
    assert app.certify_each([TASK], lambda: Late(made, failures), repeats=1, root=folder) == status
    assert app.is_certified(TASK, folder) == (status == 0)
    assert len(made) == failures + 1
    assert all(desk.closed for desk in made)


def test_tasks_without_scripts_and_ids_that_are_not_there_are_refused(folder):
    with pytest.raises(ConfigError, match="none of 1 tasks has a script"):
        app.certify_each([Task("other", "Do it.", domain="os", config={})], Desk, repeats=1, root=folder)
    with pytest.raises(ConfigError, match="there is no task 'nothing' among the 1"):
        named([TASK], ["nothing"])
    assert named([TASK, IMPOSSIBLE], ["imp"]) == [IMPOSSIBLE]
    assert named([TASK, IMPOSSIBLE], []) == [TASK, IMPOSSIBLE]


@needs_files
def test_the_command_reads_the_folder_of_the_scripts(monkeypatch, tmp_path):
    monkeypatch.setenv("ARPO_OSWORLD_TASKS", str(FILES))
    with pytest.raises(ConfigError, match=f"none of 1 tasks has a script in {tmp_path}"):
        main(["certify", "1273e544", "--scripts", str(tmp_path)])


def test_a_checker_that_raises_on_rubbish_gives_it_zero():
    found = certify(Broken(), TASK, read_scripts(RECORD), repeats=1)
    assert holds(found)
    assert (found["near_misses"], found["attacks"][certificate.KILLED]) == ({"another word": 0.0}, 0.0)


def test_a_checker_that_raises_on_the_untouched_desktop_is_broken():
    with pytest.raises(
        BlamedError, match="its grader is broken: it gives no score of the untouched desktop: KeyError"
    ):
        certify(Broken(always=True), TASK, read_scripts(RECORD), repeats=1)
