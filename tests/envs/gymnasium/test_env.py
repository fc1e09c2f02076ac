"""Registered environments as desktops: a table of actions, rewards of steps and verdicts, what is refused."""

import io
import math
import sys

import pytest
from PIL import Image

from arpo.agent.actions import Call, Click, Finished, Hotkey, KeyDown, Press, Scroll, TypeText, Wait
from arpo.envs.contract import check_env
from arpo.envs.gymnasium.drawn import name_of
from arpo.envs.gymnasium.env import GymnasiumEnv
from arpo.envs.gymnasium.tasks import gymnasium_tasks, registered
from arpo.errors import ConfigError, EnvError, TaskFormatError
from arpo.types import Task

pytest.importorskip("gymnasium", reason="the package gymnasium is not installed")

TOYS = "tests.envs.gymnasium.toys:arpo/"
CORRIDOR, DIAL, BLIND = f"{TOYS}Corridor-v0", f"{TOYS}Dial-v0", f"{TOYS}Blind-v0"
ARROWS = {"left": 0, "right": 1}
THIRD = 2
"""A seed with which a corridor begins two steps before its end, at place 3."""
LEFT, RIGHT = Press("left"), Press("right")


def task(name: str, seed: int = 0, instruction: str = "") -> Task:
    return gymnasium_tasks([name], [seed], instruction)[0]


def begun(name: str, seed: int = 0, **options) -> GymnasiumEnv:
    env = GymnasiumEnv(**options)
    env.reset(task(name, seed, "Do it."))
    return env


def column(png: bytes) -> int:
    """The place of the walker in a corridor's picture."""
    return Image.open(io.BytesIO(png)).convert("L").tobytes().index(255) // 4


@pytest.mark.parametrize(
    ("name", "actions", "instruction", "package"),
    [
        (CORRIDOR, ARROWS, "", "gymnasium"),
        (DIAL, {"click": [0.5], "ctrl x": [0.1]}, "Dial.", "gymnasium"),
        ("CartPole-v1", ARROWS, "Balance the pole.", "pygame"),
        ("Pendulum-v1", {"left": [-2.0], "right": [2.0]}, "Swing it up.", "pygame"),
        ("FrozenLake-v1", {**ARROWS, "up": 3}, "Cross the lake.", "pygame"),
        ("minigrid:MiniGrid-Empty-5x5-v0", {**ARROWS, "up": 2}, "", "minigrid"),
        ("ale_py:ALE/Breakout-v5", {"left": 3, "right": 2, "space": 1}, "Clear the wall.", "ale_py"),
    ],
)
def test_the_contract_of_a_desktop_holds(name, actions, instruction, package):
    pytest.importorskip(package, reason=f"{name} is drawn by {package}, which is not installed")
    check_env(GymnasiumEnv(actions=actions), task(name, 3, instruction))
    check_env(GymnasiumEnv(id=name, actions=actions), Task("mine", instruction or "Walk.", config={"seed": 3}))


def test_a_task_is_a_name_and_a_seed_and_its_environment_may_say_the_goal():
    tasks = gymnasium_tasks([CORRIDOR], [0, 1])
    assert [each.id for each in tasks] == [f"{CORRIDOR}/0", f"{CORRIDOR}/1"]
    assert tasks[1] == Task(f"{CORRIDOR}/1", "", "Corridor", {"id": CORRIDOR, "seed": 1})
    env = GymnasiumEnv(actions=ARROWS)
    first = {seed: env.reset(task(CORRIDOR, seed)) for seed in range(6)}
    assert len({view.instruction for view in first.values()}) > 1
    assert all(f"from {column(view.screenshot)}." in view.instruction for view in first.values())
    assert first[4] == env.reset(task(CORRIDOR, 4))
    assert (first[0].width, first[0].height) == (40, 20)
    assert env.reset(task(CORRIDOR, 4, "Walk.")).instruction == ""  # the task has said it


def test_an_action_is_what_the_table_has_for_it_and_without_a_line_nothing_happens():
    env = begun(CORRIDOR, 0, actions={**ARROWS, "d": 1, "click": 0, "scroll up": 1, "ctrl r": 1})
    at = column(env.step(Wait()).observation.screenshot)
    for action in (Wait(), Call("f"), Click(1, 1, "right"), Finished(), Press("up"), Scroll("down")):
        assert column(env.step(action).observation.screenshot) == at, action
    for action, move in ((RIGHT, 1), (LEFT, -1), (TypeText("d"), 1), (Click(1, 1), -1), (Hotkey(("ctrl", "r")), 1)):
        at += move
        assert column(env.step(action).observation.screenshot) == at, action


def test_actions_are_named_as_they_are_recorded():
    named = {name_of(each) for each in (Press("a"), Hotkey(("ctrl", "c")), Click(1, 1, count=2), Scroll("up"), Wait())}
    assert named == {"a", "ctrl c", "left_double", "scroll up", "wait"}
    assert name_of(KeyDown("a")) == "keydown"


