"""The logs of a run: its record, metrics by hand and where they land, episodes in TensorBoard, records of updates."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning import Callback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from arpo.agent.actions import Click, TypeText, Wait
from arpo.callbacks.logs import (
    IterationAxis,
    RolloutMetrics,
    RunRecord,
    TrajectoryLog,
    UpdateLog,
    as_markdown,
    batch_metrics,
    choose,
    git_state,
    machine,
    step_lags,
)
from arpo.methods.grpo import GRPO
from arpo.methods.spa import ShortestPath
from arpo.rollout.storage import read_update, update_path
from arpo.run.loggers import JsonLinesLogger, TensorBoardLogger
from arpo.types import Outcome, RolloutBatch, Trajectory
from tests.callbacks.support import IdleModule, fail, fit, make_group, make_trajectory
from tests.exchanges import with_exchanges

SUCCESS = make_trajectory([Click(1, 2), Wait()], task_reward=1.0, outcome=Outcome.TERMINATED)
USUAL = GRPO()
FAILURE = make_trajectory([Wait()], task_reward=0.0, outcome=Outcome.MAX_STEPS)
NONSENSE = make_trajectory([Wait(), "no_action"], task_reward=0.0, outcome=Outcome.PARSE_ERROR)


def measured(groups, success_threshold=0.5, method=USUAL):
    return batch_metrics(groups, success_threshold=success_threshold, rewards=method.rewards)


def test_shares_and_means_are_of_trajectories() -> None:
    metrics = measured([make_group(SUCCESS, FAILURE), make_group(NONSENSE, FAILURE)])
    assert metrics["rollout/success_rate"] == 1 / 4
    assert metrics["rollout/task_reward"] == 1 / 4
    assert metrics["rollout/format_reward"] == -1 / 4
    assert metrics["rollout/steps"] == (2 + 1 + 2 + 1) / 4
    assert metrics["rollout/tokens_per_step"] == 3
    assert metrics["rollout/truncated"] == 2 / 4
    assert metrics["rollout/parse_error"] == 1 / 4
    assert metrics["rollout/parse_error/no_action"] == 1 / 4
    assert metrics["rollout/outcome/max_steps"] == 2 / 4
    shares = [value for name, value in metrics.items() if name.startswith("rollout/outcome/")]
    assert (len(shares), sum(shares)) == (len(Outcome), 1)
    idle = measured([make_group(replace(SUCCESS, steps=()))])
    assert (idle["rollout/steps"], idle["rollout/tokens_per_step"]) == (0, SUCCESS.action_tokens)


def test_groups_are_counted_by_what_they_teach() -> None:
    # In the third group all failed, but the format reward tells them apart.
    pairs = ((SUCCESS, SUCCESS), (FAILURE, FAILURE), (FAILURE, NONSENSE), (SUCCESS, FAILURE))
    metrics = measured([make_group(*pair) for pair in pairs])
    assert metrics["group/count"] == 4
    assert metrics["group/size"] == 2
    assert metrics["group/all_succeeded"] == 1 / 4
    assert metrics["group/all_failed"] == 2 / 4
    assert metrics["group/degenerate"] == 2 / 4
    # population deviations: 0, 0, of (0, -1) 0.5, of (1, 0) 0.5
    assert metrics["group/reward_std"] == (0 + 0 + 0.5 + 0.5) / 4


def test_the_reward_of_a_group_is_the_one_that_its_method_learns_from() -> None:
    metrics = measured([make_group(FAILURE, NONSENSE)], method=GRPO(format_weight=0.5))
    assert metrics["group/reward_std"] == 0.25  # of (0, -0.5)
    short = make_trajectory([Wait()], outcome=Outcome.TERMINATED)
    metrics = measured([make_group(short, SUCCESS)], method=ShortestPath(shortening=0.5))
    assert metrics["group/degenerate"] == 0  # its advantages are 1 and -1
    assert metrics["group/reward_std"] == 0.125  # of (1, 1 - 0.5 · (2 - 1) / 2)
    assert metrics["rollout/task_reward"] == 1
    partial = make_group(make_trajectory([Wait()], task_reward=0.6))
    assert measured([partial])["rollout/success_rate"] == 1
    assert measured([partial], success_threshold=0.9)["rollout/success_rate"] == 0


def test_a_fit_logs_one_line_an_iteration_with_the_collectors_own_numbers(tmp_path: Path, make_collector) -> None:
    """The module takes two optimizer steps an iteration, and Lightning would count those on the x axis."""
    logger = JsonLinesLogger(tmp_path / "metrics.jsonl")
    module = IdleModule()
    module.at_step = lambda: module.optimizers().step()
    callbacks = [IterationAxis(), RolloutMetrics(), TrajectoryLog()]
    fit(tmp_path, make_collector(start=False), callbacks, loggers=[logger], iterations=3, module=module)
    assert not list(tmp_path.glob("events*"))  # no text is written without TensorBoard
    lines = [json.loads(line) for line in logger.path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert {"rollout/success_rate", "group/all_failed", "time/rollout", "time/update"} <= line.keys()
        assert line["rollout/episodes"] == 8  # 2 tasks, groups of 4
        assert line["policy/version"] == line["step"]


# --- episodes ------------------------------------------------------------------------------------------

SHOWN = make_trajectory([Click(1, 2)], id="3/0/0")
LOST = make_trajectory([Wait()], id="3/0/1", task_reward=0.0, outcome=Outcome.MAX_STEPS)
REPLAYED = make_trajectory([Click(3, 4)], id="1/0/0")


def test_a_success_a_failure_and_a_replayed_trajectory_are_chosen() -> None:
    replayed, collected = make_group(LOST, REPLAYED, injected=(1,)), make_group(SHOWN, LOST)
    chosen = choose([replayed, collected], success_threshold=0.5)
    assert list(chosen.items()) == [("success", SHOWN), ("failure", LOST), ("replayed", REPLAYED)]
    assert list(choose([replayed], success_threshold=0.5)) == ["failure", "replayed"]  # it is none of the policy's


def test_the_text_of_an_episode_tells_what_was_asked_done_and_reached_whatever_a_model_said() -> None:
    episode = make_trajectory([Click(1, 2), "no_action", TypeText("`*_<script>\n")], task_reward=0.5)
    responses = ("Thought: look\nAction: click(1, 2)", "I would rather not.", "")
    steps = tuple(replace(step, response=said) for step, said in zip(episode.steps, responses, strict=True))
    text = as_markdown(replace(episode, steps=steps, instruction="Press OK. half \ud83d a pair"), replayed=True)
    text.encode()
    shown = ("Press OK. half ? a pair", "click(start_box='(1,2)')", "Thought: look", "parse error: **no_action**")
    for part in (*shown, "I would rather not.", "task reward 0.5", "policy version 4", "replay buffer"):
        assert part in text


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


class Untrained(Callback):
    """Whoever takes all that is sampled for what is not trained, as that of a foreign agent's helper."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        batch.groups = [
            replace(
                group,
                trajectories=tuple(
                    with_exchanges(each, trained=[False] * len(each.exchanges)) for each in group.trajectories
                ),
            )
            for group in batch.groups
        ]


