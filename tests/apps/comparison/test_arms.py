"""Which runs are one arm, what an arm is called, and which arms may be compared."""

import re

import pytest

from arpo.apps.comparison.arms import Arm, group, obstacle, warnings
from arpo.apps.comparison.runs import Run, read_run
from experiments.studies import STUDIES
from tests.apps.comparison.folders import START, compose, resolved, write_run


def runs(tmp_path, **named) -> list[Run]:
    """Runs by name, each with its configuration; the name's seed is the run's."""
    return [
        read_run(write_run(tmp_path, name, [0.5], seed=int(name.partition("seed=")[2] or 0), config=config))
        for name, config in named.items()
    ]


def grouped(tmp_path, **named) -> dict[str, list[int]]:
    arms, left_out = group(runs(tmp_path, **named))
    assert left_out == []
    return {arm.name: list(arm.runs) for arm in arms}


def composed(tmp_path, *words: str, seed: int = 0) -> Arm:
    """An arm of one run with the configuration of a command."""
    config = resolved(compose(*words), tmp_path / "run", seed)
    return Arm(" ".join(words), {seed: Run(tmp_path, config, seed, config["iterations"], (), (), {}, 0.0)})


def test_runs_that_differ_in_their_seed_alone_are_one_arm(tmp_path):
    arms = grouped(
        tmp_path,
        **{
            "replay=on,seed=1": {"replay": 1, "evaluation": {"seed": 1}},
            "replay=off,seed=0": {"replay": 0, "evaluation": {"seed": 0}},
            "replay=on,seed=0": {"replay": 1, "evaluation": {"seed": 0}},
        },
    )
    assert arms == {"replay=off": [0], "replay=on": [0, 1]}


def test_an_arm_is_named_by_the_overrides_that_others_do_not_have(tmp_path):
    arms = grouped(
        tmp_path,
        **{
            "lr=1,seed=0": {"lr": 1},
            "clip=2,lr=1,seed=0": {"lr": 1, "clip": 2},
            "clip=2,lr=1,seed=1": {"lr": 1, "clip": 2},
        },
    )
    assert arms == {"default": [0], "clip=2": [0, 1]}


def test_a_run_without_overrides_is_the_default_and_comes_first(tmp_path):
    assert list(grouped(tmp_path, **{"a=1": {"a": 1}, "default": {"a": 0}})) == ["default", "a=1"]


def test_an_override_that_says_what_is_so_anyway_makes_no_arm(tmp_path):
    assert grouped(tmp_path, **{"default": {"a": 0}, "a=0,seed=1": {"a": 0}}) == {"default": [0, 1]}


def test_arms_of_several_experiments_are_named_by_them(tmp_path):
    arms = grouped(tmp_path, **{"default": {"name": "arpo"}, "a=1": {"name": "dart", "a": 1}})
    assert list(arms) == ["arpo", "dart a=1"]


def test_arms_of_one_name_whose_yaml_was_changed_are_told_apart(tmp_path):
    arms = grouped(tmp_path, **{"seed=0": {"a": 1}, "seed=1": {"a": 2}})
    assert arms == {"default (a=1)": [0], "default (a=2)": [1]}


def test_an_arm_whose_name_was_cut_is_named_by_what_differs(tmp_path):
    cut = "x" * 80 + "-0123abcd"
    assert list(grouped(tmp_path, **{"seed=0": {"a": 1}, cut: {"a": 2}})) == ["default", "a=2"]


def test_of_two_runs_of_one_configuration_and_seed_the_younger_counts(tmp_path):
    old = write_run(tmp_path, "default", [0.1])
    young = write_run(tmp_path, "seed=0", [0.9], starts=[START | {"started": "2026-02-01T00:00:00.000+00:00"}])
    for order in ([old, young], [young, old]):
        (arm,), (reason,) = group([read_run(folder) for folder in order])
        assert arm.runs[0].directory == young
        assert reason == f"{old}: {young} has the same configuration and seed and is younger"


