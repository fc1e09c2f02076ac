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
    steps = [
        {
            "screen": str(path),
            "width": 64,
            "height": 48,
            "action": action.describe(),
            "response": f"Thought: {number}.\nAction: {action.describe()}",
        }
        for number, (path, action) in enumerate(zip(screens, EXPERT, strict=False))
    ]
    return Task("t@0/0/0", "type word", config={"steps": steps, "last_screen": str(screens[-1])}, max_steps=3)


def begun(task: Task, **options) -> RecordedDesktop:
    env = RecordedDesktop(StepScore(), **options)
    assert env.reset(task).screenshot == PICTURES[0]
    return env


def screen_of(result) -> int:
    return PICTURES.index(result.observation.screenshot)


def test_the_contract_of_a_desktop_holds(task):
    check_env(RecordedDesktop(StepScore()), task)


@pytest.mark.parametrize("patches", [0, 2])
def test_a_policy_that_repeats_the_expert_scores_all(task, patches):
    env = begun(task, patches=patches)
    results = [env.step(action) for action in EXPERT]
    assert [screen_of(result) for result in results] == [1, 2, 3]
    assert [result.terminated for result in results] == [False, False, True]
    assert [result.patch for result in results] == [None] * 3
    assert [result.reward for result in results] == pytest.approx([1.0] * 3)
    assert env.evaluate() == 1.0


def test_a_wrong_action_is_corrected_and_the_recording_goes_on(task):
    env = begun(task, patches=1)
    wrong = env.step(Click(1, 1))
    assert (screen_of(wrong), wrong.terminated, wrong.patch) == (1, False, Patch(EXPERT[0]))
    assert wrong.reward == pytest.approx(0.55)
    assert not env.step(EXPERT[1]).terminated
    assert env.step(EXPERT[2]).terminated
    assert env.evaluate() == pytest.approx(1 / 3)  # two thirds of progress, and no success


def test_what_would_end_the_task_is_corrected_too(task):
    early = begun(task).step(Finished())
    assert (early.terminated, early.patch, early.reward) == (False, Patch(EXPERT[0]), pytest.approx(0.19))


def test_beyond_the_corrections_an_episode_ends_where_it_went_wrong(task):
    env = begun(task, patches=1)
    env.step(Wait())
    end = env.step(Wait())
    assert (screen_of(end), end.terminated, end.patch) == (1, True, Patch(EXPERT[1]))
    assert env.evaluate() == 0.0
    with pytest.raises(EnvError, match="has terminated"):
        env.step(EXPERT[1])
    assert env.reset(task).screenshot == PICTURES[0]
    assert env.step(Wait()).terminated is False  # they are counted anew


def test_without_corrections_the_first_wrong_action_is_the_end_and_what_was_right_counts(task):
    env = begun(task, patches=0)
    env.step(EXPERT[0])
    assert env.step(TypeText("other")).terminated
    assert env.evaluate() == pytest.approx(1 / 6)


def test_the_last_action_may_be_wrong_too(task):
    env = begun(task, patches=2)
    env.step(EXPERT[0])
    env.step(EXPERT[1])
    end = env.step(Wait())
    assert (screen_of(end), end.terminated, end.patch) == (3, True, Patch(EXPERT[2]))
    assert env.evaluate() == pytest.approx(1 / 3)


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
