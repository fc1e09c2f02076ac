"""Click jitter: an augmentation of demonstrations that keeps their actions true."""

import random
from dataclasses import replace

from arpo.agent.actions import Click, moved
from arpo.agent.grammar import ActionGrammar
from arpo.types import Step, Trajectory


def with_click_jitter(
    demonstration: Trajectory, grammar: ActionGrammar, spread: tuple[float, float], rng: random.Random
) -> Trajectory:
    """Return a demonstration whose clicks are moved a little: their texts, that is, and not what came of them.

    A script clicks the very middle of a target. To a small policy a coordinate is a word without neighbours, and each
    of a hundred words has to be learned from the few targets that lie there. Once clicks are spread around a target,
    coordinates that are near each other mean nearly the same.

    Args:
        demonstration: Text, of which no token was sampled.
        grammar: Of its responses.
        spread: Standard deviations of the move, across and down, in the units in which the model names points.
        rng: Draws the moves.
    """
    return replace(demonstration, steps=tuple(_moved(step, grammar, spread, rng) for step in demonstration.steps))


def _moved(step: Step, grammar: ActionGrammar, spread: tuple[float, float], rng: random.Random) -> Step:
    response = grammar.parse(step.response)
    (action,) = response.actions
    if not isinstance(action, Click):
        return step

    def jitter(x: float, y: float) -> tuple[float, float]:
        return max(0, round(rng.gauss(x, spread[0]))), max(0, round(rng.gauss(y, spread[1])))

    return replace(step, response=grammar.render(moved(action, jitter), response.thought))
