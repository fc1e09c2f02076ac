"""Choosing tasks: a rule, numbers by hand, episodes that are not run twice, and a list that can be trained on."""

import json
from dataclasses import asdict

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from arpo.envs.fake import FakeDesktop, fake_tasks
from arpo.errors import ConfigError, EnvError
from arpo.evaluation.selection import Attempts, SelectionRule, Verdict, chosen_config, listed_only, select_tasks
from arpo.evaluation.settings import EvaluationSettings
from arpo.run.evaluate import select
from arpo.types import Task
from tests.inference.scripted import ScriptedEngine
from tests.rollout.support import red_clicker

TASK = Task("t", "do")
IMPOSSIBLE = Task("i", "fly", infeasible=True)
HOW = EvaluationSettings(rollouts_per_task=4, temperature=1.0)


@pytest.mark.parametrize(
    ("successes", "episodes", "lost", "verdict"),
    [
        (0, 16, 0, Verdict.TOO_HARD),
        (1, 16, 0, Verdict.KEPT),
        (15, 16, 0, Verdict.KEPT),
        (16, 16, 0, Verdict.TOO_EASY),
        (6, 12, 4, Verdict.KEPT),  # 4 of 16 is a quarter, and not more
        (6, 11, 5, Verdict.UNSTABLE),
        (0, 0, 16, Verdict.UNSTABLE),
        (0, 11, 5, Verdict.UNSTABLE),  # nobody knows whether it is too hard
    ],
)
def test_a_task_is_kept_when_it_is_solved_sometimes_and_its_environment_holds(successes, episodes, lost, verdict):
    rule = SelectionRule(min_successes=1, max_successes=15, max_lost_share=0.25)
    assert rule.judge(Attempts(TASK, successes, episodes, lost)) is verdict


def test_infeasible_tasks_are_dropped_or_judged_like_all_others_and_exactly_so_many_successes_may_be_asked_for():
    solved = Attempts(IMPOSSIBLE, 3, 16, 0)
    assert SelectionRule(infeasible="drop").judge(solved) is Verdict.INFEASIBLE
    assert SelectionRule(infeasible="keep").judge(solved) is Verdict.KEPT
    rule = SelectionRule(min_successes=2, max_successes=2)
    verdicts = [rule.judge(Attempts(TASK, successes, 4, 0)) for successes in (1, 2, 3)]
    assert verdicts == [Verdict.TOO_HARD, Verdict.KEPT, Verdict.TOO_EASY]


@pytest.mark.parametrize(
    ("target", "arguments", "message"),
    [
        (EvaluationSettings, {"rollouts_per_task": 0}, "rollouts_per_task must be at least 1, got 0"),
        (EvaluationSettings, {"temperature": -0.1}, "temperature must be at least 0, got -0.1"),
        (EvaluationSettings, {"temperature": float("inf")}, "temperature must be a finite number, got inf"),
        (EvaluationSettings, {"protocol": "soft"}, "protocol must be 'hard' or 'standard', got 'soft'"),
        (SelectionRule, {"min_successes": -1}, "min_successes must be at least 0, got -1"),
        (SelectionRule, {"min_successes": 3, "max_successes": 2}, "max_successes=2 is below min_successes=3"),
        (SelectionRule, {"infeasible": "maybe"}, "infeasible must be 'keep' or 'drop'"),
        (SelectionRule, {"max_lost_share": 1.0}, "max_lost_share must be below 1, got 1.0"),
    ],
)
def test_an_impossible_number_is_refused(target, arguments, message):
    with pytest.raises(ConfigError, match=message):
        target(**arguments)


class HalfBroken(FakeDesktop):
    """Its checker fails on sequences."""

    def evaluate(self):
        if self._scene.kind == "sequence":
            raise EnvError("evaluate", "checker is broken")
        return super().evaluate()


def half_right(chat):
    """Click right in every second episode, whatever the task."""
    click = red_clicker(chat)
    return lambda request: click(request) if request.sampling.seed % 2 else "Action: finished()"


def test_tasks_are_tried_and_judged(chat, make_runtime):
    runtime = make_runtime(engine=ScriptedEngine(chat, half_right(chat)), make_env=HalfBroken, max_attempts=1)
    tasks = fake_tasks(3, kinds=["click", "sequence", "infeasible"])
    selection = select_tasks(runtime, tasks, SelectionRule(), HOW, name="train")
    click, sequence, impossible = selection.attempts
    assert 0 < click.successes < click.episodes == 4
    assert (sequence.episodes, sequence.lost) == (0, 4)
    assert (impossible.episodes, impossible.lost) == (0, 0)  # not even tried
    assert selection.kept == (tasks[0],)
    assert [row[-1] for row in selection.table()] == ["verdict", "kept", "unstable", "infeasible"]
    assert [row["verdict"] for row in selection.to_json()] == ["kept", "unstable", "infeasible"]


