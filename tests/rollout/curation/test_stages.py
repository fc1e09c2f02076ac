"""The curriculum in stages: which tasks an epoch has, and when a stage ends."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from arpo.errors import ConfigError
from arpo.rollout.curation.stages import StagedCurriculum
from arpo.rollout.sampler import TaskStatistics
from arpo.types import Task
from tests.methods.conftest import trajectory

NAMES = ["never", "long", "lucky", "middle", "short"]
STEPS = {"never": 2, "long": 6, "short": 2, "middle": 4, "lucky": 2}
EASY_TO_HARD = ["short", "lucky", "middle", "long", "never"]
"""`lucky` is as short as `short` and solved half as often."""


def curriculum(tasks: Sequence[Task] = (), per_iteration=5, **options) -> StagedCurriculum:
    return StagedCurriculum(tasks or [Task(name, "") for name in NAMES], per_iteration, 0, **options)


def play(statistics: TaskStatistics, name: str) -> None:
    """Two episodes of a task: none, one or both succeed."""
    rewards = {"never": (0.0, 0.0), "lucky": (1.0, 0.0)}.get(name, (1.0, 1.0))
    episode = replace(trajectory("a" * STEPS[name], 1.0), task_id=name)
    statistics.record(name, [replace(episode, task_reward=reward) for reward in rewards])


def epoch_of(sampler: StagedCurriculum, statistics: TaskStatistics, *, learns: bool = True) -> set[str]:
    names: list[str] = []
    while not names or sampler.state_dict()["left"]:
        names.append(sampler.next(statistics).task.id)
        if learns:
            play(statistics, names[-1])
    assert len(names) == len(set(names))
    return set(names)


def test_stages_go_from_the_shortest_tasks_to_all_and_of_equal_ones_the_surer_comes_first():
    sampler, statistics = curriculum(stages=5, stage_iterations=1, threshold=1.0, per_iteration=1), TaskStatistics()
    assert epoch_of(sampler, statistics) == set(NAMES)
    for stage in range(1, 5):
        assert epoch_of(sampler, statistics) == set(EASY_TO_HARD[:stage])
    assert [epoch_of(sampler, statistics) for _ in range(3)] == [set(NAMES)] * 3


def test_a_stage_of_a_share_of_the_tasks_is_rounded_up_and_lasts_its_iterations():
    # Stages of 2, 4 and 5 tasks, of two iterations of 3 groups: 6 groups are 3 epochs of 2, and 8 are 2 epochs of 4.
    sampler, statistics = curriculum(stages=3, stage_iterations=2, threshold=1.0, per_iteration=3), TaskStatistics()
    sizes = [len(epoch_of(sampler, statistics)) for _ in range(8)]
    assert sizes == [5, 2, 2, 2, 4, 4, 5, 5]


@pytest.mark.parametrize(("threshold", "sizes"), [(0.7, [5, 2, 4, 5, 5]), (0.75, [5, 2, 2, 2, 2])])
def test_a_stage_ends_sooner_once_its_tasks_succeed_more_often_than_the_threshold(threshold, sizes):
    """`short` and `lucky` succeed in 3 of 4 episodes, the first four tasks in 7 of 8."""
    sampler, statistics = curriculum(stages=3, stage_iterations=99, threshold=threshold), TaskStatistics()
    assert [len(epoch_of(sampler, statistics)) for _ in range(5)] == sizes


def test_a_task_with_a_step_limit_of_its_own_is_as_long_as_that():
    tasks = [Task("wide", "", max_steps=9), Task("narrow", "", max_steps=3), Task("short", ""), Task("long", "")]
    statistics = TaskStatistics()
    for name in ("wide", "narrow", "short", "long"):
        statistics.record(name, [trajectory("a" * STEPS.get(name, 1), 1.0)])
    sampler = curriculum(tasks, stages=4, stage_iterations=1, threshold=1.0, per_iteration=1)
    order = ["short", "narrow", "long", "wide"]
    assert [epoch_of(sampler, statistics, learns=False) for _ in range(4)] == [set(order[:end]) for end in range(1, 5)]


def test_all_tasks_are_drawn_until_updates_have_learned_from_each():
    """With a lag, or few tasks, an epoch ends before anything came of it."""
    sampler, statistics = curriculum(), TaskStatistics()
    assert [epoch_of(sampler, statistics, learns=False) for _ in range(3)] == [set(NAMES)] * 3
    for name in NAMES[1:]:
        play(statistics, name)
    assert epoch_of(sampler, statistics, learns=False) == set(NAMES)
    statistics.record("never", [None])  # the infrastructure lost it
    assert epoch_of(sampler, statistics) == {"short", "lucky"}


def test_where_nothing_succeeds_stages_follow_the_list():
    sampler, statistics = curriculum(stages=2, stage_iterations=1), TaskStatistics()
    for name in NAMES:
        statistics.record(name, [replace(trajectory("a", 0.0), task_id=name)])
    assert epoch_of(sampler, statistics, learns=False) == set(NAMES[:3])


def test_it_goes_on_from_its_state_as_without_an_interruption():
    options = {"stages": 3, "stage_iterations": 2, "threshold": 1.0, "per_iteration": 3}
    sampler, statistics = curriculum(**options), TaskStatistics()
    for _ in range(2):
        epoch_of(sampler, statistics)
    play(statistics, sampler.next(statistics).task.id)
    state = json.loads(json.dumps([sampler.state_dict(), statistics.state_dict()]))
    again, known = curriculum(**options), TaskStatistics()
    again.load_state_dict(state[0])
    known.load_state_dict(state[1])
    for _ in range(30):
        names = [one.next(those).task.id for one, those in ((sampler, statistics), (again, known))]
        assert names[0] == names[1]
        for those in (statistics, known):
            play(those, names[0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stages": 0}, "stages must be at least 1"),
        ({"stages": 6}, "stages=6 are more than the 5 tasks"),
        ({"stage_iterations": 0}, "stage_iterations must be at least 1"),
        ({"threshold": 0.0}, "threshold must lie in"),
        ({"threshold": 1.1}, "threshold must lie in"),
    ],
)
def test_an_impossible_number_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        curriculum(**options)
