"""Shares and means by hand, and where they land in the log."""

import json
from pathlib import Path

import pytest

from arpo.agent.actions import Click, Wait
from arpo.callbacks.iteration_axis import IterationAxis
from arpo.callbacks.rollout_metrics import RolloutMetrics, batch_metrics
from arpo.methods.grpo import GRPO
from arpo.methods.spa import ShortestPath
from arpo.run.loggers import JsonLinesLogger
from arpo.types import Outcome
from tests.callbacks.support import IdleModule, fit, make_group, make_trajectory

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


def test_groups_are_counted_by_what_they_teach() -> None:
    groups = [
        make_group(SUCCESS, SUCCESS),
        make_group(FAILURE, FAILURE),
        make_group(FAILURE, NONSENSE),  # all failed, but the format reward tells them apart
        make_group(SUCCESS, FAILURE),
    ]
    metrics = measured(groups)
    assert metrics["group/count"] == 4
    assert metrics["group/size"] == 2
    assert metrics["group/all_succeeded"] == 1 / 4
    assert metrics["group/all_failed"] == 2 / 4
    assert metrics["group/degenerate"] == 2 / 4
    # population deviations: 0, 0, of (0, -1) 0.5, of (1, 0) 0.5
    assert metrics["group/reward_std"] == (0 + 0 + 0.5 + 0.5) / 4


def test_the_format_reward_counts_with_its_weight() -> None:
    metrics = measured([make_group(FAILURE, NONSENSE)], method=GRPO(format_weight=0.5))
    assert metrics["group/reward_std"] == 0.25  # of (0, -0.5)


def test_the_reward_of_a_group_is_the_one_that_its_method_learns_from() -> None:
    short = make_trajectory([Wait()], outcome=Outcome.TERMINATED)
    metrics = measured([make_group(short, SUCCESS)], method=ShortestPath(shortening=0.5))
    assert metrics["group/degenerate"] == 0  # its advantages are 1 and -1
    assert metrics["group/reward_std"] == 0.125  # of (1, 1 - 0.5 · (2 - 1) / 2)
    assert metrics["rollout/task_reward"] == 1


def test_a_partial_reward_is_a_success_only_above_the_threshold() -> None:
    partial = make_group(make_trajectory([Wait()], task_reward=0.6))
    assert measured([partial])["rollout/success_rate"] == 1
    assert measured([partial], success_threshold=0.9)["rollout/success_rate"] == 0


def test_an_empty_rollout_is_refused() -> None:
    with pytest.raises(ValueError, match="without a trajectory"):
        measured([])


def test_a_fit_logs_one_line_an_iteration_with_the_collectors_own_numbers(tmp_path: Path, make_collector) -> None:
    """The module takes two optimizer steps an iteration, and Lightning would count those on the x axis."""
    logger = JsonLinesLogger(tmp_path / "metrics.jsonl")
    module = IdleModule()
    module.at_step = lambda: module.optimizers().step()
    callbacks = [IterationAxis(), RolloutMetrics()]
    fit(tmp_path, make_collector(start=False), callbacks, loggers=[logger], iterations=3, module=module)
    lines = [json.loads(line) for line in logger.path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert {"rollout/success_rate", "group/all_failed", "time/rollout", "time/update"} <= line.keys()
        assert line["rollout/episodes"] == 8  # 2 tasks, groups of 4
        assert line["policy/version"] == line["step"]
