"""A mouse and a keyboard: the one place that says which moves, buttons and keys an action is made of."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, Literal, TypeVar, assert_never

from arpo.agent import actions
from arpo.agent.actions import Action, Direction, Keyboard, Pointer

Event = TypeVar("Event")
Button = Literal["left", "middle", "right"]


class MouseAndKeyboard(ABC, Generic[Event]):
    """Devices that perform actions as lists of events; a subclass says what an event is.

    Attributes:
        DRAG_MOVES: How many moves a drag makes on its way. Applications take a pointer that jumps for a click, and one
            that moves for a drag.
    """

    DRAG_MOVES: ClassVar[int]

    def events(self, action: Action) -> list[Event]:
        """Return the events of an action; none where there is nothing to do."""
        if isinstance(action, Pointer):
            return self._use_pointer(action)
        if isinstance(action, Keyboard):
            return self._use_keyboard(action)
        match action:
            case actions.TypeText(text):
                return self.type(text)
            case actions.Wait():
                return self.wait()
            case actions.Call() | actions.Finished() | actions.CallUser() | actions.Fail():
                return []
            case _:
                assert_never(action)

    def _use_pointer(self, action: Pointer) -> list[Event]:
        match action:
            case actions.Click(x, y):
                return [*self._move_to(x, y), *self._click("left", 1)]
            case actions.DoubleClick(x, y):
                return [*self._move_to(x, y), *self._click("left", 1), *self._click("left", 2)]
            case actions.RightClick(x, y) | actions.MiddleClick(x, y):
                button: Button = "right" if isinstance(action, actions.RightClick) else "middle"
                return [*self._move_to(x, y), *self._click(button, 1)]
            case actions.Hover(x, y):
                return self.move(x, y)
            case actions.Drag():
                return self._drag(action)
            case actions.Scroll(direction, x, y):
                return self.scroll(direction, None if x is None or y is None else (x, y))
            case _:
                assert_never(action)

    def _move_to(self, x: float | None, y: float | None) -> list[Event]:
        return [] if x is None or y is None else self.move(x, y)

    def _drag(self, action: actions.Drag) -> list[Event]:
        events = [*self._move_to(action.x, action.y), self.button(True, "left", 1)]
        # From a place that is not known the pointer jumps to just before the end, which applications take for a drag.
        from_x, from_y = self.pointer() or (action.to_x - self.DRAG_MOVES, action.to_y)
        if action.x is not None and action.y is not None:
            from_x, from_y = action.x, action.y
        way_x, way_y = action.to_x - from_x, action.to_y - from_y
        for move in range(1, self.DRAG_MOVES + 1):
            x, y = from_x + way_x * move / self.DRAG_MOVES, from_y + way_y * move / self.DRAG_MOVES
            events += self.move(x, y, dragging=True)
        return [*events, self.button(False, "left", 1)]

    def pointer(self) -> tuple[float, float] | None:
        """Return where the pointer is; None where the devices do not know."""
        return None

    def _click(self, button: Button, count: int) -> list[Event]:
        return [self.button(True, button, count), self.button(False, button, count)]

    def _use_keyboard(self, action: Keyboard) -> list[Event]:
        match action:
            case actions.Hotkey(keys):
                return self._press(keys)
            case actions.Press(key):
                return self._press((key,))
            case actions.KeyDown(key):
                return self.key_down(key)
            case actions.KeyUp(key):
                return self.key_up(key)
            case _:
                assert_never(action)

    def _press(self, keys: Sequence[str]) -> list[Event]:
        pressed = [event for key in keys for event in self.key_down(key)]
        return pressed + [event for key in reversed(keys) for event in self.key_up(key)]

    @abstractmethod
    def move(self, x: float, y: float, *, dragging: bool = False) -> list[Event]:
        """Move the pointer; `dragging` with the left button held."""

    @abstractmethod
    def button(self, down: bool, button: Button, count: int) -> Event:
        """Press or release a button, `count` of a double click being 2 the second time."""

    @abstractmethod
    def scroll(self, direction: Direction, at: tuple[float, float] | None) -> list[Event]:
        """Turn the wheel, at a point or where the pointer is."""

    @abstractmethod
    def key_down(self, name: str) -> list[Event]:
        """Hold a key."""

    @abstractmethod
    def key_up(self, name: str) -> list[Event]:
        """Release a key."""

    @abstractmethod
    def type(self, text: str) -> list[Event]:
        """Type a text."""

    @abstractmethod
    def wait(self) -> list[Event]:
        """Let the desktop work."""
