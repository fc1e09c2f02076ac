"""What holds for every method that learns from rollouts, whatever its groups look like: `conf/method/`."""

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from arpo.errors import ConfigError
from arpo.methods.c3po import C3PO
from arpo.methods.cispo import CISPO
from arpo.methods.computer_rl import ComputerRL
from arpo.methods.digirl import DigiRL
from arpo.methods.distillation import Distillation
from arpo.methods.dpo import DPO
from arpo.methods.gigpo import GiGPO
from arpo.methods.grpo import GRPO
from arpo.methods.kto import KTO
from arpo.methods.method import Method, TokenScores
from arpo.methods.ppo import PPO
from arpo.methods.spa import ShortestPath
from arpo.methods.ui_s1 import UIS1
from arpo.methods.ui_tars2 import UITars2
from arpo.replay import ReplayBuffer
from arpo.run.build import build, compose
from arpo.types import Group, Task, Trajectory
from tests.methods.conftest import trajectory
from tests.rollout.trajectories import foreign

CONF = Path(__file__).parents[2] / "conf"


NAMES = ["grpo", *(path.stem for path in sorted((CONF / "method").glob("*.yaml")) if "objective:" in path.read_text())]
"""What a word of `method=` chooses; and GRPO, which no word needs."""


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def method(name: str) -> Method:
    """A method as a run makes it."""
    words = [] if name == "grpo" else [f"method={name}"]
    return build(compose("train", ["experiment=smoke", *words]).module.objective)


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
    """Scores that are functions of the token's place alone, so that they move along with its trajectory."""
    places = [[torch.arange(each.action_tokens) for each in group.trajectories] for group in groups]
    return [[TokenScores(-(row / 5 % 1), row / 7 % 1, teacher=-(row / 3 % 1)) for row in rows] for rows in places]


def test_every_method_checks_the_numbers_of_all(method):
    with pytest.raises(ValueError, match="clip_low=0 with clip_high=0"):
        replace(method, clip_low=0.0, clip_high=0.0)


def test_every_method_but_that_of_a_budget_can_average_over_episodes(name, method):
    if name == "c3po":
        pytest.skip("it refuses all averages but its own")
    average = replace(method, aggregation="episode").average(3.0, 4.0, 2.0, 1.0)
    values, mask = torch.ones(3, 2), torch.tensor([[True, True], [True, False], [True, False]])
    assert average(values, mask, torch.tensor([3.0, 3.0, 1.0])).item() == pytest.approx(1.0)  # (3 / 3 + 1 / 1) / 2


def test_every_token_of_any_group_gets_a_finite_lesson_that_no_order_changes(method):
    rng = random.Random(0)
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
    turned = []
    for each in reversed(groups):
        injected = tuple(len(each.trajectories) - 1 - place for place in each.injected)
        turned.append(replace(each, trajectories=each.trajectories[::-1], injected=injected))
    again = method.credits(turned, scores_of(turned) if method.needs.scores else None)
    for row, other in zip(credits, reversed(again), strict=True):
        for credit, same in zip(row, reversed(other), strict=True):
            torch.testing.assert_close(same.advantages, credit.advantages)
            if credit.returns is not None:
                torch.testing.assert_close(same.returns, credit.returns)


def test_a_group_that_failed_as_a_whole_teaches_nothing(method):
    if method.needs.scores:
        pytest.skip("it learns from the scores of tokens")
    group = Group(Task("task", ""), tuple(trajectory("ab" * count, 0.0) for count in (1, 2, 3)))
    assert not any(credit.advantages.any() for credit in method.credits([group])[0])


def test_a_method_that_credits_steps_says_so_and_others_take_any_tree(method):
    """Two actions were one response, and other responses no action."""
    odd = replace(foreign(), id="odd")
    silent = replace(odd, steps=(), task_reward=0.0)
    groups = [Group(Task("task", ""), (odd, silent))]
    scores = scores_of(groups) if method.needs.scores else None
    if method.needs.steps:
        with pytest.raises(ConfigError, match="'odd' has 3 steps and 6 exchanges, which must be one and the same"):
            method.checked_credits(groups, scores)
        return
    (row,) = method.checked_credits(groups, scores)
    assert [len(credit.advantages) for credit in row] == [7, 7]


def test_an_episode_without_a_step_earns_what_its_task_is_worth():
    silent = replace(foreign(), steps=(), format_reward=-1.0)
    assert PPO(format_weight=0.25).rewards(Group(Task("task", ""), (silent,))).tolist() == [0.75]  # 1 - 0.25


EARNED = dict.fromkeys(("grpo", "cispo", "distillation", "spa", "c3po"), 0.0) | {"computer_rl": 0.5}
"""By methods that do not add up the rewards of steps: GRPO adds task and format, ComputerRL gates single steps."""


