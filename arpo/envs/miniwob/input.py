"""Actions as DevTools input events: a mouse, a wheel and a US keyboard."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, assert_never

from arpo.agent.actions import (
    Action,
    CallUser,
    Click,
    DoubleClick,
    Drag,
    Fail,
    Finished,
    Hotkey,
    Hover,
    KeyDown,
    KeyUp,
    Press,
    RightClick,
    Scroll,
    TypeText,
    Wait,
)

Event = tuple[str, dict[str, Any]]
"""A DevTools method and its parameters."""

WHEEL_PIXELS = 60
DRAG_MOVES = 4
MODIFIERS = {"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}
SYNONYMS = {
    "return": "enter",
    "esc": "escape",
    "del": "delete",
    "ins": "insert",
    "control": "ctrl",
    "option": "alt",
    "cmd": "meta",
    "command": "meta",
    "win": "meta",
    "super": "meta",
    "arrowleft": "left",
    "arrowup": "up",
    "arrowright": "right",
    "arrowdown": "down",
    "pgup": "pageup",
    "page_up": "pageup",
    "pgdn": "pagedown",
    "page_down": "pagedown",
    "spacebar": "space",
}
NAMED: dict[str, tuple[str, int, str]] = {
    "enter": ("Enter", 13, "\r"),
    "tab": ("Tab", 9, ""),
    "escape": ("Escape", 27, ""),
    "backspace": ("Backspace", 8, ""),
    "delete": ("Delete", 46, ""),
    "insert": ("Insert", 45, ""),
    "space": (" ", 32, " "),
    "left": ("ArrowLeft", 37, ""),
    "up": ("ArrowUp", 38, ""),
    "right": ("ArrowRight", 39, ""),
    "down": ("ArrowDown", 40, ""),
    "home": ("Home", 36, ""),
    "end": ("End", 35, ""),
    "pageup": ("PageUp", 33, ""),
    "pagedown": ("PageDown", 34, ""),
    "shift": ("Shift", 16, ""),
    "ctrl": ("Control", 17, ""),
    "alt": ("Alt", 18, ""),
    "meta": ("Meta", 91, ""),
    **{f"f{number}": (f"F{number}", 111 + number, "") for number in range(1, 13)},
}
UNSHIFTED = "`1234567890-=[]\\;',./"
SHIFTED = '~!@#$%^&*()_+{}|:"<>?'
CODES = [192, *range(49, 58), 48, 189, 187, 219, 221, 220, 186, 222, 188, 190, 191]
PUNCTUATION = dict(zip(UNSHIFTED, CODES, strict=True)) | dict(zip(SHIFTED, CODES, strict=True))


@dataclass(frozen=True, slots=True)
class Key:
    """One key as the browser names it."""

    name: str
    code: int
    """Windows virtual key code: what `event.which` shows."""
    text: str
    """What it writes."""


def find_key(name: str) -> Key | None:
    """Return the key of this name or character, or None: like pyautogui, an unknown key does nothing."""
    lowered = name.lower()
    named = NAMED.get(SYNONYMS.get(lowered, lowered))
    if named is not None:
        return Key(*named)
    if len(name) != 1 or not name.isprintable():
        return None
    if name.isascii() and name.isalnum():
        return Key(name, ord(name.upper()), name)
    return Key(name, PUNCTUATION.get(name, 0), name)


@dataclass(slots=True)
class InputDevices:
    """Where the pointer is and which keys are held; turns actions into events."""

    x: float = 0.0
    y: float = 0.0
    held: dict[str, Key] = field(default_factory=dict)

    def events(self, action: Action) -> list[Event]:
        """Return the events of an action whose coordinates are page pixels; none where there is nothing to do."""
        match action:
            case Click() | DoubleClick() | RightClick() | Hover() | Drag() | Scroll():
                return self._mouse(action)
            case Hotkey(keys=names):
                keys = [key for key in map(find_key, names) if key is not None]
                return [*self._down(keys), *self._up(reversed(keys))]
            case Press(key=name) | KeyDown(key=name) | KeyUp(key=name):
                return self._one_key(action, find_key(name))
            case TypeText(text=text):
                return self._type(text)
            case Wait() | Finished() | CallUser() | Fail():
                return []
            case _:
                assert_never(action)

    def release(self, x: float, y: float) -> list[Event]:
        """Let go of every held key and put the pointer somewhere."""
        return [*self._up(list(self.held.values())), self._move(x, y)]

    def _one_key(self, action: Press | KeyDown | KeyUp, key: Key | None) -> list[Event]:
        if key is None:
            return []
        match action:
            case Press():
                return [*self._down([key]), *self._up([key])]
            case KeyDown():
                return self._down([key])
            case KeyUp():
                return self._up([key])

    def _mouse(self, action: Click | DoubleClick | RightClick | Hover | Drag | Scroll) -> list[Event]:
        match action:
            case Click(x, y):
                return [self._move(x, y), *self._click("left", 1)]
            case DoubleClick(x, y):
                return [self._move(x, y), *self._click("left", 1), *self._click("left", 2)]
            case RightClick(x, y):
                return [self._move(x, y), *self._click("right", 1)]
            case Hover(x, y):
                return [self._move(x, y)]
            case Drag(x, y, to_x, to_y):
                return self._drag(x, y, to_x, to_y)
            case Scroll(direction, x, y):
                return self._scroll(direction, x, y)

    def _drag(self, x: float, y: float, to_x: float, to_y: float) -> list[Event]:
        start = [self._move(x, y), self._button("mousePressed", "left", 1)]
        steps = [(x + (to_x - x) * i / DRAG_MOVES, y + (to_y - y) * i / DRAG_MOVES) for i in range(1, DRAG_MOVES + 1)]
        return [*start, *(self._move(*step, held=1) for step in steps), self._button("mouseReleased", "left", 1)]

    def _scroll(self, direction: str, x: float | None, y: float | None) -> list[Event]:
        self.x, self.y = (self.x if x is None else x), (self.y if y is None else y)
        across = {"left": -WHEEL_PIXELS, "right": WHEEL_PIXELS}.get(direction, 0)
        down = {"up": -WHEEL_PIXELS, "down": WHEEL_PIXELS}.get(direction, 0)
        wheel = {"type": "mouseWheel", "x": self.x, "y": self.y, "deltaX": across, "deltaY": down}
        return [self._move(self.x, self.y), ("Input.dispatchMouseEvent", {**wheel, "modifiers": self._modifiers()})]

    def _move(self, x: float, y: float, held: int = 0) -> Event:
        self.x, self.y = x, y
        button = "left" if held else "none"
        event = {"type": "mouseMoved", "x": x, "y": y, "button": button, "buttons": held}
        return "Input.dispatchMouseEvent", {**event, "modifiers": self._modifiers()}

    def _click(self, button: str, count: int) -> list[Event]:
        return [self._button("mousePressed", button, count), self._button("mouseReleased", button, count)]

    def _button(self, kind: str, button: str, count: int) -> Event:
        held = {"left": 1, "right": 2}[button] if kind == "mousePressed" else 0
        event = {"type": kind, "x": self.x, "y": self.y, "button": button, "buttons": held, "clickCount": count}
        return "Input.dispatchMouseEvent", {**event, "modifiers": self._modifiers()}

    def _down(self, keys: Iterable[Key]) -> list[Event]:
        events = []
        for key in keys:
            self.held[key.name] = key
            # With Control, Alt or Meta held a key is a command and writes nothing.
            text = key.text if not self._modifiers() & 7 else ""
            events.append(self._key("keyDown" if text else "rawKeyDown", key, text))
        return events

    def _up(self, keys: Iterable[Key]) -> list[Event]:
        events = []
        for key in keys:
            self.held.pop(key.name, None)
            events.append(self._key("keyUp", key, ""))
        return events

    def _key(self, kind: str, key: Key, text: str) -> Event:
        event = {"type": kind, "key": key.name, "windowsVirtualKeyCode": key.code, "modifiers": self._modifiers()}
        return "Input.dispatchKeyEvent", {**event, "text": text} if text else event

    def _type(self, text: str) -> list[Event]:
        events: list[Event] = []
        for character in text.replace("\r\n", "\n"):
            key = find_key("enter" if character == "\n" else "tab" if character == "\t" else character)
            if key is not None and character.isascii():
                # Real key events: some pages listen to keys, and date fields take nothing else.
                events += [
                    self._key("keyDown" if key.text else "rawKeyDown", key, key.text),
                    self._key("keyUp", key, ""),
                ]
            else:
                events.append(("Input.insertText", {"text": character}))
        return events

    def _modifiers(self) -> int:
        return sum(bit for name, bit in MODIFIERS.items() if name in self.held)
