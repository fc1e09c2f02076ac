"""Which runs are one arm, what an arm is called, and which arms may be compared."""

import copy
import re
from dataclasses import replace

import pytest

from arpo.apps.comparison.arms import ABSENT, Arm, differing, group, merge_repeated, obstacle, settings, warnings
from arpo.apps.comparison.runs import Run, read_run
from experiments.studies import STUDIES
from tests.apps.comparison.folders import START, compose, resolved, write_run


def runs(tmp_path, **named) -> list[Run]:
    """Runs by name, each with its configuration; the name's seed is the run's."""
    return [
        read_run(write_run(tmp_path, name, [0.5], seed=int(name.partition("seed=")[2] or 0), config=config))
        for name, config in named.items()
    ]


def composed(tmp_path, *words: str, seed: int = 0) -> Arm:
    """An arm of one run with the configuration of a command."""
    config = resolved(compose(*words), tmp_path / "run", seed)
    return Arm(" ".join(words), {seed: Run(tmp_path, config, seed, config["iterations"], (), (), {})})


CUT = "x" * 80 + "-0123abcd"
"""The name of a folder that does not say its overrides."""


ONE_SEED = {"replay": 1, "evaluation": {"seed": 0}}
ARMS = {
    "runs that differ in their seed alone are one": (
        {
            "replay=on,seed=1": ONE_SEED | {"evaluation": {"seed": 1}},
            "replay=off,seed=0": ONE_SEED | {"replay": 0},
            "replay=on,seed=0": ONE_SEED,
        },
        {"replay=off": [0], "replay=on": [0, 1]},
    ),
    "it is named by the overrides that others do not have": (
        {"lr=1,seed=0": {"lr": 1}} | {f"clip=2,lr=1,seed={seed}": {"lr": 1, "clip": 2} for seed in (0, 1)},
        {"default": [0], "clip=2": [0, 1]},
    ),
    "without overrides it is the default and first": (
        {"a=1": {"a": 1}, "default": {"a": 0}},
        {"default": [0], "a=1": [0]},
    ),
    "an override that says what is so anyway makes none": (
        {"default": {"a": 0}, "a=0,seed=1": {"a": 0}},
        {"default": [0, 1]},
    ),
    "of several experiments it is named by them": (
        {"default": {"name": "arpo"}, "a=1": {"name": "dart", "a": 1}},
        {"arpo": [0], "dart a=1": [0]},
    ),
    "of one name with another yaml it is distinguished": (
        {"seed=0": {"a": 1}, "seed=1": {"a": 2}},
        {"default (a=1)": [0], "default (a=2)": [1]},
    ),
    "a name that was cut is what differs": ({"seed=0": {"a": 1}, CUT: {"a": 2}}, {"default": [0], "a=2": [0]}),
}


@pytest.mark.parametrize(("named", "arms"), ARMS.values(), ids=ARMS)
def test_an_arm_is_all_runs_of_a_configuration(tmp_path, named, arms):
    found, left_out = group(runs(tmp_path, **named))
    assert left_out == []
    assert {arm.name: list(arm.runs) for arm in found} == arms
    assert [arm.name for arm in found] == list(arms)


def test_of_two_runs_of_one_configuration_and_seed_the_younger_counts(tmp_path):
    old = write_run(tmp_path, "default", [0.1])
    young = write_run(tmp_path, "seed=0", [0.9], starts=[START | {"started": "2026-02-01T00:00:00.000+00:00"}])
    for order in ([old, young], [young, old]):
        (arm,), (reason,) = group([read_run(folder) for folder in order])
        assert arm.runs[0].directory == young
        assert reason == f"{old}: {young} has the same configuration and seed and is younger"


def changed(reference: Arm, **values) -> Arm:
    """The arm with other values of keys that are written with two underscores in the place of a dot."""
    (run,) = reference.runs.values()
    config = copy.deepcopy(run.config)
    for key, value in values.items():
        *nodes, last = key.split("__")
        node = config
        for name in nodes:
            node = node[name]
        node[last] = value
    return Arm("other", {run.seed: replace(run, config=config)})


