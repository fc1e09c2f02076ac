import random

import pytest

from arpo.agent.actions import Call, Click, Drag, Finished, TypeText, Wait
from arpo.datamodules.demonstrator import Demonstrator, bad_habit, mistake

OTHERS = (Click(10, 10), Click(200, 10), Click(100, 80))
RIGHT = Click(100, 80)


def mistakes(right, distractors=(), count=300):
    return [mistake(right, distractors, random.Random(seed)) for seed in range(count)]


def test_a_wrong_click_hits_another_element_a_place_beside_or_ends_too_early():
    made = mistakes(RIGHT, OTHERS)
    elsewhere = [action for action in made if action in OTHERS]
    beside = [action for action in made if isinstance(action, Click) and action not in OTHERS]
    early = [action for action in made if action == Finished()]
    assert RIGHT not in made
    assert len(elsewhere) + len(beside) + len(early) == 300
    assert 180 <= len(elsewhere) <= 240  # 7 of 10
    assert len(early) > 5
    assert all(14 <= abs(action.x - 100) <= 40 and abs(action.y - 80) <= 30 for action in beside)


def test_without_other_elements_a_wrong_click_is_beside_or_too_early_and_stays_on_the_screen():
    assert all(action == Finished() or 14 <= abs(action.x - 100) <= 40 for action in mistakes(RIGHT, (RIGHT,)))
    assert all(action.x >= 0 and action.y >= 0 for action in mistakes(Click(5, 5)) if isinstance(action, Click))


def test_a_wrong_text_lacks_a_letter_or_has_one_too_many_and_is_never_empty():
    made = mistakes(TypeText("cats"))
    assert {len(action.text) for action in made} == {3, 5}
    assert all(set(action.text) - set("cats") <= set("aeo137") for action in made)
    assert {len(action.text) for action in mistakes(TypeText("x"))} == {2}


def test_a_wrong_call_has_misspelt_texts_or_the_episode_ends_too_early():
    made = mistakes(Call("f", {"text": "cats", "n": 3}))
    assert 0.2 < sum(action == Finished() for action in made) / len(made) < 0.4
    calls = [action for action in made if action != Finished()]
    assert {(call.function, call.arguments["n"]) for call in calls} == {("f", 3)}
    assert {len(call.arguments["text"]) for call in calls} == {3, 5}
    assert set(mistakes(Call("f", {"n": 3, "text": ""}), count=20)) == {Finished()}


@pytest.mark.parametrize("right", [Wait(), Drag(1, 2, 3, 4), TypeText("")], ids=str)
def test_where_no_other_mistake_is_known_the_episode_ends_too_early(right):
    assert set(mistakes(right, OTHERS, count=20)) == {Finished()}


@pytest.mark.parametrize(
    ("rate", "length", "per_step"), [(0.25, 1, 0.25), (0.25, 2, 0.5), (0.25, 4, 0.7071), (1, 5, 1)]
)
def test_the_success_rate_is_that_of_the_whole_episode(rate, length, per_step):
    """Each of n steps is right with the n-th root: 0.25 ** (1 / 2) = 0.5."""
    demonstrator, rng = Demonstrator(success_rate=rate), random.Random(0)
    right = sum(demonstrator.act(RIGHT, OTHERS, length, rng, random.Random(1)) == RIGHT for _ in range(3000))
    assert right / 3000 == pytest.approx(per_step, abs=0.03 if rate < 1 else 0)


@pytest.mark.parametrize(("habit", "several"), [(1.0, False), (0.0, True)])
def test_a_habit_is_the_same_mistake_every_time(habit, several):
    demonstrator, rng = Demonstrator(success_rate=0.01, habit=habit), random.Random(0)
    actions = {demonstrator.act(RIGHT, OTHERS, 1, rng, random.Random(7)) for _ in range(100)} - {RIGHT}
    assert len(actions) > 3 if several else len(actions) == 1


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (RIGHT, Click(10, 10)),
        (Click(10, 10), Click(200, 10)),  # on a line from left to right, then down
        (TypeText("cats"), TypeText("catss")),
        (TypeText("cats\n"), TypeText("catss\n")),  # a newline more would do no harm
        (Wait(), Finished()),
    ],
    ids=str,
)
def test_by_rules_each_kind_of_action_has_one_mistake(right, wrong):
    demonstrator, rng = Demonstrator(success_rate=0.01, rules=True), random.Random(0)
    others = tuple(reversed(OTHERS))
    made = {demonstrator.act(right, others, 1, rng, random.Random(seed)) for seed in range(200)}
    assert made == {right, wrong}


def test_by_rules_the_only_element_of_a_page_is_left_alone():
    assert bad_habit(RIGHT, (RIGHT,)) == Finished()
