"""The law of decoupling on schedules that can be drawn on paper."""

import pytest

from arpo.errors import ConfigError
from arpo.rollout.law import Work, bounds, episode_s, iteration_s, speedup


def work(groups=((10.0, 10.0),), *, groups_per_iteration=1, environments=2, update_s=10.0, **more) -> Work:
    return Work(groups, groups_per_iteration, environments, update_s, **more)


def test_an_episode_is_its_reset_its_steps_and_its_evaluation():
    assert episode_s(reset_s=25, steps=7, step_s=3, generate_s=4, evaluate_s=2) == 76  # 25 + 7 · (3 + 4) + 2


def test_taking_turns_lasts_as_long_as_rollout_update_and_evaluation_together():
    assert iteration_s(work(rest_s=5.0), 0) == 25  # 10 + 10 + 5


def test_with_a_lag_rollout_and_update_go_on_side_by_side():
    assert iteration_s(work(), 1) == pytest.approx(10)
    assert speedup(work(), 1) == pytest.approx(2)


def test_nothing_is_gained_where_the_update_is_the_bound():
    slow = work([[0.1, 0.1]], update_s=1000.0)
    assert speedup(slow, 4) == pytest.approx(1.0001)  # 1000.1 / 1000
    assert max(bounds(slow, 4), key=bounds(slow, 4).get) == "trainer"


def test_nothing_is_gained_where_turns_leave_the_environments_no_time_either():
    # Two environments play 20 groups of two, ten seconds each: 200 s of rollout beside an update of 1 s.
    busy = work(groups_per_iteration=20, update_s=1.0)
    assert (iteration_s(busy, 0), iteration_s(busy, 1)) == (201, pytest.approx(200))
    assert bounds(busy, 1) == {"environments": 200, "engine": 0, "trainer": 1, "driver": 0, "cores": 0, "lag": 5.5}


def test_the_slowest_episode_has_to_fit_into_the_lag():
    # Every group has an episode of 90 s; beside the update of 10 s that is 100 s for lag + 1 iterations.
    straggling = work([[10.0, 90.0]], environments=100)
    assert [bounds(straggling, lag)["lag"] for lag in (0, 1, 4)] == [100, 50, 20]
    assert [iteration_s(straggling, lag) for lag in (0, 1, 4)] == pytest.approx([100, 50, 20])


def test_the_reset_goes_on_during_the_update():
    # 30 s of 90 are the reset; an update of 10 s hides 10 of them: (90 + 10 - 10) / 2 and not (90 + 10) / 2.
    straggling = work([[90.0, 90.0]], environments=100, reset_s=30.0)
    assert bounds(straggling, 1)["lag"] == 45
    assert iteration_s(straggling, 1) == pytest.approx(45)
    assert iteration_s(straggling, 0) == 100  # nothing is hidden where they take turns


def test_evaluation_holds_up_the_trainer_and_not_the_rollouts():
    evaluated = work([[90.0, 90.0]], environments=100, rest_s=30.0)
    assert iteration_s(evaluated, 0) == 130
    assert iteration_s(evaluated, 1) == pytest.approx(50)  # (90 + 10) / 2, above the trainer's 40


def test_nothing_is_gained_where_rollout_and_update_want_the_same_cores():
    # 10 s of rollout, 10 s of update, and the cores are busy for 19 of the 20: 20 / 19.
    assert speedup(work(cores_s=19.0), 1) == pytest.approx(20 / 19)


@pytest.mark.parametrize("part", ["engine", "driver", "cores"])
def test_no_lag_is_faster_than_engine_and_driver(part):
    limited = work(**{f"{part}_s": 35.0})
    assert iteration_s(limited, 4) == 35
    assert bounds(limited, 4)[part] == 35


def test_the_expected_maximum_of_an_iteration_is_that_of_its_draws():
    # Of groups that last 10 s and 20 s, two draws give 10 s at (1/2)² and else 20 s: 17.5 s.
    assert bounds(work([[10.0], [20.0]], groups_per_iteration=2, update_s=0.0), 0)["lag"] == 17.5


def test_the_bound_is_never_above_what_is_played():
    mixed = [[20.0 + (7 * member + 13 * group) % 90 for member in range(8)] for group in range(40)]
    for environments in (16, 64, 200):
        for lag in (0, 1, 2, 4):
            one = work(mixed, groups_per_iteration=10, environments=environments, update_s=40.0, reset_s=15.0)
            assert max(bounds(one, lag).values()) <= iteration_s(one, lag) * 1.02  # the play is one random order


@pytest.mark.parametrize("wrong", [{"groups_per_iteration": 0}, {"environments": 0}, {"update_s": -1.0}])
def test_impossible_numbers_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        work(**wrong)
