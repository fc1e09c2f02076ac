"""A mouse and a keyboard: the moves, buttons and keys that an action is made of."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from arpo.agent import actions
from arpo.agent.actions import Action, Button, Direction, Point

Event = TypeVar("Event")


class MouseAndKeyboard(ABC, Generic[Event]):
    """Devices that perform actions as lists of events, whose form a subclass has."""

    DRAG_MOVES: ClassVar[int]
    """Moves of a drag on its way: applications take a pointer that jumps for a click, not for a drag."""

    def events(self, action: Action) -> list[Event]:  # noqa: PLR0911 - one a kind of action
        """Return the events of an action; none for one that mouse and keyboard have no part in."""
        match action:
            case actions.Click(_, _, button, count):
                events = self._move_to(action.start)  # first, because a press is where the pointer is by then
                return events + [self.button(down, button, n) for n in range(1, count + 1) for down in (True, False)]
            case actions.Hover(x, y):
                return self.move(x, y)
            case actions.Drag():
                return self._drag(action)
            case actions.Scroll(direction):
                return self.scroll(direction, action.start[0] if action.start else None)
            case actions.Hotkey(keys):
                return self._press(keys)
            case actions.Press(key):
                return self._press((key,))
            case actions.KeyDown(key):
                return self.key_down(key)
            case actions.KeyUp(key):
                return self.key_up(key)
            case actions.TypeText(text):
                return self.type(text)
            case actions.Wait():
                return self.wait()
            case _:
                return []

    def _move_to(self, start: tuple[Point, ...]) -> list[Event]:
        return [event for point in start for event in self.move(*point)]

    def _drag(self, action: actions.Drag) -> list[Event]:
        events = [*self._move_to(action.start), self.button(True, "left", 1)]
        # From a place that is not known the pointer jumps to just before the end, which applications take for a drag.
        before = self.pointer() or (action.to_x - self.DRAG_MOVES, action.to_y)
        from_x, from_y = action.start[0] if action.start else before
        way_x, way_y = action.to_x - from_x, action.to_y - from_y
        for move in range(1, self.DRAG_MOVES + 1):
            x, y = from_x + way_x * move / self.DRAG_MOVES, from_y + way_y * move / self.DRAG_MOVES
            events += self.move(x, y, dragging=True)
        return [*events, self.button(False, "left", 1)]

    def pointer(self) -> tuple[float, float] | None:
        """Return the place of the pointer; None where the devices do not know it."""
        return None

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
    def scroll(self, direction: Direction, at: Point | None) -> list[Event]:
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