def test_what_is_not_comparable_is_said(tmp_path):
    words = "experiment=replay_ablation"
    reference = composed(tmp_path, words)
    others = {
        r"different tasks \(tasks\.pages: ": composed(tmp_path, words, "tasks=miniwob_multistep"),
        r"different tasks \(env\.make_env: MiniWobEnv and DockerDesktop\)": composed(tmp_path, words, "env=desktop"),
        r"tasks \(tasks\.train\.seeds: \[2\] and \[3\]\)": changed(reference, tasks__train__seeds=[3]),
        r"starts \(warmstart: warmstart_sparse and other\)": changed(reference, warmstart="other"),
        r"different warm starts \(model\.path: ": changed(reference, model__path="DIR"),
        r"different numbers of iterations \(iterations: 40 and 41\)": changed(reference, iterations=41),
        r"protocols \(evaluation\.temperature: 1\.0 and 0\.5\)": changed(reference, evaluation__temperature=0.5),
        r"protocols \(evaluation\.seed: its own and 5\)": changed(reference, evaluation__seed=5),
        r"protocols \(callbacks\.evaluation\.tasks\.in_domain: ": changed(
            reference, callbacks__evaluation__tasks__in_domain=[]
        ),
        r"protocols \(rollout\.settings\.max_steps: ": changed(reference, rollout__settings__max_steps=9),
        r"protocols \(rollout\.settings\.success_threshold: ": changed(
            reference, rollout__settings__success_threshold=0.9
        ),
    }
    for said, other in others.items():
        assert re.search(said, obstacle(reference, other))
        assert re.search("they have different", obstacle(other, reference))
    none = Arm("other", {})
    assert "has no run" in obstacle(none, reference)
    assert "has no run" in obstacle(reference, none)


def test_what_a_study_may_change_is_comparable(tmp_path):
    reference = composed(tmp_path, "experiment=replay_ablation")
    others = [
        composed(tmp_path, "experiment=replay_ablation", "replay=off", seed=3),
        changed(reference, module__optimizer__lr=1e-3, rollout__settings__group_size=4),
        changed(reference, rollout__settings__max_policy_lag=1, env__size=8),
        changed(reference, callbacks__evaluation__every_n_iterations=10, resume="auto", threads=2),
    ]
    assert [obstacle(reference, other) for other in others] == [""] * 4


@pytest.mark.long
@pytest.mark.parametrize("name", STUDIES)
def test_the_arms_of_every_study_are_comparable(tmp_path, name):
    study = STUDIES[name]
    arms = [composed(tmp_path, f"experiment={arm.experiment}", *arm.overrides) for arm in study.arms]
    assert [obstacle(arms[0], arm, subject=study.subject) for arm in arms[1:]] == [""] * (len(arms) - 1)


def test_what_a_study_is_about_is_no_obstacle_and_everything_else_is(tmp_path):
    lists = ([], ["tasks=miniwob_128"], ["tasks=miniwob_seeds"])
    few, many, others = (composed(tmp_path, "experiment=miniwob_small", *words) for words in lists)
    assert "different tasks (tasks.train.seeds" in obstacle(many, few)
    assert obstacle(many, few, subject="tasks.train.*") == ""
    assert "different tasks (tasks.train_seeds" in obstacle(many, others, subject="tasks.train.*")


def test_runs_of_several_commits_of_local_changes_or_of_unknown_commits_are_warnings(tmp_path):
    def warned(*commits) -> list[str]:
        arms = []
        for number, (commit, dirty) in enumerate(commits):
            start = START | {"git": commit and {"commit": commit, "dirty": dirty}}
            folder = write_run(tmp_path / str(commits), f"x={number}", [0.5], starts=[start])
            arms.append(Arm(f"x={number}", {0: read_run(folder)}))
        return warnings(arms)

    assert warned(("a" * 40, False), ("a" * 40, False)) == []
    (said,) = warned(("a" * 40, False), ("b" * 40, False))
    assert "different commits" in said
    assert "x=0: aaaaaaaaaa; x=1: bbbbbbbbbb" in said
    assert "local changes" in warned(("a" * 40, True))[0]
    assert warned((None, False)) == ["The commit of x=0 was not recorded."]


