"""What holds for every method that learns from rollouts, whatever its groups look like: `conf/method/`."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from arpo.methods.method import Method, TokenScores
from arpo.replay import ReplayBuffer
from arpo.run.build import build, compose
from arpo.types import Group, Task, Trajectory
from tests.methods.conftest import trajectory

CONF = Path(__file__).parents[2] / "conf"


def methods() -> dict[str, Method]:
    """Each method that a word of `method=` chooses, as a run makes it; and GRPO, which no word needs."""
    found: dict[str, Method] = {"grpo": build(compose("train", ["experiment=smoke"]).module.objective)}
    for path in sorted((CONF / "method").glob("*.yaml")):
        if "objective" in OmegaConf.load(path).get("module", {}):
            found[path.stem] = build(compose("train", ["experiment=smoke", f"method={path.stem}"]).module.objective)
    return found


METHODS = methods()


def random_group(rng: random.Random, number: int) -> Group:
    """A group of one to six episodes: ragged, tied, failed as a whole, with steps that did not parse, replayed."""
    verdict = rng.choice([lambda: 0.0, lambda: 1.0, lambda: float(rng.random() < 0.5), rng.random])
    members = [episode(rng, verdict()) for _ in range(rng.randint(1, 6))]
    injected = (rng.randrange(len(members)),) if rng.random() < 0.3 else ()
    return Group(Task(f"task {number}", ""), tuple(members), injected)


def episode(rng: random.Random, task_reward: float) -> Trajectory:
    count = rng.randint(1, 6)
    made = trajectory(rng.choices("abc", k=count), task_reward, lengths=rng.choices(range(1, 8), k=count))
    if rng.random() < 0.3:
        steps = (*made.steps[:-1], replace(made.steps[-1], parse_error="bad_box"))
        made = replace(made, steps=steps, format_reward=-1.0)
    return made


def scores_of(groups: list[Group]) -> list[list[TokenScores]]:
    """What somebody said: functions of the token's place alone, so that they move along with its trajectory."""
    places = [[torch.arange(each.action_tokens) for each in group.trajectories] for group in groups]
    return [[TokenScores(-(row / 5 % 1), row / 7 % 1, teacher=-(row / 3 % 1)) for row in rows] for rows in places]


@pytest.mark.parametrize("name", METHODS)
def test_every_token_of_any_group_gets_a_finite_lesson_that_no_order_changes(name):
    method, rng = METHODS[name], random.Random(0)
    groups = [random_group(rng, number) for number in range(200)]
    credits = method.credits(groups, scores_of(groups) if method.needs.scores else None)
    for group, row in zip(groups, credits, strict=True):
        for member, credit in zip(group.trajectories, row, strict=True):
            taught = [credit.advantages] if credit.returns is None else [credit.advantages, credit.returns]
            for numbers in taught:
                assert numbers.shape == (member.action_tokens,)
                assert numbers.dtype == torch.float32
                assert torch.isfinite(numbers).all()
            assert (credit.returns is not None) == method.needs.values
    turned = [
        replace(
            each,
            trajectories=each.trajectories[::-1],
            injected=tuple(len(each.trajectories) - 1 - i for i in each.injected),
        )
        for each in reversed(groups)
    ]
    again = method.credits(turned, scores_of(turned) if method.needs.scores else None)
    for row, other in zip(credits, reversed(again), strict=True):
        for credit, same in zip(row, reversed(other), strict=True):
            torch.testing.assert_close(same.advantages, credit.advantages)
            if credit.returns is not None:
                torch.testing.assert_close(same.returns, credit.returns)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.needs.scores])
def test_a_group_that_failed_as_a_whole_teaches_nothing(name):
    group = Group(Task("task", ""), tuple(trajectory("ab" * count, 0.0) for count in (1, 2, 3)))
    assert not any(credit.advantages.any() for credit in METHODS[name].credits([group])[0])


EARNED = dict.fromkeys(("grpo", "cispo", "distillation", "spa", "c3po"), 0.0) | {"computer_rl": 0.5}
"""By methods that do not add up the rewards of steps: GRPO adds task and format, ComputerRL gates single steps."""


@pytest.mark.parametrize("name", METHODS)
def test_golden_rewards(name):
    """The task is solved, the first step has earned 0.25, and the last one did not parse."""
    made = trajectory("ab", 1.0)
    steps = (replace(made.steps[0], reward=0.25), replace(made.steps[1], parse_error="bad_box"))
    group = Group(Task("task", ""), (replace(made, steps=steps, format_reward=-1.0),))
    assert METHODS[name].rewards(group).tolist() == [EARNED.get(name, 0.25)]


@pytest.mark.parametrize("name", METHODS)
def test_what_replay_puts_into_a_failed_group_earns_the_most_in_it(name):
    """But where steps alone are rewarded: their verdict is the recording's, and replay's is that of the task."""
    method, rng = METHODS[name], random.Random(1)
    if method.asks.step_rewards:
        pytest.skip("the task reward has no part in it")
    buffer = ReplayBuffer(format_weight=method.format_weight, replaced="none")
    for count in range(1, 7):
        success = trajectory("a" * count, 0.75)
        buffer.admit(Group(Task("task", ""), (success,)))
        failed = tuple(episode(rng, rng.choice([0.0, 0.5])) for _ in range(6))
        injected = buffer.inject(Group(Task("task", ""), failed))
        rewards = method.rewards(injected)
        assert rewards.shape == (7,)
        assert rewards.argmax() == 6
        assert rewards[6] > buffer.success_threshold
