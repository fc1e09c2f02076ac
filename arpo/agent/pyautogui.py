"""Action to pyautogui source for a real desktop.

The source is built from typed values only: whole numbers, key names of a closed set, and text as an ASCII literal.
Nothing else that a model wrote, a thought least of all, travels to the guest.

What a keyboard cannot type, pyautogui drops silently. Such text goes through `xdotool type` where the guest has it
(our image does): it works in terminals and leaves the clipboard alone. Elsewhere it is pasted with pyperclip, which
pyautogui depends on and OSWorld's image has. A guest with neither fails loudly.
"""

import math
import string
from collections.abc import Sequence
from itertools import groupby

from arpo.agent import actions
from arpo.agent.actions import Action
from arpo.agent.keys import known_key, typeable

SCROLL_CLICKS = 5
DRAG_S = 1.0
WAIT_S = 5.0
"""As the prompt promises."""
TYPE_INTERVAL_S = 0.1
"""After each character; the official code's, `pyautogui.write(text, interval=0.1)`."""
SETTLE_S = 0.5
CALL_PAUSE_S = 0.1
"""The wait of pyautogui itself after each call."""
LONGEST_TYPING_S = 40.0
"""Of all these pauses in one text: a longer text is typed faster, because OSWorld's server ends every program after
120 s. At the official pace that would be the end of any text of 1200 characters."""

_RUN_S = {"write": CALL_PAUSE_S, "unicode": CALL_PAUSE_S + SETTLE_S, "enter": SETTLE_S, "tab": 0.0, "less_than": 0.0}
"""Seconds of pause in each way of typing, once for a run of characters ..."""
_CHARACTER_S = dict.fromkeys(("enter", "tab", "less_than"), CALL_PAUSE_S) | {"write": TYPE_INTERVAL_S, "unicode": 0.0}
"""... and once more for each character of the run."""

_HEADER = ("import pyautogui", "import time", "pyautogui.FAILSAFE = False")
_TYPED = frozenset(string.ascii_letters + string.digits + string.punctuation + " ")
# Where a keyboard layout has `<` on a key of its own, pyautogui holds shift as well and types `>`.
_LESS_THAN = ("shift", ",")


def to_pyautogui(action: Action) -> str:
    """Return Python source that performs an action, in screen pixels, with pyautogui.

    An action that mouse and keyboard have no part in gives source that does nothing.
    """
    return "\n".join((*_HEADER, *_statements(action), ""))


def _statements(action: Action) -> list[str]:  # noqa: PLR0911 - one a kind of action
    match action:
        case actions.Click(_, _, button, count):
            where = "".join(f"{_point(*point)}, " for point in action.start)
            return [f"pyautogui.{'click' if count == 1 else 'doubleClick'}({where}button='{button}')"]
        case actions.Hover(x, y):
            return [f"pyautogui.moveTo({_point(x, y)})"]
        case actions.Drag(to_x=x, to_y=y):
            begin = [f"pyautogui.moveTo({_point(*point)})" for point in action.start]
            return [*begin, f"pyautogui.dragTo({_point(x, y)}, duration={DRAG_S}, button='left')"]
        case actions.Scroll(direction):
            wheel = "scroll" if direction in ("up", "down") else "hscroll"
            clicks = SCROLL_CLICKS if direction in ("up", "right") else -SCROLL_CLICKS
            where = "".join(f", {_point(*point)}" for point in action.start)
            return [f"pyautogui.{wheel}({clicks}{where})"]
        case actions.Hotkey(keys):
            return [_hotkey(keys)]
        case actions.Press(key):
            names = _physical(key)
            return [f"pyautogui.press({names[0]!r})" if len(names) == 1 else _hotkey((key,))]
        case actions.KeyDown(key):
            return [f"pyautogui.keyDown({name!r})" for name in _physical(key)]
        case actions.KeyUp(key):
            return [f"pyautogui.keyUp({name!r})" for name in reversed(_physical(key))]
        case actions.TypeText(text):
            return _typing(text)
        case actions.Wait():
            return [f"time.sleep({WAIT_S})"]
        case _:
            return []


def _point(x: float, y: float) -> str:
    if not (math.isfinite(x) and math.isfinite(y)):
        raise ValueError(f"a position must be finite, got ({x}, {y})")
    return f"{round(x)}, {round(y)}"


def _hotkey(keys: tuple[str, ...]) -> str:
    names = [name for key in keys for name in _physical(key)]
    return f"pyautogui.hotkey({', '.join(map(repr, names))})"


def _physical(key: str) -> tuple[str, ...]:
    """Return the keys to hold for a key."""
    if known_key(key) == "<":
        return _LESS_THAN
    return ("winleft",) if key == "win" else (key,)  # older releases of pyautogui know only the left one by name


def _typing(text: str) -> list[str]:
    ways = {"\n": "enter", "\t": "tab", "<": "less_than", **dict.fromkeys(_TYPED - {"<"}, "write")}
    runs = [(kind, "".join(run)) for kind, run in groupby(typeable(text), lambda each: ways.get(each, "unicode"))]
    usual_s = sum(_RUN_S[kind] + len(characters) * _CHARACTER_S[kind] for kind, characters in runs)
    if usual_s <= LONGEST_TYPING_S:
        return _typing_runs(runs, 1.0)
    pace = LONGEST_TYPING_S / usual_s
    return [f"pyautogui.PAUSE = {_short(CALL_PAUSE_S * pace)}", *_typing_runs(runs, pace)]


def _typing_runs(runs: Sequence[tuple[str, str]], pace: float) -> list[str]:
    """Return the statements that type each run of characters, with pauses of `pace` times their usual length."""
    interval, settle = _short(TYPE_INTERVAL_S * pace), _short(SETTLE_S * pace)
    statements = []
    for kind, characters in runs:
        match kind:
            case "write":
                statements.append(f"pyautogui.write({characters!r}, interval={interval})")
            case "unicode":
                statements += _typing_unicode(characters, settle)
            case "less_than":
                statements += [_hotkey(("<",))] * len(characters)
            case "enter":
                statements += [f"time.sleep({settle})"] + ["pyautogui.press('enter')"] * len(characters)
            case "tab":
                statements += ["pyautogui.press('tab')"] * len(characters)
    return statements


def _short(seconds: float) -> float:
    return round(seconds, 5)


def _typing_unicode(text: str, settle_s: float) -> list[str]:
    literal = ascii(text)
    return [
        "import shutil",
        "if shutil.which('xdotool'):",
        "    import subprocess",
        f"    subprocess.run(['xdotool', 'type', '--', {literal}], check=True)",
        "else:",
        "    import pyperclip",
        f"    pyperclip.copy({literal})",
        "    pyautogui.hotkey('ctrl', 'v')",
        f"    time.sleep({settle_s})",
    ]
