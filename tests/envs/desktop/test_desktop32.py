"""Every task of desktop32 on a real desktop: its script scores 1, doing nothing scores 0."""

import pytest

from arpo.agent.actions import Finished
from arpo.envs.desktop.env import DockerDesktop
from arpo.envs.desktop.tasks import ROOT, desktop_tasks
from tests.envs.desktops import needs_desktop

pytestmark = [*needs_desktop, pytest.mark.slow, pytest.mark.long]

FILES = sorted(ROOT.glob("examples/*/*.json"))


@pytest.fixture(scope="module")
def desktop():
    env = DockerDesktop(screen=(640, 480))
    yield env
    env.close()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_solution_scores_one_and_idleness_zero(path, desktop):
    (task,) = desktop_tasks({path.parent.name: [path.stem]})
    desktop.reset(task)
    desktop.step(Finished())
    assert desktop.evaluate() == 0.0
    for action in desktop.solve():
        desktop.step(action)
    assert desktop.evaluate() == 1.0