# --- comparable -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tasks=miniwob_multistep"], r"different tasks \(tasks\.pages: "),
        (["tasks.train.seeds=[3]"], r"different tasks \(tasks\.train\.seeds: \[2\] and \[3\]\)"),
        (["env=desktop"], r"different tasks \(env\.make_env: MiniWobEnv and DockerDesktop\)"),
        (
            ["warmstart=warmstart_miniwob"],
            r"different warm starts \(warmstart: warmstart_sparse and warmstart_miniwob\)",
        ),
        (["warmstart=null", "model.path=DIR"], "different warm starts "),
        (["iterations=41"], r"different numbers of iterations \(iterations: 40 and 41\)"),
        (["evaluation.temperature=0.5"], r"different evaluation protocols \(evaluation\.temperature: 1\.0 and 0\.5\)"),
        (["evaluation.rollouts_per_task=9"], "different evaluation protocols "),
        (["evaluation.protocol=standard"], "different evaluation protocols "),
        (["evaluation.seed=5"], r"different evaluation protocols \(evaluation\.seed: its own and 5\)"),
        (["callbacks.evaluation.tasks.in_domain=[]"], "different evaluation protocols "),
        (["rollout.settings.max_steps=9"], "different evaluation protocols "),
        (["rollout.settings.success_threshold=0.9"], "different evaluation protocols "),
    ],
)
def test_what_is_not_comparable_is_said(tmp_path, words, said):
    reference = composed(tmp_path, "experiment=replay_ablation")
    other = composed(tmp_path, "experiment=replay_ablation", *words)
    assert re.search(said, obstacle(reference, other))
    assert re.search("they have different", obstacle(other, reference))


@pytest.mark.parametrize(
    "words",
    [
        ["replay=off"],
        ["replay=pool"],
        ["module.optimizer.lr=1e-3"],
        ["rollout.settings.group_size=4"],
        ["rollout.settings.max_policy_lag=1"],
        ["env.size=8"],
        ["callbacks.evaluation.every_n_iterations=10"],
        ["logger=default", "resume=auto", "threads=2"],
    ],
)
def test_what_a_study_may_change_is_comparable(tmp_path, words):
    reference = composed(tmp_path, "experiment=replay_ablation")
    assert obstacle(reference, composed(tmp_path, "experiment=replay_ablation", *words, seed=3)) == ""


@pytest.mark.parametrize("name", STUDIES)
def test_the_arms_of_every_study_are_comparable(tmp_path, name):
    study = STUDIES[name]
    arms = [composed(tmp_path, f"experiment={arm.experiment}", *arm.overrides) for arm in study.arms]
    assert [obstacle(arms[0], arm, subject=study.subject) for arm in arms[1:]] == [""] * (len(arms) - 1)


def test_what_a_study_is_about_is_no_obstacle_and_everything_else_is(tmp_path):
    few, many, others = (
        composed(tmp_path, "experiment=miniwob_small", *words)
        for words in ([], ["tasks=miniwob_128"], ["tasks=miniwob_seeds"])
    )
    assert "different tasks (tasks.train.seeds" in obstacle(many, few)
    assert obstacle(many, few, subject="tasks.train.*") == ""
    assert "different tasks (tasks.train_seeds" in obstacle(many, others, subject="tasks.train.*")


def test_an_arm_without_runs_is_not_comparable(tmp_path):
    arm = composed(tmp_path, "experiment=smoke")
    assert "has no run" in obstacle(Arm("other", {}), arm)
    assert "has no run" in obstacle(arm, Arm("other", {}))


# --- origin ---------------------------------------------------------------------------------------------------------


def of_commits(tmp_path, *commits) -> list[Arm]:
    arms = []
    for number, (commit, dirty) in enumerate(commits):
        start = START | {"git": commit and {"commit": commit, "dirty": dirty}}
        run = read_run(write_run(tmp_path, f"x={number}", [0.5], starts=[start]))
        arms.append(Arm(f"x={number}", {0: run}))
    return arms


def test_runs_of_one_commit_need_no_warning(tmp_path):
    assert warnings(of_commits(tmp_path, ("a" * 40, False), ("a" * 40, False))) == []


def test_runs_of_different_commits_are_a_warning(tmp_path):
    (said,) = warnings(of_commits(tmp_path, ("a" * 40, False), ("b" * 40, False)))
    assert "different commits" in said
    assert "x=0: aaaaaaaaaa; x=1: bbbbbbbbbb" in said


def test_local_changes_and_unknown_commits_are_warnings(tmp_path):
    assert "local changes" in warnings(of_commits(tmp_path / "dirty", ("a" * 40, True)))[0]
    (said,) = warnings(of_commits(tmp_path / "none", (None, False)))
    assert said == "Nobody recorded the commit of x=0."
