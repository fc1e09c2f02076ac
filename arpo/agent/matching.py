"""The comparison of an action with an expert's: kind, point and text each by itself, and one score of them."""

import unicodedata
from dataclasses import dataclass

from arpo.agent import actions
from arpo.agent.actions import Action
from arpo.errors import check_at_least


@dataclass(frozen=True, slots=True)
class Match:
    """The agreement of an action with an expert's. A point or a text agrees only where the kind does."""

    kind: bool
    """Whether both are of one type: two clicks, say."""
    point: bool
    """Whether both name the same points, near enough; True where neither names one."""
    text: bool
    """Whether both say the same: text, keys, direction, call; True where there is nothing to say."""

    @property
    def exact(self) -> bool:
        """Whether they agree in everything."""
        return self.kind and self.point and self.text


def compare(action: Action, expert: Action, *, tolerance: float) -> Match:
    """Return in what an action agrees with an expert's.

    Args:
        action: In the same pixels as the expert's.
        expert: What it should have been.
        tolerance: See `same_point`.
    """
    if not same_kind(action, expert):
        return Match(kind=False, point=False, text=False)
    return Match(kind=True, point=same_point(action, expert, tolerance=tolerance), text=same_text(action, expert))


def same_kind(action: Action, expert: Action) -> bool:
    """Return whether two actions are of one type; the press of a key is a hotkey of one key."""
    return type(_plain(action)) is type(_plain(expert))


def same_point(action: Action, expert: Action, *, tolerance: float) -> bool:
    """Return whether two actions name as many points, each in the box around the expert's.

    Args:
        action: In the same pixels as the expert's.
        expert: The centre of the boxes.
        tolerance: Half of a box's side, in pixels; what lies on its edge is inside.
    """
    found, wanted = _points(action), _points(expert)
    return len(found) == len(wanted) and all(
        max(abs(x - to_x), abs(y - to_y)) <= tolerance for (x, y), (to_x, to_y) in zip(found, wanted, strict=True)
    )


def same_text(action: Action, expert: Action) -> bool:
    """Return whether two actions say the same: text, keys, direction, or function and arguments.

    Typed text is compared without regard to the forms of its letters (NFKC) and to the length of white space. A
    newline at its end counts, because it presses Enter. What `finished` tells the user does not count. The arguments
    of a call are compared as they are, in any order: a path with one space more is another path.
    """
    return _text(action) == _text(expert)


def _plain(action: Action) -> Action:
    return actions.Hotkey((action.key,)) if isinstance(action, actions.Press) else action


def _points(action: Action) -> list[tuple[float, float]]:
    if not isinstance(action, actions.Pointer):
        return []
    start = [] if action.x is None or action.y is None else [(action.x, action.y)]
    return [*start, (action.to_x, action.to_y)] if isinstance(action, actions.Drag) else start


def _text(action: Action) -> tuple[str, ...]:
    match _plain(action):
        case actions.TypeText(text):
            return (" ".join(unicodedata.normalize("NFKC", text).split()), "\n" * text.endswith("\n"))
        case actions.Hotkey(keys):
            return keys
        case actions.KeyDown(key) | actions.KeyUp(key):
            return (key,)
        case actions.Scroll(direction):
            return (direction,)
        case actions.Call(function, arguments):
            return (function, *(f"{name}={value!r}" for name, value in sorted(arguments.items())))
    return ()


@dataclass(frozen=True, kw_only=True)
class StepScore:
    """The reward of a response that is an action: the sum of the weights of what agrees with the expert's.

    * UI-S1 (arXiv 2509.11543) gives 0.1 · format + 0.9 · action, where action is 1 if everything agrees, 0.5 if the
      kind does and 0.1 if it is any action: these are the defaults, which sum to 1, 0.55 and 0.19.
    * The rule-based part of CRAFT-GUI's hybrid reward (arXiv 2508.11360) weighs format, kind, point and text.
    * The reward of an action in Mobile-R1 (arXiv 2506.20332) is 1 for the format and 1 if everything agrees.

    A response that is no action is worth 0, whatever the weights are: no environment sees it.

    Args:
        format: For a response that is an action.
        kind: For the kind of the expert's.
        point: For its points.
        text: For its text.
        exact: For all of these.
    """

    format: float = 0.19
    kind: float = 0.36
    point: float = 0.0
    text: float = 0.0
    exact: float = 0.45

    def __post_init__(self) -> None:
        check_at_least(0, format=self.format, kind=self.kind, point=self.point, text=self.text, exact=self.exact)

    def of(self, match: Match) -> float:
        """Return the reward of an action."""
        return (
            self.format
            + self.kind * match.kind
            + self.point * match.point
            + self.text * match.text
            + self.exact * match.exact
        )