def test_a_fit_of_which_nothing_is_trained_goes_on_and_has_no_histogram_of_advantages(tmp_path, make_collector):
    logger = TensorBoardLogger(tmp_path)
    fit(tmp_path, make_collector(start=False), [Untrained(), TrajectoryLog()], loggers=[logger], iterations=1)
    events = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0}).Reload()
    assert set(events.Tags()["histograms"]) == {"train/length", "train/lag"}


def test_the_lag_is_that_of_what_was_sampled_for_the_batch() -> None:
    # Versions 3, 5 and 5 for a policy of version 5; the replayed trajectory is not counted
    def sampled(*versions: int) -> Trajectory:
        return with_exchanges(make_trajectory(["a"] * len(versions)), policy_version=versions)

    rows = [sampled(3, 5), sampled(5), sampled(0, 0)]
    assert step_lags(RolloutBatch(0, 5, [make_group(*rows, injected=(2,))])) == [2, 0, 0]


# --- updates ------------------------------------------------------------------------------------------


class Watched(IdleModule):
    """Notes in which iterations it was asked to measure what came after."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        if self.measures_after:
            self.asked.append(batch.iteration)


def test_every_iteration_leaves_what_it_learned_from(tmp_path, make_collector):
    stale = update_path(tmp_path / "trajectories", 5)  # of a run that goes on from an earlier iteration
    stale.parent.mkdir(parents=True)
    stale.touch()
    collector = make_collector(start=False)
    fit(tmp_path, collector, [UpdateLog()], iterations=2, module=Watched())
    assert not stale.exists()
    for iteration in range(2):
        record = read_update(update_path(tmp_path / "trajectories", iteration))
        assert (record.iteration, record.policy_version) == (iteration, iteration)
        members = [member for group in record.groups for member in group.members]
        stored = {t.id: t for t in collector.runtime.store.read("train", iteration)}
        assert set(members) == set(stored)
        assert record.offsets.tolist() == [0, *torch.tensor([stored[m].action_tokens for m in members]).cumsum(0)]
        first = len(record.groups[0].members)
        assert record.advantages.tolist() == [*range(first), *(10 + n for n in range(len(members) - first))]


@pytest.mark.parametrize(("every", "asked"), [(2, [0, 1, 3]), (0, [])])
def test_the_policy_is_asked_again_after_the_first_update_and_every_few(tmp_path, make_collector, every, asked):
    module = Watched()
    callback = UpdateLog(after_every_n_iterations=every)
    fit(tmp_path, make_collector(start=False), [callback], iterations=4, module=module)
    assert module.asked == asked


# --- the run ------------------------------------------------------------------------------------------


def test_every_start_of_a_run_tells_code_packages_machine_and_command_and_how_it_ended(
    tmp_path: Path, make_collector
) -> None:
    with pytest.raises(RuntimeError, match="boom"):
        fit(tmp_path, make_collector(), [RunRecord(tmp_path)], module=IdleModule(at_step=fail))
    fit(tmp_path, make_collector(directory="second"), [RunRecord(tmp_path)])
    stopped = IdleModule()
    stopped.at_step = lambda: setattr(stopped.trainer, "should_stop", True)
    fit(tmp_path, make_collector(directory="third"), [RunRecord(tmp_path)], module=stopped, iterations=5)
    starts = json.loads((tmp_path / "run.json").read_text())["starts"]
    assert [start["status"] for start in starts] == ["RuntimeError: boom", "finished", "stopped after iteration 1"]
    entry = starts[1]
    assert entry["packages"]["lightning"].startswith("2.")
    assert entry["machine"]["cores"] >= 1
    assert entry["command"]
    assert entry["environment"]["OMP_NUM_THREADS"] == os.environ["OMP_NUM_THREADS"]


def test_the_state_of_a_checkout_is_its_commit_and_whether_files_differ(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) is None

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "--no-verify", "-m", "one")
    state = git_state(tmp_path)
    assert len(state["commit"]) == 40
    assert not state["dirty"]
    (tmp_path / "file").write_text("2")
    assert git_state(tmp_path) == state | {"dirty": True}


def test_cores_are_those_that_this_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert machine()["cores"] == 1
    finally:
        os.sched_setaffinity(0, allowed)
