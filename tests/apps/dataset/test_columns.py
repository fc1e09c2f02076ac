from dataclasses import replace

from arpo.apps.dataset.columns import STEP, TRAJECTORY, row
from arpo.types import Outcome
from tests.rollout.trajectories import make_trajectory


def test_a_row_has_every_column_and_the_pictures_inside():
    trajectory = make_trajectory(steps=2, outcome=Outcome.MAX_STEPS)
    made = row(trajectory)
    assert made.keys() == TRAJECTORY.keys()
    assert (made["id"], made["outcome"], made["task_reward"], made["seed"]) == ("3/0/1", "max_steps", 1.0, 2**63 - 1)
    assert made["image_window"] is None
    for step, told in zip(trajectory.steps, made["steps"], strict=True):
        assert told.keys() == STEP.keys()
        assert told["screenshot"]["bytes"] == trajectory.screenshots[step.screenshot]
        assert told["response_ids"] == [4, 151_645]
        assert told["sampler_logprobs"] == list(step.sampler_logprobs)  # to the last bit
    assert made["last_screenshot"]["path"] == f"{trajectory.last_screenshot}.png"


def test_half_a_surrogate_pair_becomes_a_question_mark():
    assert row(make_trajectory())["instruction"] == "click “red” ?"


def test_a_screen_that_was_not_taken_is_null():
    assert row(replace(make_trajectory(), last_screenshot=""))["last_screenshot"] is None
