"""Curricula: which tasks an epoch has, and when a stage ends."""

import json
import math
from dataclasses import replace
from functools import partial

import pytest

from arpo.rollout.curation.curricula import FailureCurriculum, StagedCurriculum
from arpo.rollout.sampler import TaskStatistics
from arpo.types import Task
from tests.methods.conftest import trajectory

MANY = [f"task {number}" for number in range(40)]
HARD = set(MANY[:20])


def curriculum(seed=0, **options):
    return FailureCurriculum([Task(name, "") for name in MANY], 8, seed, **options)


def play(statistics, name, solved):
    statistics.record(name, [replace(trajectory("a", float(solved)), task_id=name)] * 2)


def epoch_of(sampler, statistics, *solved):
    """The tasks of the next epoch in their order; of the hard ones, only these are solved."""
    names: list[str] = []
    while not names or sampler.state_dict()["left"]:
        names.append(sampler.next(statistics).task.id)
        play(statistics, names[-1], names[-1] not in HARD or names[-1] in solved)
    assert len(names) == len(set(names))
    assert set(names) >= set(MANY) - HARD
    return names


def hard(names):
    return HARD & set(names)


def test_a_task_that_fails_for_two_epochs_is_drawn_seldom_for_three_then_tried_once_more_and_then_dropped():
    sampler, statistics = curriculum(), TaskStatistics(success_threshold=0.5)
    assert [hard(epoch_of(sampler, statistics)) for _ in range(2)] == [HARD, HARD]
    cooling = [hard(epoch_of(sampler, statistics)) for _ in range(3)]
    # 20 weights of exp(-2) = 0.14 are 2.7 tasks; with up to six of exp(-3) = 0.05 among them they are 2.2 or more
    assert all(len(drawn) in (2, 3) for drawn in cooling)
    assert hard(epoch_of(sampler, statistics)) == HARD  # also those that chance passed over
    assert [hard(epoch_of(sampler, statistics)) for _ in range(4)] == [set()] * 4


def test_a_success_of_the_last_try_brings_a_task_back_and_a_failure_that_comes_late_drops_it_late():
    sampler, statistics = curriculum(patience=1, cooldown=1), TaskStatistics()
    for _ in range(2):
        epoch_of(sampler, statistics)
    assert hard(epoch_of(sampler, statistics, MANY[0])) == HARD
    assert hard(epoch_of(sampler, statistics)) == {MANY[0]}
    sampler, statistics = curriculum(patience=1, cooldown=1), TaskStatistics()
    for _ in range(2):
        epoch_of(sampler, statistics)
    for _ in range(len(MANY)):
        name = sampler.next(statistics).task.id
        if name != MANY[0]:  # an episode that is still running, or was lost
            play(statistics, name, name not in HARD)
    assert hard(epoch_of(sampler, statistics)) == {MANY[0]}
    assert hard(epoch_of(sampler, statistics)) == set()


def test_the_share_of_draws_falls_with_the_epochs_that_a_task_has_failed_in_and_not_with_those_that_it_cools():
    first, second, patient = 0, 0, 0
    for seed in range(30):
        sampler, statistics = curriculum(seed, patience=1, cooldown=2), TaskStatistics()
        epoch_of(sampler, statistics)
        drawn = hard(epoch_of(sampler, statistics))
        first += len(drawn)
        second += len(drawn & hard(epoch_of(sampler, statistics)))  # these have failed twice now
        sampler, statistics = curriculum(seed), TaskStatistics()
        for _ in range(2):
            epoch_of(sampler, statistics)
        patient += len(hard(epoch_of(sampler, statistics)))
    assert first / 600 == pytest.approx(math.exp(-1), abs=0.06)
    assert second / first == pytest.approx(math.exp(-2), abs=0.08)
    assert patient / 600 == pytest.approx(math.exp(-2), abs=0.05)


def test_a_success_while_it_cools_down_brings_a_task_back_for_good():
    sampler, statistics = curriculum(), TaskStatistics()
    epoch_of(sampler, statistics)
    epoch_of(sampler, statistics)
    back = hard(epoch_of(sampler, statistics, *HARD))
    assert back
    for _ in range(5):
        assert back <= hard(epoch_of(sampler, statistics, *back))