def test_more_tasks_than_fit_at_once_come_in_parts_and_keep_their_order(chat, make_runtime):
    runtime = make_runtime(engine=ScriptedEngine(chat, red_clicker(chat)), size=1)
    tasks = fake_tasks(5, kinds=["click"])
    selection = select_tasks(runtime, tasks, SelectionRule(), HOW, name="train")  # 4 episodes at once, 4 of each task
    assert selection.kept == tuple(tasks)
    assert [each.successes for each in selection.attempts] == [4] * 5


def test_an_interrupted_selection_goes_on_where_it_stopped(chat, make_runtime):
    tasks = fake_tasks(3, kinds=["click"])
    first = ScriptedEngine(chat, half_right(chat))
    whole = select_tasks(make_runtime(engine=first, size=1), tasks, SelectionRule(), HOW, name="train")
    other = make_runtime(engine=ScriptedEngine(chat, half_right(chat)), size=1, directory="interrupted")
    select_tasks(other, tasks[:2], SelectionRule(), HOW, name="train")
    again = ScriptedEngine(chat, half_right(chat))
    third = make_runtime(engine=again, size=1, directory="interrupted")
    assert select_tasks(third, tasks, SelectionRule(), HOW, name="train") == whole
    assert 0 < len(again.requests) < len(first.requests)


def test_what_cannot_be_chosen_is_refused_before_anything_runs(make_runtime):
    runtime = make_runtime(start=False)
    with pytest.raises(ConfigError, match="the list is empty"):
        select_tasks(runtime, [], SelectionRule(), HOW, name="train")
    with pytest.raises(ConfigError, match=r"min_successes=5 of rollouts_per_task=4 episodes is impossible"):
        select_tasks(runtime, [TASK], SelectionRule(min_successes=5), HOW, name="train")


def test_the_list_of_any_environment_is_cut_down_and_can_be_loaded_and_one_by_domain_stays_one():
    group = {"train": {"_target_": "arpo.envs.fake.fake_tasks", "count": 4, "seed": "${seed}"}, "held_out": []}
    tasks = fake_tasks(4, seed=3)
    chosen = chosen_config(group, "train", [tasks[2], tasks[0]])
    assert chosen["held_out"] == []
    assert instantiate(OmegaConf.create({"seed": 3, "tasks": chosen}).tasks.train) == [tasks[2], tasks[0]]
    with pytest.raises(ConfigError, match="not in the list that they are chosen from: gone"):
        listed_only([TASK], ["t", "gone"])
    loader = {"_target_": "osworld_tasks", "root": "${paths.osworld}", "ids": {"os": ["a", "b"], "vlc": ["c"]}}
    kept = [Task("b", "do", "os"), Task("c", "do", "vlc")]
    chosen = chosen_config({"train": loader}, "train", kept)
    assert chosen == {"train": {**loader, "ids": {"os": ["b"], "vlc": ["c"]}}}


def test_the_command_writes_a_group_of_tasks_and_every_number(chat, make_runtime, tmp_path, capsys):
    train = {"_target_": "arpo.envs.fake.fake_tasks", "count": 2, "kinds": "${tasks.kinds}"}
    cfg = OmegaConf.create(
        {
            "evaluation": {"_target_": "arpo.evaluation.settings.EvaluationSettings", **asdict(HOW)},
            "checkpoint": "a/policy",
            "paths": {"run_dir": str(tmp_path)},
            "tasks": {"kinds": ["click", "sequence"], "train": train},
            "selection": {"_target_": "arpo.evaluation.selection.SelectionRule", "min_successes": 1},
        }
    )
    tasks = instantiate(cfg.tasks.train)
    select(cfg, make_runtime(engine=ScriptedEngine(chat, red_clicker(chat))), {"train": tasks})
    text = (tmp_path / "selected.yaml").read_text()
    assert text.startswith("# Tasks chosen by 4 attempts of a/policy at each")
    assert instantiate(OmegaConf.create({"tasks": OmegaConf.create(text)}).tasks.train) == [tasks[0]]
    judged = json.loads((tmp_path / "selection.json").read_text())["train"]
    assert [row["verdict"] for row in judged] == ["kept", "too hard"]  # the clicker never does the second click
    assert "1 of 2 tasks are kept" in capsys.readouterr().out
