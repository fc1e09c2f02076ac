"""What TensorBoard shows of episodes, read back from its files."""

from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from arpo.agent.actions import Click, TypeText, Wait
from arpo.callbacks.trajectory_log import TrajectoryLog, as_markdown, choose, step_lags
from arpo.errors import ConfigError
from arpo.run.loggers import TensorBoardLogger
from arpo.types import Outcome, RolloutBatch, Trajectory
from tests.callbacks.support import fit, make_group, make_trajectory

SUCCESS = make_trajectory([Click(1, 2)], id="3/0/0")
FAILURE = make_trajectory([Wait()], id="3/0/1", task_reward=0.0, outcome=Outcome.MAX_STEPS)
REPLAYED = make_trajectory([Click(3, 4)], id="1/0/0")


def test_a_success_a_failure_and_a_replayed_trajectory_are_chosen() -> None:
    groups = [make_group(FAILURE, REPLAYED, injected=(1,)), make_group(SUCCESS, FAILURE)]
    assert list(choose(groups, success_threshold=0.5).items()) == [
        ("success", SUCCESS),
        ("failure", FAILURE),
        ("replayed", REPLAYED),
    ]


def test_a_replayed_success_is_not_shown_as_a_success_of_the_policy() -> None:
    groups = [make_group(FAILURE, REPLAYED, injected=(1,))]
    assert list(choose(groups, success_threshold=0.5)) == ["failure", "replayed"]


def test_the_text_of_an_episode_tells_what_was_asked_done_and_reached() -> None:
    episode = make_trajectory([Click(1, 2), "no_action"], task_reward=0.5)
    responses = ("Thought: look\nAction: click(1, 2)", "I would rather not.")
    steps = tuple(replace(step, response=said) for step, said in zip(episode.steps, responses, strict=True))
    text = as_markdown(replace(episode, steps=steps), replayed=True)
    for part in (
        "Press OK.",
        "click(start_box='(1,2)')",
        "Thought: look",
        "parse error: **no_action**",
        "I would rather not.",
        "task reward 0.5",
        "policy version 4",
        "replay buffer",
    ):
        assert part in text


def test_the_text_of_an_episode_can_be_written_whatever_a_model_said() -> None:
    odd = make_trajectory([TypeText("`*_<script>\n")])
    text = as_markdown(replace(odd, instruction="half \ud83d a pair"))
    assert "half ? a pair" in text
    text.encode()


def test_a_fit_writes_texts_and_histograms(tmp_path: Path, make_collector) -> None:
    logger = TensorBoardLogger(tmp_path)
    fit(tmp_path, make_collector(start=False), [TrajectoryLog(every_n_iterations=2)], loggers=[logger], iterations=4)
    events = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0, "histograms": 0}).Reload()
    tags = events.Tags()
    shown = {tag for tag in tags["tensors"] if tag.startswith("trajectory/")}
    assert shown
    assert shown <= {"trajectory/success/text_summary", "trajectory/failure/text_summary"}
    steps = {event.step for tag in shown for event in events.Tensors(tag)}
    assert steps == {1, 2, 4}  # the first and every second
    assert set(tags["histograms"]) == {"train/advantage", "train/ratio", "train/length", "train/lag"}
    histogram = events.Histograms("train/advantage")[-1]
    assert histogram.step == 4
    assert histogram.histogram_value.num == events.Histograms("train/length")[-1].histogram_value.num


def test_without_tensorboard_nothing_is_written(tmp_path: Path, make_collector) -> None:
    fit(tmp_path, make_collector(start=False), [TrajectoryLog()], iterations=1)
    assert not list(tmp_path.glob("events*"))


def test_an_interval_below_one_iteration_is_refused() -> None:
    with pytest.raises(ConfigError, match="every_n_iterations must be at least 1, got 0"):
        TrajectoryLog(every_n_iterations=0)


def test_the_lag_is_that_of_what_was_sampled_for_the_batch() -> None:
    # Versions 3, 5 and 5 for a policy of version 5; the replayed trajectory is not counted
    def sampled(*versions: int) -> Trajectory:
        played = make_trajectory(["a"] * len(versions))
        steps = zip(played.steps, versions, strict=True)
        return replace(played, steps=tuple(replace(step, policy_version=version) for step, version in steps))

    rows = [sampled(3, 5), sampled(5), sampled(0, 0)]
    assert step_lags(RolloutBatch(0, 5, [make_group(*rows, injected=(2,))])) == [2, 0, 0]
