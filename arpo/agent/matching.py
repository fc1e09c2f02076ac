"""The comparison of an action with an expert's: kind, point and text each by itself, and one score of them."""

from dataclasses import dataclass

from arpo.agent.actions import Action
from arpo.bounds import NotNegative, checked


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
    """Return in what an action agrees with an expert's, in the same pixels; `tolerance` as that of `same_point`."""
    if action.kind != expert.kind:
        return Match(kind=False, point=False, text=False)
    point = same_point(action, expert, tolerance=tolerance)
    return Match(kind=True, point=point, text=action.details == expert.details)


def same_point(action: Action, expert: Action, *, tolerance: float) -> bool:
    """Return whether two actions name as many points, each in the box around the expert's or on its edge.

    `tolerance` is half of a box's side, in pixels.
    """
    return len(action.points) == len(expert.points) and all(
        max(abs(x - to_x), abs(y - to_y)) <= tolerance
        for (x, y), (to_x, to_y) in zip(action.points, expert.points, strict=True)
    )


@checked
@dataclass(frozen=True, kw_only=True)
class StepScore:
    """The reward of a response that is an action: the sum of the weights of what agrees with the expert's.

    * UI-S1 (arXiv 2509.11543) gives 0.1 · format + 0.9 · action, where action is 1 if everything agrees, 0.5 if the
      kind does and 0.1 if it is any action: these are the defaults, which sum to 1, 0.55 and 0.19.
    * The rule-based part of CRAFT-GUI's hybrid reward (arXiv 2508.11360) weighs format, kind, point and text.
    * The reward of an action in Mobile-R1 (arXiv 2506.20332) is 1 for the format and 1 if everything agrees.

    A response that is no action is worth 0, whatever the weights are: no environment sees it. `format` is the weight
    of any action, `exact` that of an agreement in everything.
    """

    format: NotNegative = 0.19
    kind: NotNegative = 0.36
    point: NotNegative = 0.0
    text: NotNegative = 0.0
    exact: NotNegative = 0.45

    def of(self, match: Match) -> float:
        """Return the reward of an action."""
        return (
            self.format
            + self.kind * match.kind
            + self.point * match.point
            + self.text * match.text
            + self.exact * match.exact
        )