def test_golden_rewards(name, method):
    """The task is solved, the first step has earned 0.25, and the last one did not parse."""
    made = trajectory("ab", 1.0)
    steps = (replace(made.steps[0], reward=0.25), replace(made.steps[1], parse_error="bad_box"))
    group = Group(Task("task", ""), (replace(made, steps=steps, format_reward=-1.0),))
    assert method.rewards(group).tolist() == [EARNED.get(name, 0.25)]


def test_what_replay_puts_into_a_failed_group_earns_the_most_in_it(method):
    """But where steps alone are rewarded: their verdict is the recording's, and replay's is that of the task."""
    rng = random.Random(1)
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


REFUSED = [
    (C3PO, {"budget": 0}, "budget must be at least 1, got 0"),
    (C3PO, {"aggregation": "sequence"}, "aggregation must be token"),
    (C3PO, {"aggregation": "episode"}, "aggregation must be token"),
    (C3PO, {"kl_coefficient": 0.1}, "kl_coefficient must be 0"),
    (C3PO, {"entropy_coefficient": 0.1}, "entropy_coefficient must be 0"),
    (C3PO, {"budget": 1, "imitation": -1.0}, "imitation must be at least 0, got -1.0"),
    (CISPO, {"dual_clip": 6.0}, "dual_clip=6.0"),
    (CISPO, {"level": "sequence"}, "level=sequence"),
    (CISPO, {"clip_low": 1.1}, "clip_low must be at most 1, got 1.1"),
    (ComputerRL, {"format_weight": 0.5}, "parse earns nothing"),
    (DigiRL, {"discount": 1.5}, "discount must be at most 1, got 1.5"),
    (DigiRL, {"discount": -0.1}, "discount must be at least 0, got -0.1"),
    (DigiRL, {"kept": 0.0}, "kept must be above 0, got 0.0"),
    (DigiRL, {"kept": 1.1}, "kept must be at most 1, got 1.1"),
    (Distillation, {"reward_weight": -1.0}, "reward_weight must be at least 0"),
    (GiGPO, {"discount": 1.1}, "discount must be at most 1"),
    (GiGPO, {"step_weight": -1.0}, "step_weight must be at least 0"),
    (GRPO, {"imitation": math.inf}, "imitation must be a finite number, got inf"),
    (GRPO, {"kl_coefficient": math.nan}, "kl_coefficient must be a finite number, got nan"),
    (GRPO, {"kl_coefficient": -0.1}, "kl_coefficient must be at least 0, got -0.1"),
    (GRPO, {"entropy_coefficient": -0.1}, "entropy_coefficient must be at least 0, got -0.1"),
    (GRPO, {"clip_low": -0.1}, "clip_low must be at least 0, got -0.1"),
    (GRPO, {"clip_high": math.inf}, "clip_high must be a finite number, got inf"),
    (GRPO, {"high_entropy_steps": 0.0}, "high_entropy_steps must be above 0, got 0.0"),
    (GRPO, {"high_entropy_steps": 1.1}, "high_entropy_steps must be at most 1, got 1.1"),
    (GRPO, {"format_weight": -1.0}, "format_weight must be at least 0, got -1.0"),
    (GRPO, {"aggregation": "dr_grpo"}, "belongs to aggregation=dr_grpo"),
    (GRPO, {"aggregation": "dr_grpo", "dr_grpo_length": 0}, "dr_grpo_length must be at least 1, got 0"),
    (GRPO, {"dr_grpo_length": 5}, "belongs to aggregation=dr_grpo"),
    (PPO, {"discount": 1.5}, "discount must be at most 1"),
    (PPO, {"gae_lambda": 1.5}, "gae_lambda must be at most 1"),
    (ShortestPath, {"shortening": -0.1}, "shortening must be at least 0"),
    (ShortestPath, {"shortening": math.nan}, "shortening must be at most 1, got nan"),
    (ShortestPath, {"success_threshold": 1.0}, "success_threshold must be below 1"),
    (UIS1, {"discount": 1.1}, "discount must be at most 1"),
    (UIS1, {"episode_weight": -1.0}, "episode_weight must be at least 0"),
    (UIS1, {"step_weight": -1.0}, "step_weight must be at least 0"),
    (UIS1, {"least_spread": -0.1}, "least_spread must be at least 0"),
    (UIS1, {"format_weight": 0.5}, "format_weight must be 0, got 0.5"),
    (UITars2, {"length_weight": 0.0}, "length_weight must be above 0, got 0.0"),
    (DPO, {"beta": 0.0}, "beta must be above 0, got 0.0"),
    (KTO, {"beta": 0.1, "desirable_weight": 0.0}, "desirable_weight must be above 0"),
    (KTO, {"beta": 0.1, "undesirable_weight": -1.0}, "undesirable_weight must be above 0"),
    (KTO, {"beta": 0.1, "success_threshold": 1.0}, "success_threshold must be below 1"),
]


@pytest.mark.parametrize(("method", "options", "sentence"), REFUSED)
def test_an_impossible_option_is_refused_by_its_name(method, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        method(**options)
