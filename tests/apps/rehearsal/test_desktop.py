"""A desktop on which nothing is solved and some episodes succeed."""

import pytest

from arpo.agent.actions import Click
from arpo.apps.rehearsal.desktop import DrawnDesktop
from arpo.envs.fake import FakeDesktop, fake_tasks
from arpo.errors import EnvError

(TASK,) = fake_tasks(1, kinds=["click"])


def test_some_episodes_succeed_and_most_do_not_whatever_is_done():
    desktop = DrawnDesktop()
    with pytest.raises(EnvError):
        desktop.evaluate()  # it plays nothing yet
    scores = []
    for _ in range(200):
        desktop.reset(TASK)
        scores.append(desktop.evaluate())
    # 200 draws at 0.3: 60 expected, with a deviation of 6.5; six of them either way
    assert 21 < sum(scores) < 99
    assert set(scores) == {0.0, 1.0}


def test_an_episode_goes_on_after_the_action_that_would_end_it():
    plain, drawn = FakeDesktop(), DrawnDesktop()
    plain.reset(TASK)
    drawn.reset(TASK)
    (click,) = plain.solve()
    assert isinstance(click, Click)
    assert plain.step(click).terminated
    first, second = drawn.step(click), drawn.step(click)
    assert not first.terminated
    assert not second.terminated
