"""MobileRL's failure curriculum: which tasks an epoch has."""

import json
import math
from dataclasses import replace

import pytest

from arpo.errors import ConfigError
from arpo.rollout.curation.failures import FailureCurriculum
from arpo.rollout.sampler import TaskStatistics
from arpo.types import Task
from tests.methods.conftest import trajectory

NAMES = [f"task {number}" for number in range(40)]
HARD = set(NAMES[:20])


def curriculum(**options) -> FailureCurriculum:
    return FailureCurriculum([Task(name, "") for name in NAMES], 8, 0, **options)


def play(statistics: TaskStatistics, name: str, solved: bool) -> None:
    reward = float(solved)
    statistics.record(name, [replace(trajectory("a", reward), task_id=name)] * 2)


def epoch_of(sampler: FailureCurriculum, statistics: TaskStatistics, *solved: str) -> list[str]:
    """The tasks of the next epoch in their order; of the hard ones, only these are solved."""
    names: list[str] = []
    while not names or sampler.state_dict()["left"]:
        names.append(sampler.next(statistics).task.id)
        play(statistics, names[-1], names[-1] not in HARD or names[-1] in solved)
    assert len(names) == len(set(names))
    assert set(names) >= set(NAMES) - HARD
    return names


def hard(names: list[str]) -> set[str]:
    return HARD & set(names)


def test_a_task_that_fails_for_two_epochs_is_drawn_seldom_for_three_and_then_no_more():
    sampler, statistics = curriculum(), TaskStatistics(success_threshold=0.5)
    assert [hard(epoch_of(sampler, statistics)) for _ in range(2)] == [HARD, HARD]
    cooling = [hard(epoch_of(sampler, statistics)) for _ in range(3)]
    # each of 20 tasks is drawn with probability exp(-2) = 0.14, and less once it has failed again
    assert 0 < sum(map(len, cooling)) < 20
    assert [hard(epoch_of(sampler, statistics)) for _ in range(4)] == [set()] * 4


def test_the_share_of_draws_falls_with_the_epochs_that_a_task_has_failed_in():
    first, second = 0, 0
    for seed in range(30):
        sampler = FailureCurriculum([Task(name, "") for name in NAMES], 8, seed, patience=1, cooldown=2)
        statistics = TaskStatistics()
        epoch_of(sampler, statistics)
        drawn = hard(epoch_of(sampler, statistics))
        first += len(drawn)
        second += len(drawn & hard(epoch_of(sampler, statistics)))  # these have failed twice now
    assert first / 600 == pytest.approx(math.exp(-1), abs=0.06)
    assert second / first == pytest.approx(math.exp(-2), abs=0.08)


def test_a_success_while_it_cools_down_brings_a_task_back_for_good():
    sampler, statistics = curriculum(), TaskStatistics()
    epoch_of(sampler, statistics)
    epoch_of(sampler, statistics)
    back = hard(epoch_of(sampler, statistics, *HARD))
    assert back
    for _ in range(5):
        assert back <= hard(epoch_of(sampler, statistics, *back))


def test_where_every_task_fails_all_go_on():
    sampler, statistics = FailureCurriculum([Task(name, "") for name in NAMES], 8, 0), TaskStatistics()
    for _ in range(600):
        play(statistics, sampler.next(statistics).task.id, solved=False)
    assert {sampler.next(statistics).task.id for _ in range(2 * len(NAMES))} == set(NAMES)


def test_it_goes_on_from_its_state_as_without_an_interruption():
    sampler, statistics = curriculum(), TaskStatistics()
    for _ in range(3):
        epoch_of(sampler, statistics)
    first = sampler.next(statistics).task.id
    play(statistics, first, solved=True)
    state = json.loads(json.dumps([sampler.state_dict(), statistics.state_dict()]))
    again, known = curriculum(), TaskStatistics()
    again.load_state_dict(state[0])
    known.load_state_dict(state[1])
    for _ in range(3 * len(NAMES)):
        names = [one.next(those).task.id for one, those in ((sampler, statistics), (again, known))]
        assert names[0] == names[1]
        for those in (statistics, known):
            play(those, names[0], names[0] not in HARD)


@pytest.mark.parametrize("options", [{"patience": 0}, {"cooldown": 0}])
def test_an_impossible_number_is_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        curriculum(**options)
