"""Actions as DevTools input events: a mouse, a wheel and a US keyboard."""

from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from arpo.agent.actions import Button, Direction
from arpo.agent.devices import MouseAndKeyboard
from arpo.agent.keys import canonical_key

Event = tuple[str, dict[str, Any]]
"""A DevTools method and its parameters."""

WHEEL_PIXELS = 60
MODIFIERS = {"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}
NAMED: dict[str, tuple[str, int, str]] = {
    "enter": ("Enter", 13, "\r"),
    "tab": ("Tab", 9, ""),
    "esc": ("Escape", 27, ""),
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
    "win": ("Meta", 91, ""),
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
    """The text that it writes."""


def find_key(name: str) -> Key | None:
    """Return the key of this name or character, or None: like pyautogui, an unknown key does nothing."""
    named = NAMED.get(canonical_key(name) or "") if len(name) > 1 else None
    if named is not None:
        return Key(*named)
    if len(name) != 1 or not name.isprintable():
        return None
    if name.isascii() and name.isalnum():
        return Key(name, ord(name.upper()), name)
    return Key(name, PUNCTUATION.get(name, 0), name)


class InputDevices(MouseAndKeyboard[Event]):
    """The mouse and the keyboard of a page: where the pointer is, in page pixels, and which keys are held."""

    DRAG_MOVES = 4

    def __init__(self) -> None:
        self._x = self._y = 0.0
        self.held: dict[str, Key] = {}

    @override
    def pointer(self) -> tuple[float, float]:
        return self._x, self._y

    def release(self, x: float, y: float) -> list[Event]:
        """Let go of every held key and put the pointer somewhere."""
        return [*(self._up(key) for key in list(self.held.values())), *self.move(x, y)]

    def move(self, x: float, y: float, *, dragging: bool = False) -> list[Event]:
        """Move the pointer; `dragging` with the left button held."""
        self._x, self._y = x, y
        return [self._mouse("mouseMoved", button="left" if dragging else "none", buttons=int(dragging))]

    def button(self, down: bool, button: Button, count: int) -> Event:
        """Press or release a button."""
        held = {"left": 1, "right": 2, "middle": 4}[button] if down else 0
        kind = "mousePressed" if down else "mouseReleased"
        return self._mouse(kind, button=button, buttons=held, clickCount=count)

    def scroll(self, direction: Direction, at: tuple[float, float] | None) -> list[Event]:
        """Turn the wheel, at a point or where the pointer is."""
        across = {"left": -WHEEL_PIXELS, "right": WHEEL_PIXELS}.get(direction, 0)
        down = {"up": -WHEEL_PIXELS, "down": WHEEL_PIXELS}.get(direction, 0)
        moved = self.move(*(at or (self._x, self._y)))
        return [*moved, self._mouse("mouseWheel", deltaX=across, deltaY=down)]

    def key_down(self, name: str) -> list[Event]:
        """Hold a key; one that no keyboard has does nothing."""
        key = find_key(name)
        if key is None:
            return []
        self.held[key.name] = key
        # With Control, Alt or Meta held a key is a command and writes nothing.
        return [self._down(key, key.text if not self._modifiers() & 7 else "")]

    def key_up(self, name: str) -> list[Event]:
        """Release a key; one that no keyboard has does nothing."""
        key = find_key(name)
        return [] if key is None else [self._up(key)]

    def type(self, text: str) -> list[Event]:
        """Type a text as real key events: some pages listen to keys, and date fields take nothing else."""
        events: list[Event] = []
        for character in text.replace("\r\n", "\n"):
            key = find_key("enter" if character == "\n" else "tab" if character == "\t" else character)
            if key is not None and character.isascii():
                events += [self._down(key, key.text), self._key("keyUp", key)]
            else:
                events.append(("Input.insertText", {"text": character}))
        return events

    def wait(self) -> list[Event]:
        """Do nothing: the environment lets virtual time pass."""
        return []

    def _mouse(self, kind: str, **event: Any) -> Event:
        where = {"type": kind, "x": self._x, "y": self._y}
        return "Input.dispatchMouseEvent", {**where, **event, "modifiers": self._modifiers()}

    def _down(self, key: Key, text: str) -> Event:
        return self._key("keyDown", key, text=text) if text else self._key("rawKeyDown", key)

    def _up(self, key: Key) -> Event:
        self.held.pop(key.name, None)
        return self._key("keyUp", key)

    def _key(self, kind: str, key: Key, **text: str) -> Event:
        event = {"type": kind, "key": key.name, "windowsVirtualKeyCode": key.code, "modifiers": self._modifiers()}
        return "Input.dispatchKeyEvent", {**event, **text}

    def _modifiers(self) -> int:
        return sum(bit for name, bit in MODIFIERS.items() if name in self.held)
