import math
import shutil
import subprocess
import sys
import time
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given

from arpo.agent import actions
from arpo.agent.pyautogui import LONGEST_TYPING_S, to_pyautogui
from tests.agent import strategies


class FakeGuest:
    """Stands for the guest's modules and records what is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, xdotool: bool) -> None:
        self.calls: list[tuple[object, ...]] = []
        pointer = ("click", "doubleClick", "moveTo", "dragTo", "scroll", "hscroll")
        keyboard = ("hotkey", "press", "keyDown", "keyUp", "write")
        for module, names in {"pyautogui": (*pointer, *keyboard), "pyperclip": ("copy",)}.items():
            functions = {name: partial(self.note, name) for name in names}
            fake = SimpleNamespace(PAUSE=0.1, **functions)  # pyautogui's own
            monkeypatch.setitem(sys.modules, module, fake)
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if xdotool else None)
        monkeypatch.setattr(subprocess, "run", lambda command, check: self.note("run", *command))
        monkeypatch.setattr(time, "sleep", lambda seconds: self.note("sleep", seconds))

    def note(self, name: str, *args: object, **kwargs: object) -> None:
        self.calls.append((name, *args, *kwargs.values()))

    def run(self, action) -> list[tuple[object, ...]]:
        self.calls.clear()
        exec(compile(to_pyautogui(action), "guest", "exec"), {})
        return list(self.calls)


@pytest.fixture
def guest(monkeypatch):
    return FakeGuest(monkeypatch, xdotool=True)


@pytest.mark.parametrize(
    ("action", "calls"),
    [
        (actions.Click(10, 20), [("click", 10, 20, "left")]),
        (actions.Click(10.4, 19.6), [("click", 10, 20, "left")]),
        (actions.Click(10, 20, count=2), [("doubleClick", 10, 20, "left")]),
        (actions.Click(10, 20, button="right"), [("click", 10, 20, "right")]),
        (actions.Click(10, 20, button="middle"), [("click", 10, 20, "middle")]),
        (actions.Hover(10, 20), [("moveTo", 10, 20)]),
        (actions.Drag(1, 2, 3, 4), [("moveTo", 1, 2), ("dragTo", 3, 4, 1.0, "left")]),
        (actions.Drag(None, None, 3, 4), [("dragTo", 3, 4, 1.0, "left")]),
        (actions.Scroll("up", 1, 2), [("scroll", 5, 1, 2)]),
        (actions.Scroll("down"), [("scroll", -5)]),
        (actions.Scroll("up", 3, None), [("scroll", 5)]),  # without a whole position, where the pointer is
        (actions.Scroll("up", None, 4), [("scroll", 5)]),
        (actions.Scroll("left", 1, 2), [("hscroll", -5, 1, 2)]),
        (actions.Scroll("right"), [("hscroll", 5)]),
        (actions.Hotkey(("ctrl", "c")), [("hotkey", "ctrl", "c")]),
        (actions.Hotkey(("win", "<")), [("hotkey", "winleft", "shift", ",")]),
        (actions.Press("enter"), [("press", "enter")]),
        (actions.Press("<"), [("hotkey", "shift", ",")]),
        (actions.KeyDown("<"), [("keyDown", "shift"), ("keyDown", ",")]),
        (actions.KeyUp("<"), [("keyUp", ","), ("keyUp", "shift")]),
        (actions.Wait(), [("sleep", 5.0)]),
        (actions.Finished("x"), []),
        (actions.CallUser(), []),
        (actions.Fail(), []),
    ],
)
def test_every_action_does_what_it_says(guest, action, calls):
    assert guest.run(action) == calls


def test_text_is_typed_in_the_way_each_part_of_it_needs(guest, monkeypatch):
    assert guest.run(actions.TypeText("a <b>\t'é'\r\n")) == [
        ("write", "a ", 0.1),
        ("hotkey", "shift", ","),
        ("write", "b>", 0.1),
        ("press", "tab"),
        ("write", "'", 0.1),
        ("run", "xdotool", "type", "--", "é"),
        ("write", "'", 0.1),
        ("sleep", 0.5),
        ("press", "enter"),
    ]
    assert guest.run(actions.TypeText("x" * 399)) == [("write", "x" * 399, 0.1)]  # 39.9 s, and 0.1 s after the call
    assert guest.run(actions.TypeText("\x00\x1b\ud800")) == []  # no text
    without_xdotool = FakeGuest(monkeypatch, xdotool=False)
    assert without_xdotool.run(actions.TypeText("你好")) == [("copy", "你好"), ("hotkey", "ctrl", "v"), ("sleep", 0.5)]


def pauses_s(calls, between_calls_s):
    """What a text takes when keys take nothing."""
    waits = [
        call[2] * len(call[1]) if call[0] == "write" else call[1] if call[0] == "sleep" else 0.0 for call in calls
    ]
    return sum(waits) + between_calls_s * sum(call[0] in ("write", "press", "hotkey") for call in calls)


@pytest.mark.parametrize(
    "text", ["x" * 2000, "<b>\n" * 500, "a\n" * 1000, "é" * 2000, "aé" * 1000, "x" * 20000], ids=lambda text: text[:4]
)
@pytest.mark.parametrize("xdotool", [True, False])
def test_a_long_text_is_typed_whole_and_in_time(monkeypatch, text, xdotool):
    calls = FakeGuest(monkeypatch, xdotool=xdotool).run(actions.TypeText(text))
    assert pauses_s(calls, sys.modules["pyautogui"].PAUSE) <= LONGEST_TYPING_S + 0.1
    typed = "".join(call[1] for call in calls if call[0] in ("write", "copy"))
    assert xdotool or typed == text.replace("<", "").replace("\n", "")


@given(strategies.any_action)
def test_the_source_always_compiles_and_is_ascii(action):
    source = to_pyautogui(action)
    compile(source, "guest", "exec")
    assert source.isascii()


@pytest.mark.parametrize(
    "action",
    [actions.Click(math.nan, 1), actions.Click(1, math.inf), actions.Press("foo"), actions.Hotkey(("ctrl", "Enter"))],
)
def test_what_cannot_be_done_is_refused(action):
    with pytest.raises(ValueError, match=r"must be finite|canonical"):
        to_pyautogui(action)
