"""What counts as a difference between two configurations."""

import pytest

from arpo.apps.comparison.configuration import ABSENT, differing, fingerprint, settings, told_once
from arpo.apps.comparison.runs import read_run
from tests.apps.comparison.folders import compose, resolved, write_run


def runs(tmp_path, *configs):
    """Runs of the seeds 0, 1 and so on."""
    return [
        read_run(write_run(tmp_path, f"run{seed}", [0.5], seed=seed, config=config))
        for seed, config in enumerate(configs)
    ]


def same(tmp_path, *configs) -> bool:
    return len({fingerprint(tree) for tree in settings(runs(tmp_path, *configs))}) == 1


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


@pytest.mark.parametrize(
    "other",
    [
        {"resume": "auto"},
        {"logger": {"csv": {"_target_": "x"}}},
        {"callbacks": {"checkpoint": {"keep": 9}}},
    ],
)
def test_what_says_how_fast_or_how_often_is_no_difference(tmp_path, other):
    assert same(tmp_path, {"callbacks": {}}, {"callbacks": {}} | other)


def test_a_key_that_one_lacks_is_absent_there():
    assert differing([{"a": {"b": 1}}, {"a": {}}]) == {"a.b": ("1", ABSENT)}


def test_of_places_that_follow_one_key_the_shortest_is_told():
    trees = [
        {
            "datamodule": {"collector": {"runtime": {"max_steps": steps}}},
            "rollout": {"max_steps": steps},
            "other": steps,
        }
        for steps in (6, 9)
    ]
    assert list(told_once(differing(trees))) == ["rollout.max_steps", "other"]


def test_replay_is_the_only_difference_between_the_arms_of_its_study(tmp_path):
    configs = [
        resolved(compose("experiment=replay_ablation", f"replay={word}"), tmp_path / word, seed)
        for seed, word in enumerate(("on", "off"))
    ]
    keys = told_once(differing(settings(runs(tmp_path, *configs))))
    assert keys == {"replay": ("ReplayInjection", "null")}