@pytest.mark.parametrize(
    ("options", "steps", "verdict"),
    [
        ({}, [-0.1, -0.1, -0.1, 0.0], 0.5),  # the terminal reward is the verdict's, and no step's
        ({"between": (-0.5, 0.5)}, [-0.1, -0.1, -0.1, 0.0], 1.0),
        ({"between": (0.6, 1.0)}, [-0.1, -0.1, -0.1, 0.0], 0.0),  # clipped
        ({"verdict": "sum", "between": (0.0, 0.8)}, [0.0] * 4, 0.25),  # 0.5 - 3 x 0.1 = 0.2 of 0.8
    ],
)
def test_rewards_of_steps_and_the_verdict_are_kept_apart(options, steps, verdict):
    env = begun(CORRIDOR, THIRD, actions=ARROWS, **options)
    results = [env.step(action) for action in (LEFT, RIGHT, RIGHT, RIGHT)]  # 2, 3, 4, 5
    assert [result.reward for result in results] == pytest.approx(steps)
    assert [result.terminated for result in results] == [False, False, False, True]
    assert not any(result.truncated for result in results)
    assert env.evaluate() == pytest.approx(verdict)
    with pytest.raises(EnvError, match="has ended"):
        env.step(RIGHT)
    env.reset(task(CORRIDOR))
    assert env.evaluate() == 0.0  # counted anew


def test_an_episode_that_is_cut_off_is_truncated_and_not_terminated():
    env = begun(CORRIDOR, 0, actions=ARROWS)
    results = [env.step(LEFT) for _ in range(6)]  # max_episode_steps
    assert [(each.terminated, each.truncated) for each in results] == [(False, False)] * 5 + [(False, True)]
    assert results[-1].reward == pytest.approx(-0.1)
    assert env.evaluate() == 0.0


def test_an_episode_that_the_agent_cuts_short_earns_nothing_that_going_on_would_cost():
    for low, high, verdict in ((-1.0, 0.0, 0.0), (0.0, 1.0, 0.0)):
        env = begun(CORRIDOR, THIRD, actions=ARROWS, verdict="sum", between=(low, high))
        env.step(LEFT)
        assert env.evaluate() == verdict  # -0.1 of -1 to 0 would be 0.9
    env = begun(CORRIDOR, 0, actions=ARROWS, verdict="sum", between=(-1.2, 0.0))
    for _ in range(6):
        assert env.evaluate() == 0.0
        env.step(LEFT)
    assert env.evaluate() == pytest.approx(0.5)  # -0.6, truncated
    env = begun(CORRIDOR, 0, actions=ARROWS, between=(-1.0, 1.0))
    for _ in range(6):
        env.step(LEFT)
    assert env.evaluate() == 0.0  # no terminal reward


def test_what_breaks_is_an_error_of_the_environment_and_no_reward():
    env = begun(DIAL, 3, actions={"up": [0.95], "down": [-1.0]})
    with pytest.raises(EnvError, match="RuntimeError: it is broken"):
        env.step(Press("down"))
    with pytest.raises(EnvError, match="reward of nan"):
        env.step(Press("up"))
    env = begun(DIAL, 3, actions={"left": [-0.95], 1: [-0.75]})
    with pytest.raises(EnvError, match="reward of nan"):  # of a step, which methods learn from
        env.step(Press("left"))
    with pytest.raises(EnvError, match="not 'NoneType'"):
        env.step(Press("1"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"id": CORRIDOR}, r"action space Discrete\(2\): say in env\.make_env\.actions which key"),
        ({"id": CORRIDOR, "actions": {"left": 2}}, r"actions\.left=2 is not in the action space Discrete\(2\)"),
        ({"id": DIAL, "actions": {"left": [2.0]}}, r"actions\.left=\[2\.0\] is not in"),
        ({"id": DIAL, "actions": {"left": ["x"]}}, r"actions\.left=\['x'\] is not in"),
        ({"id": CORRIDOR, "actions": {"lefft": 0}}, "'lefft' is no key, and none of"),
        ({"id": "Nowhere-v0", "actions": ARROWS}, "not registered with Gymnasium"),
        ({"id": "no_such_package:Here-v0"}, "needs no-such-package: `uv pip install no-such-package`"),
        ({"between": (1.0, 1.0)}, "between must be a lower and a higher reward"),
        ({"verdict": "raw", "id": CORRIDOR, "actions": ARROWS}, "verdict=raw is for BrowserGym's MiniWoB"),
        ({"id": ".:Here-v0"}, "needs -: .*relative import"),
        ({"id": CORRIDOR, "actions": {"": 0}}, "'' is no key, and none of"),
        ({"between": (0.0, math.inf)}, "between must be a lower and a higher reward"),
        ({"verdict": "best"}, "verdict must"),
        ({"scale": 0.0}, "scale must be above 0"),
    ],
)
def test_what_cannot_run_is_refused_when_the_environment_is_built(options, words):
    with pytest.raises(ConfigError, match=words):
        GymnasiumEnv(**options)


def test_an_environment_without_a_picture_and_a_task_without_a_seed_are_refused():
    env = GymnasiumEnv(actions={"left": [0.0]})
    with pytest.raises(ConfigError, match="has no picture"):
        env.reset(task(BLIND))
    for config in ({}, {"id": DIAL}, {"seed": 1}, {"id": DIAL, "seed": "1"}, {"id": DIAL, "seed": -1}):
        with pytest.raises(TaskFormatError, match="registered id and an integer seed"):
            env.reset(Task("x", "", config=config))


def test_what_was_built_to_ask_how_it_is_drawn_is_closed(monkeypatch):
    closed = []
    monkeypatch.setattr(f"{TOYS.partition(':')[0]}.Corridor.close", lambda env: closed.append(env.render_mode))
    GymnasiumEnv(id=CORRIDOR, actions=ARROWS).close()
    assert closed == [None, "rgb_array"]


def test_tasks_without_a_name_say_where_to_write_one():
    with pytest.raises(ConfigError, match=r"env\.make_env\.id="):
        gymnasium_tasks([None], [0])


def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ConfigError, match="needs gymnasium: `uv pip install gymnasium`"):
        registered("CartPole-v1")