def test_where_every_task_fails_all_begin_anew_also_after_one_success():
    sampler, statistics = curriculum(), TaskStatistics()
    played: list[str] = []
    for _ in range(600):
        played.append(sampler.next(statistics).task.id)
        play(statistics, played[-1], solved=len(played) > 300 and played[-1] == MANY[0])
    assert set(played[:280]) == set(played[-280:]) == set(MANY)
    assert played.count(MANY[1]) > 3  # with two epochs in full, and all again once none was left


def test_a_second_cool_down_is_as_long_as_the_first():
    sampler, statistics = curriculum(patience=1, cooldown=1), TaskStatistics()
    epoch_of(sampler, statistics)
    back = hard(epoch_of(sampler, statistics, *HARD))
    assert hard(epoch_of(sampler, statistics)) == HARD  # a success has ended the first, and the others are tried
    again = hard(epoch_of(sampler, statistics))
    assert again  # each of weight exp(-1), and none if the first one went on
    assert again < back
    assert hard(epoch_of(sampler, statistics)) == back


def test_nothing_cools_before_an_update_has_learned_from_an_epoch():
    sampler, statistics = FailureCurriculum([Task(name, "") for name in MANY[:4]], 8, 0, patience=1), TaskStatistics()
    names = [[sampler.next(statistics).task.id for _ in range(8)] for _ in range(5)]  # nobody has seen what came of it
    assert all(sorted(epochs) == sorted(2 * MANY[:4]) for epochs in names)
    assert names[0][:4] != names[0][4:]  # each epoch in an order of its own


def test_a_success_counts_however_many_episodes_came_after_it():
    sampler, statistics = curriculum(patience=1), TaskStatistics(window=2)
    first = sampler.next(statistics).task.id
    for solved in (True, False, False):
        play(statistics, first, solved)
    for _ in MANY[1:]:
        play(statistics, sampler.next(statistics).task.id, solved=False)
    assert first in [sampler.next(statistics).task.id for _ in range(20)]
    assert sampler.state_dict()["failing"][first]["epochs"] == 0


def test_old_successes_do_not_excuse_an_epoch_without_one():
    sampler, statistics = curriculum(patience=1), TaskStatistics()
    epoch_of(sampler, statistics, *HARD)
    epoch_of(sampler, statistics)
    sampler.next(statistics)
    failing = sampler.state_dict()["failing"]
    assert {name for name, each in failing.items() if each["epochs"] == 1} == HARD


NAMES = ["never", "long", "lucky", "middle", "short"]
STEPS = {"never": 2, "long": 6, "short": 2, "middle": 4, "lucky": 2}
EASY_TO_HARD = ["short", "lucky", "middle", "long", "never"]
"""`lucky` is as short as `short` and solved half as often."""


def staged(tasks=(), per_iteration=5, **options):
    return StagedCurriculum(tasks or [Task(name, "") for name in NAMES], per_iteration, 0, **options)


def play_twice(statistics, name):
    """Two episodes of a task: none, one or both succeed."""
    rewards = {"never": (0.0, 0.0), "lucky": (1.0, 0.0)}.get(name, (1.0, 1.0))
    episode = replace(trajectory("a" * STEPS[name], 1.0), task_id=name)
    statistics.record(name, [replace(episode, task_reward=reward) for reward in rewards])


def stage_of(sampler, statistics, *, learns=True):
    names: list[str] = []
    while not names or sampler.state_dict()["left"]:
        names.append(sampler.next(statistics).task.id)
        if learns:
            play_twice(statistics, names[-1])
    assert len(names) == len(set(names))
    return set(names)


def test_stages_go_from_the_shortest_tasks_to_all_and_of_equal_ones_the_surer_comes_first():
    sampler, statistics = staged(stages=5, stage_iterations=1, threshold=1.0, per_iteration=1), TaskStatistics()
    assert stage_of(sampler, statistics) == set(NAMES)
    for stage in range(1, 5):
        assert stage_of(sampler, statistics) == set(EASY_TO_HARD[:stage])
    assert [stage_of(sampler, statistics) for _ in range(3)] == [set(NAMES)] * 3