def runs_of_seeds(tmp_path, *configs):
    """Runs of the seeds 0, 1 and so on."""
    return runs(tmp_path, **{f"seed={seed}": config for seed, config in enumerate(configs)})


def same(tmp_path, *configs) -> bool:
    first, *others = settings(runs_of_seeds(tmp_path, *configs))
    return all(other == first for other in others)


def test_a_seed_that_follows_the_run_s_own_or_is_the_same_everywhere_is_no_difference(tmp_path):
    assert same(tmp_path / "own", {"evaluation": {"seed": 0}}, {"evaluation": {"seed": 1}})
    assert same(tmp_path / "same", {"model": {"seed": 0}}, {"model": {"seed": 0}})
    assert not same(tmp_path / "other", {"evaluation": {"seed": 0}}, {"evaluation": {"seed": 7}})


def test_a_folder_of_the_same_seed_is_no_difference(tmp_path):
    """Runs that learn offline each from another run: `source=OUTPUT/base/seed=${seed}`."""
    own = [{"source": f"base/seed={seed},tasks=few", "from": [f"base/seed={seed}/trajectories"]} for seed in (0, 1)]
    assert same(tmp_path / "own", *own)
    assert same(tmp_path / "shared", own[0], own[0])
    assert not same(tmp_path / "other", own[0], {**own[1], "source": "base/seed=10,tasks=few"})
    assert not same(tmp_path / "more", own[0], {**own[1], "source": "base/reseed=1,tasks=few"})


def test_the_folder_of_a_run_and_that_of_all_results_are_no_difference(tmp_path):
    first, second = (
        {
            "paths": {"output": output, "run_dir": f"{output}/seed={seed}"},
            "model": {"path": f"{output}/warm/policy"},
            "store": {"root": f"{output}/seed={seed}/trajectories", "roots": [f"{output}/seed={seed}"]},
        }
        for seed, output in enumerate(("outputs", "/data/outputs"))
    )
    assert same(tmp_path, first, second)
    for first["model"]["path"], second["model"]["path"] in (
        ("outputs/warm/policy", "/data/outputs/other/policy"),
        ("outputs2/policy", "/data/outputs2/policy"),  # beside the folder of all results, not in it
    ):
        assert not same(tmp_path / first["model"]["path"], first, second)


def test_what_says_how_fast_or_how_often_is_no_difference(tmp_path):
    for number, other in enumerate(
        ({"resume": "auto"}, {"logger": {"csv": {"_target_": "x"}}}, {"callbacks": {"checkpoint": {"keep": 9}}})
    ):
        assert same(tmp_path / str(number), {"callbacks": {}}, {"callbacks": {}} | other)


def test_a_key_that_one_lacks_is_absent_there_and_of_places_that_follow_one_key_the_shortest_is_shown():
    assert differing([{"a": {"b": 1}}, {"a": {}}]) == {"a.b": ("1", ABSENT)}
    trees = [{"module": {"runtime": {"steps": n}}, "rollout": {"steps": n}, "other": n} for n in (6, 9)]
    assert list(merge_repeated(differing(trees))) == ["rollout.steps", "other"]


def test_replay_is_the_only_difference_between_the_arms_of_its_study(tmp_path):
    configs = [
        resolved(compose("experiment=replay_ablation", f"replay={word}"), tmp_path / word, seed)
        for seed, word in enumerate(("on", "off"))
    ]
    keys = merge_repeated(differing(settings(runs_of_seeds(tmp_path, *configs))))
    assert keys == {"replay": ("ReplayInjection", "null")}
