import io
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat

import pytest
from PIL import Image

from arpo.agent.actions import Action, Click, Wait
from arpo.envs.contract import ContractError, check_env, check_episode
from arpo.envs.protocol import StepResult
from arpo.errors import ConfigError, EnvError
from arpo.types import Observation, Task

TASK = Task(id="square/1", instruction="")


def png(width: int, height: int, form: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height)).save(out, form)
    return out.getvalue()


class Square:
    """The smallest desktop that keeps the contract: a black square, solved by one click."""

    first = Observation(png(20, 10), 20, 10, "Click.")
    later = Observation(png(20, 10), 20, 10)

    def __init__(self) -> None:
        self.running = self.closed = self.solved = False
        self.resets = 0

    def reset(self, task: Task) -> Observation:
        if self.closed:
            raise EnvError("reset", "closed")
        self.running, self.solved = True, False
        return self.first

    def step(self, action: Action) -> StepResult:
        if not self.running:
            raise EnvError("step", "not running")
        self.solved |= isinstance(action, Click)
        return StepResult(self.later)

    def evaluate(self) -> float:
        if not self.running:
            raise EnvError("evaluate", "not running")
        return float(self.solved)

    def solve(self) -> Iterator[Action]:
        return iter([Click(1, 1)])

    def close(self) -> None:
        self.running, self.closed = False, True


def restless(self, task):
    self.resets += 1
    return replace(Square.reset(self, task), instruction=f"Click, for the time number {self.resets}.")


def without_script(self):
    raise ConfigError("no script for this task")


BROKEN = [
    ({"first": replace(Square.first, width=21)}, "the observation says"),
    ({"first": replace(Square.first, screenshot=png(20, 10, "JPEG"))}, "must be a PNG.*JFIF"),
    ({"later": replace(Square.later, screenshot=b"\x89PNG nonsense")}, "must be a PNG"),
    ({"later": Observation(png(10, 10), 10, 10)}, "changed the screen size"),
    ({"first": replace(Square.first, instruction="")}, "no instruction"),
    ({"evaluate": lambda self: 2.0}, r"gives 2\.0, not a float in \[0, 1\]"),
    ({"solve": lambda self: iter(())}, "ends with reward 0"),
    ({"close": lambda self: None}, "after close does not raise EnvError"),
    ({"reset": restless}, "another first observation"),
    ({"solve": lambda self: repeat(Wait())}, "ends with reward 0.0 after 7 actions"),
]


@pytest.mark.parametrize(("changes", "fault"), BROKEN, ids=[fault for _, fault in BROKEN])
def test_a_broken_clause_is_named_and_the_environment_is_closed(changes, fault):
    env = type("Broken", (Square,), changes)()
    with pytest.raises(ContractError, match=fault):
        check_env(env, TASK, max_solution_steps=7)
    assert env.closed or "close" in changes


def close_once(self):
    if self.closed:
        raise EnvError("close", "it is closed")
    Square.close(self)


def test_an_environment_that_cannot_be_closed_twice_is_found():
    with pytest.raises(EnvError, match="it is closed"):
        check_env(type("Once", (Square,), {"close": close_once})(), TASK)


class Bounded(Square):
    """Takes no action outside of its screen."""

    def step(self, action: Action) -> StepResult:
        assert 0 <= (getattr(action, "x", 0) or 0) < 20
        assert 0 <= (getattr(action, "y", 0) or 0) < 10
        return super().step(action)


@pytest.mark.parametrize(
    ("changes", "deterministic"),
    [({}, True), ({"solve": without_script}, True), ({"reset": restless}, False)],
    ids=["all of it", "no script for the task", "a first screen that may change"],
)
def test_an_environment_that_keeps_the_contract_passes(changes, deterministic):
    check_env(type("Sound", (Bounded,), changes)(), TASK, deterministic=deterministic)


def test_check_episode_leaves_the_environment_open():
    env = Square()
    check_episode(env, TASK)
    assert not env.closed