def test_a_stage_of_a_share_of_the_tasks_is_rounded_up_and_lasts_its_iterations():
    # Stages of 2, 4 and 5 tasks, of two iterations of 3 groups: 6 groups are 3 epochs of 2, and 8 are 2 epochs of 4.
    sampler, statistics = staged(stages=3, stage_iterations=2, threshold=1.0, per_iteration=3), TaskStatistics()
    assert [len(stage_of(sampler, statistics)) for _ in range(8)] == [5, 2, 2, 2, 4, 4, 5, 5]


@pytest.mark.parametrize(("threshold", "sizes"), [(0.7, [5, 2, 4, 5, 5]), (0.75, [5, 2, 2, 2, 2])])
def test_a_stage_ends_sooner_once_its_tasks_succeed_more_often_than_the_threshold(threshold, sizes):
    """`short` and `lucky` succeed in 3 of 4 episodes, the first four tasks in 7 of 8."""
    sampler, statistics = staged(stages=3, stage_iterations=99, threshold=threshold), TaskStatistics()
    assert [len(stage_of(sampler, statistics)) for _ in range(5)] == sizes


def test_a_task_with_a_step_limit_of_its_own_is_as_long_as_that():
    tasks = [Task("wide", "", max_steps=9), Task("narrow", "", max_steps=3), Task("short", ""), Task("long", "")]
    statistics = TaskStatistics()
    for name in ("wide", "narrow", "short", "long"):
        statistics.record(name, [trajectory("a" * STEPS.get(name, 1), 1.0)])
    sampler = staged(tasks, stages=4, stage_iterations=1, threshold=1.0, per_iteration=1)
    order = ["short", "narrow", "long", "wide"]
    assert [stage_of(sampler, statistics, learns=False) for _ in range(4)] == [set(order[:end]) for end in range(1, 5)]


def test_all_tasks_are_drawn_until_updates_have_learned_from_each():
    """With a lag, or few tasks, an epoch ends before anything came of it."""
    sampler, statistics = staged(), TaskStatistics()
    assert [stage_of(sampler, statistics, learns=False) for _ in range(3)] == [set(NAMES)] * 3
    for name in NAMES[1:]:
        play_twice(statistics, name)
    assert stage_of(sampler, statistics, learns=False) == set(NAMES)
    statistics.record("never", [None])  # the infrastructure lost it
    assert stage_of(sampler, statistics) == {"short", "lucky"}


def test_where_nothing_succeeds_stages_follow_the_list():
    sampler, statistics = staged(stages=2, stage_iterations=1), TaskStatistics()
    for name in NAMES:
        statistics.record(name, [replace(trajectory("a", 0.0), task_id=name)])
    assert stage_of(sampler, statistics, learns=False) == set(NAMES[:3])


@pytest.mark.parametrize(
    ("make", "play_epoch", "play_one"),
    [
        (curriculum, epoch_of, lambda statistics, name: play(statistics, name, name not in HARD)),
        (partial(staged, stage_iterations=2, threshold=1.0, per_iteration=3), stage_of, play_twice),
    ],
    ids=["failures", "stages"],
)
def test_a_curriculum_goes_on_from_its_state(make, play_epoch, play_one):
    sampler, statistics = make(), TaskStatistics()
    for _ in range(3):
        play_epoch(sampler, statistics)
    play_one(statistics, sampler.next(statistics).task.id)
    state = json.loads(json.dumps([sampler.state_dict(), statistics.state_dict()]))
    again, known = make(), TaskStatistics()
    again.load_state_dict(state[0])
    known.load_state_dict(state[1])
    for _ in range(3 * len(MANY)):
        names = [one.next(those).task.id for one, those in ((sampler, statistics), (again, known))]
        assert names[0] == names[1]
        for those in (statistics, known):
            play_one(those, names[0])
