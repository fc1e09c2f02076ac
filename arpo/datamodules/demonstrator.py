"""A demonstrator: a script that knows the way, and errs on purpose."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from arpo.agent.actions import Action, Call, Click, Finished, TypeText
from arpo.bounds import PositiveShare, Share, checked


@checked
@dataclass(frozen=True, slots=True)
class Demonstrator:
    """A script that solves a task step by step, and errs so that the cloned policy has something left to learn.

    Args:
        success_rate: The chance that a whole episode goes without a mistake; 1 demonstrates perfectly.
        habit: The share of mistakes that are the same each time. Habits make the most likely action of the cloned
            policy wrong too; otherwise greedy decoding would filter every mistake out.
        rules: Whether every mistake follows one rule for its kind of action (`bad_habit`). A policy learns such rules
            as it learns the task, so rewards can unlearn them on all tasks at once; mistakes at random are learned,
            and unlearned, task by task.
    """

    success_rate: PositiveShare = 1.0
    habit: Share = 0.7
    rules: bool = False

    @property
    def errs(self) -> bool:
        """Whether it makes mistakes."""
        return self.success_rate < 1

    def act(
        self, right: Action, distractors: Sequence[Action], length: int, rng: random.Random, habit: random.Random
    ) -> Action:
        """Return the right action, or a mistake in its place; `length` is how many steps the whole solution takes."""
        if rng.random() < self.success_rate ** (1 / max(length, 1)):
            return right
        if self.rules:
            return bad_habit(right, distractors)
        return mistake(right, distractors, habit if rng.random() < self.habit else rng)


def mistake(right: Action, distractors: Sequence[Action], rng: random.Random) -> Action:
    """Return a plausible wrong action: another element, a place beside, a misspelt text, or an early end."""
    match right:
        case Click(x, y, "left", 1) if x is not None and y is not None:
            elsewhere = [other for other in distractors if other != right]
            if elsewhere and rng.random() < 0.7:
                return rng.choice(elsewhere)
            if rng.random() < 0.3:
                return Finished()
            return Click(max(0, x + rng.choice((-1, 1)) * rng.randint(14, 40)), max(0, y + rng.randint(-30, 30)))
        case TypeText(text) if text:
            return TypeText(_misspelt(text, rng))
        case Call(function, arguments) if rng.random() < 0.7:
            texts = {name: text for name, text in arguments.items() if isinstance(text, str) and text}
            wrong = {name: _misspelt(text, rng) for name, text in texts.items()}
            return Call(function, {**arguments, **wrong}) if wrong else Finished()
        case _:
            return Finished()


def _misspelt(text: str, rng: random.Random) -> str:
    place = rng.randrange(len(text))
    if len(text) > 1 and rng.random() < 0.6:
        return text[:place] + text[place + 1 :]
    return text + rng.choice("aeo137")


def bad_habit(right: Action, distractors: Sequence[Action]) -> Action:
    """Return the one mistake of this kind of action: the first wrong element, the last letter twice, an early end."""
    match right:
        case Click(_, _, "left", 1):
            others = [other for other in distractors if isinstance(other, Click) and other != right]
            return min(others, key=lambda other: (other.y, other.x)) if others else Finished()
        case TypeText(text) if text:
            line = text.rstrip("\n") or text  # what ends in a newline is a line, and its last letter is before it
            return TypeText(line + line[-1] + text[len(line) :])
        case _:
            return Finished()
