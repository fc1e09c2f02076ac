import math
import shutil
import subprocess
import sys
import time
from types import ModuleType

import pytest
from hypothesis import given

from arpo.agent.actions import (
    CallUser,
    Click,
    Drag,
    Fail,
    Finished,
    Hotkey,
    Hover,
    KeyDown,
    KeyUp,
    Press,
    Scroll,
    TypeText,
    Wait,
)
from arpo.agent.pyautogui import LONGEST_TYPING_S, to_pyautogui
from tests.agent import strategies


class FakeGuest:
    """Stands for the guest's modules and records what is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, xdotool: bool) -> None:
        self.calls: list[tuple[object, ...]] = []
        names = (
            "click",
            "doubleClick",
            "moveTo",
            "dragTo",
            "scroll",
            "hscroll",
            "hotkey",
            "press",
            "keyDown",
            "keyUp",
            "write",
        )
        self._install(monkeypatch, "pyautogui", names)
        self._install(monkeypatch, "pyperclip", ("copy",))
        monkeypatch.setattr(
            shutil, "which", lambda name: "/usr/bin/xdotool" if xdotool and name == "xdotool" else None
        )
        monkeypatch.setattr(subprocess, "run", lambda command, check: self.calls.append(("run", *command)))
        monkeypatch.setattr(time, "sleep", lambda seconds: self.calls.append(("sleep", seconds)))

    def _install(self, monkeypatch: pytest.MonkeyPatch, module_name: str, functions: tuple[str, ...]) -> None:
        module = ModuleType(module_name)
        module.PAUSE = 0.1  # type: ignore[attr-defined] # pyautogui's own
        for name in functions:
            setattr(module, name, self._recorder(name))
        monkeypatch.setitem(sys.modules, module_name, module)

    def _recorder(self, name: str):
        def record(*args: object, **kwargs: object) -> None:
            self.calls.append((name, *args, *kwargs.values()))

        return record

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
        (Click(10, 20), [("click", 10, 20, "left")]),
        (Click(10.4, 19.6), [("click", 10, 20, "left")]),
        (Click(10, 20, count=2), [("doubleClick", 10, 20, "left")]),
        (Click(10, 20, button="right"), [("click", 10, 20, "right")]),
        (Click(10, 20, button="middle"), [("click", 10, 20, "middle")]),
        (Hover(10, 20), [("moveTo", 10, 20)]),
        (Drag(1, 2, 3, 4), [("moveTo", 1, 2), ("dragTo", 3, 4, 1.0, "left")]),
        (Drag(None, None, 3, 4), [("dragTo", 3, 4, 1.0, "left")]),
        (Scroll("up", 1, 2), [("scroll", 5, 1, 2)]),
        (Scroll("down"), [("scroll", -5)]),
        (Scroll("left", 1, 2), [("hscroll", -5, 1, 2)]),
        (Scroll("right"), [("hscroll", 5)]),
        (Hotkey(("ctrl", "c")), [("hotkey", "ctrl", "c")]),
        (Hotkey(("win", "<")), [("hotkey", "winleft", "shift", ",")]),
        (Press("enter"), [("press", "enter")]),
        (Press("<"), [("hotkey", "shift", ",")]),
        (KeyDown("<"), [("keyDown", "shift"), ("keyDown", ",")]),
        (KeyUp("<"), [("keyUp", ","), ("keyUp", "shift")]),
        (Wait(), [("sleep", 5.0)]),
        (Finished("x"), []),
        (CallUser(), []),
        (Fail(), []),
    ],
)
def test_every_action_does_what_it_says(guest, action, calls):
    assert guest.run(action) == calls


def test_text_is_typed_in_the_way_each_part_of_it_needs(guest):
    assert guest.run(TypeText("a <b>\t'é'\r\n")) == [
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
    guest = FakeGuest(monkeypatch, xdotool=xdotool)
    calls = guest.run(TypeText(text))
    assert pauses_s(calls, sys.modules["pyautogui"].PAUSE) <= LONGEST_TYPING_S + 0.1
    typed = "".join(call[1] for call in calls if call[0] in ("write", "copy"))
    assert xdotool or typed == text.replace("<", "").replace("\n", "")


def test_a_text_of_usual_length_is_typed_at_the_official_pace(guest):
    assert guest.run(TypeText("x" * 399)) == [("write", "x" * 399, 0.1)]  # 39.9 s, and 0.1 s after the call


def test_a_guest_without_xdotool_pastes(monkeypatch):
    guest = FakeGuest(monkeypatch, xdotool=False)
    assert guest.run(TypeText("你好")) == [("copy", "你好"), ("hotkey", "ctrl", "v"), ("sleep", 0.5)]


def test_what_is_no_text_is_not_typed(guest):
    assert guest.run(TypeText("\x00\x1b\ud800")) == []


@given(strategies.any_action)
def test_the_source_always_compiles_and_is_ascii(action):
    source = to_pyautogui(action)
    compile(source, "guest", "exec")
    assert source.isascii()


@pytest.mark.parametrize("action", [Click(math.nan, 1), Click(1, math.inf), Press("foo"), Hotkey(("ctrl", "Enter"))])
def test_what_cannot_be_done_is_refused(action):
    with pytest.raises(ValueError, match=r"must be finite|canonical"):
        to_pyautogui(action)


@pytest.mark.parametrize("scroll", [Scroll("up"), Scroll("up", 3, None), Scroll("up", None, 4)])
def test_a_scroll_without_a_whole_position_turns_where_the_pointer_is(scroll):
    assert "pyautogui.scroll(5)\n" in to_pyautogui(scroll)
