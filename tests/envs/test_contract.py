import io
from collections.abc import Iterator
from dataclasses import replace

import pytest
from PIL import Image

from arpo.agent.actions import Action, Click
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


class LyingAboutItsSize(Square):
    first = replace(Square.first, width=21)


class SendingJpeg(Square):
    first = replace(Square.first, screenshot=png(20, 10, "JPEG"))


class SendingGarbage(Square):
    later = replace(Square.later, screenshot=b"\x89PNG nonsense")


class ChangingItsSize(Square):
    later = Observation(png(10, 10), 10, 10)


class Silent(Square):
    first = replace(Square.first, instruction="")


class Generous(Square):
    def evaluate(self) -> float:
        super().evaluate()
        return 2.0


class Stumped(Square):
    def solve(self) -> Iterator[Action]:
        return iter([])


class Undead(Square):
    def close(self) -> None:
        return None


class Restless(Square):
    resets = 0

    def reset(self, task: Task) -> Observation:
        self.resets += 1
        return replace(super().reset(task), screenshot=png(20, 10) if self.resets == 1 else png(20, 10) + b"\0")


class WithoutScript(Square):
    def solve(self) -> Iterator[Action]:
        raise ConfigError("no script for this task")


def test_an_environment_that_keeps_the_contract_passes():
    check_env(Square(), TASK)


def test_an_environment_may_have_no_script_for_a_task():
    check_env(WithoutScript(), TASK)


def test_check_episode_leaves_the_environment_open():
    env = Square()
    check_episode(env, TASK)
    assert not env.closed


def test_check_env_closes_the_environment_it_faults():
    env = Silent()
    with pytest.raises(ContractError):
        check_env(env, TASK)
    assert env.closed


@pytest.mark.parametrize(
    ("env", "fault"),
    [
        (LyingAboutItsSize(), "the observation says"),
        (SendingJpeg(), "JPEG, not PNG"),
        (SendingGarbage(), "cannot be decoded"),
        (ChangingItsSize(), "changed the screen size"),
        (Silent(), "no instruction"),
        (Generous(), r"gives 2\.0, not a float in \[0, 1\]"),
        (Stumped(), "ends with reward 0"),
        (Undead(), "after close does not raise EnvError"),
        (Restless(), "another first observation"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Square) else "",
)
def test_a_broken_clause_is_named(env: Square, fault: str):
    with pytest.raises(ContractError, match=fault):
        check_env(env, TASK)


def test_a_first_screen_that_changes_is_allowed_where_the_caller_says_so():
    check_env(Restless(), TASK, deterministic=False)


def test_an_endless_solution_is_cut():
    class Endless(Square):
        def solve(self) -> Iterator[Action]:
            from itertools import repeat

            from arpo.agent.actions import Wait

            return repeat(Wait())

    with pytest.raises(ContractError, match="after 7 actions"):
        check_env(Endless(), TASK, max_solution_steps=7)
