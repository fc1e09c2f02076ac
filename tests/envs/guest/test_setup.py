"""The one rule for a step that fails, whichever desktop performs it."""

import pytest

from arpo.envs.guest.client import Deadlines, Guest
from arpo.envs.guest.setup import Screen, TaskSetup
from arpo.envs.osworld.setup import OSWorldSetup
from arpo.envs.protocol import Execution
from arpo.errors import EnvError


class ScriptedGuest(Guest):
    """A guest in this process: commands end as they are told to, windows come one look after the other."""

    def __init__(self, ends_with=0, windows=(), window_s=0.0):
        super().__init__("http://guest", deadlines=Deadlines(window_s=window_s))
        self.ends_with = ends_with
        self.coming = list(windows)
        self.there = []
        self.calls = []

    def execute(self, command, *, shell=False, timeout_s=None):
        self.calls.append((command, shell, timeout_s))
        return Execution("", "no space left", self.ends_with)

    def titles(self):
        if self.coming:
            self.there.append(self.coming.pop(0))
        return list(self.there)

    def activate_window(self, name, *, strict=False, by_class=False):
        if not any(name in title for title in self.there):
            raise EnvError("guest", f"there is no window {name!r}")
        self.calls.append(name)

    def screenshot(self, *, quiet_s, limit_s):
        self.calls.append((quiet_s, limit_s))
        return b""


TYPE = {"type": "execute", "parameters": {"command": ["python", "-c", "import pyautogui"]}}
SLEEP = {"type": "sleep", "parameters": {"seconds": 1.5}}
COMMAND = {"type": "execute", "parameters": {"command": "cp {SCREEN_WIDTH} b", "shell": True}}
ACTIVATE = {"type": "activate_window", "parameters": {"window_name": "Editor"}}


def ours(guest):
    return TaskSetup(guest, "task-1", Screen(640, 480))


def osworlds(guest):
    return OSWorldSetup(guest, "task-1", Screen(640, 480), chrome=None, files=None)


@pytest.mark.parametrize("interpreter", [ours, osworlds])
@pytest.mark.parametrize("when", ["prepare", "conclude"])
@pytest.mark.parametrize(("status", "lines"), [(3, 1), (0, 0)])
def test_a_command_that_ran_has_not_failed_whatever_its_exit_status_and_the_log_has_it(
    interpreter, when, status, lines, caplog
):
    caplog.set_level("INFO")
    guest = ScriptedGuest(ends_with=status)
    getattr(interpreter(guest), when)([COMMAND])
    assert guest.calls == [("cp 640 b", True, None)]  # with the deadline of a program
    assert caplog.messages == ["task task-1: command 'cp {SCREEN_WIDTH} b' ended with 3: no space left"] * lines


@pytest.mark.parametrize("when", ["prepare", "conclude"])
@pytest.mark.parametrize("window_s", [20.0, 0.0])
def test_a_step_that_slept_and_one_that_will_type_wait_until_the_desktop_rests_where_the_guest_can_say_so(
    monkeypatch, when, window_s
):
    guest = ScriptedGuest(window_s=window_s)
    monkeypatch.setattr("arpo.envs.guest.setup.time.sleep", guest.calls.append)
    getattr(ours(guest), when)([COMMAND, TYPE, SLEEP])
    rest, typed = [(0.3, 5.0)] * (window_s > 0), ["python", "-c", "import pyautogui"]
    assert guest.calls == [("cp 640 b", True, None), *rest, (typed, False, None), 1.5, *rest]


def test_a_window_that_is_to_come_to_the_front_is_waited_for_where_the_guest_says_which_there_are():
    silent, talking = (ScriptedGuest(windows=["Panel", "Text Editor"], window_s=seconds) for seconds in (0.0, 5.0))
    with pytest.raises(EnvError, match="there is no window"):
        ours(silent).prepare([ACTIVATE])
    ours(talking).prepare([ACTIVATE])
    assert talking.calls == ["Editor"]


def test_a_window_that_does_not_come_fails_a_reset_and_before_grading_is_not_waited_for():
    guest = ScriptedGuest(windows=["Panel"], window_s=0.05)
    setup = ours(guest)
    with pytest.raises(EnvError, match=r"task task-1, set-up step 0 \(activate_window\): Editor did not come"):
        setup.prepare([ACTIVATE])
    guest.coming, guest.there = ["Panel", "Text Editor"], []
    setup.conclude([ACTIVATE])
    assert (guest.calls, guest.there) == ([], [])
