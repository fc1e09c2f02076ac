"""A recording as a desktop: what follows a right and a wrong action, and what an episode is worth."""

from pathlib import Path

import pytest

from arpo.agent.actions import Click, Finished, TypeText, Wait
from arpo.agent.matching import StepScore
from arpo.envs.contract import check_env
from arpo.envs.protocol import Patch
from arpo.envs.recorded import RecordedDesktop
from arpo.errors import EnvError, TaskFormatError
from arpo.types import Task
from tests.rollout.trajectories import make_png

EXPERT = (Click(30, 20), TypeText("word"), Finished())
PICTURES = [make_png(shade, (64, 48)) for shade in range(len(EXPERT) + 1)]


@pytest.fixture
def task(tmp_path: Path) -> Task:
    screens = []
    for number, png in enumerate(PICTURES):
        screens.append(tmp_path / f"{number}.png")
        screens[-1].write_bytes(png)
    steps = []
    for number, (path, action) in enumerate(zip(screens, EXPERT, strict=False)):
        said = {"action": action.describe(), "response": f"Thought: {number}.\nAction: {action.describe()}"}
        steps.append({"screen": str(path), "width": 64, "height": 48, **said})
    return Task("t@0/0/0", "type word", config={"steps": steps, "last_screen": str(screens[-1])}, max_steps=3)


def begun(task: Task, **options) -> RecordedDesktop:
    env = RecordedDesktop(StepScore(), **options)
    assert env.reset(task).screenshot == PICTURES[0]
    return env


def test_the_contract_of_a_desktop_holds(task):
    check_env(RecordedDesktop(StepScore()), task)


@pytest.mark.parametrize(
    ("patches", "actions", "screens", "wrong", "worth"),
    [
        (0, EXPERT, [1, 2, 3], [], 1.0),
        (2, EXPERT, [1, 2, 3], [], 1.0),
        (1, (Click(1, 1), *EXPERT[1:]), [1, 2, 3], [0], 1 / 3),  # two thirds of progress, and no success
        (1, (Finished(), *EXPERT[1:]), [1, 2, 3], [0], 1 / 3),  # what would end the task is corrected too
        (2, (*EXPERT[:2], Wait()), [1, 2, 3], [2], 1 / 3),
        (1, (Wait(), Wait()), [1, 1], [0, 1], 0.0),
        (0, (EXPERT[0], TypeText("other")), [1, 1], [1], 1 / 6),
    ],
)
def test_wrong_actions_are_corrected_until_there_are_too_many_and_what_was_right_counts(
    task, patches, actions, screens, wrong, worth
):
    env = begun(task, patches=patches)
    results = [env.step(action) for action in actions]
    assert [PICTURES.index(result.observation.screenshot) for result in results] == screens
    assert [result.terminated for result in results] == [False] * (len(actions) - 1) + [True]
    assert [result.patch for result in results] == [
        Patch(EXPERT[number]) if number in wrong else None for number in range(len(actions))
    ]
    assert env.evaluate() == pytest.approx(worth)
    with pytest.raises(EnvError, match="has terminated"):
        env.step(EXPERT[1])
    assert env.reset(task).screenshot == PICTURES[0]
    assert env.step(Wait()).terminated == (patches == 0)  # they are counted anew


@pytest.mark.parametrize(("action", "reward"), [(EXPERT[0], 1.0), (Click(1, 1), 0.55), (Finished(), 0.19)])
def test_a_step_is_worth_its_likeness_to_the_expert_s(task, action, reward):
    assert begun(task).step(action).reward == pytest.approx(reward)


def test_a_correction_has_the_recorded_thought_where_it_is_wanted(task):
    assert begun(task, thought="recorded").step(Wait()).patch == Patch(EXPERT[0], "0.")
    task.config["steps"][0]["response"] = "no action"
    assert begun(task, thought="recorded").step(Wait()).patch == Patch(EXPERT[0])


def test_the_tolerance_is_in_pixels_of_the_screen(task):
    assert begun(task, tolerance=3).step(Click(33, 17)).patch is None
    assert begun(task, tolerance=2).step(Click(33, 17)).patch is not None


def test_a_lost_screenshot_is_a_fault_of_the_desktop(task):
    env = begun(task)
    Path(task.config["steps"][1]["screen"]).unlink()
    with pytest.raises(EnvError, match=r"lost a screenshot.*1\.png"):
        env.step(EXPERT[0])


@pytest.mark.parametrize(
    "config",
    [{}, {"kind": "click", "seed": 1}, {"steps": [], "last_screen": "x"}, {"steps": [{"screen": "x"}]}],
    ids=["nothing", "another desktop's", "no steps", "half a step"],
)
def test_a_task_without_a_recording_is_refused(config):
    with pytest.raises(TaskFormatError, match="recording"):
        RecordedDesktop(StepScore()).reset(Task("t", "x", config=config))
