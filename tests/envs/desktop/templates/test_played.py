"""Templates on real desktops: what certificates say is true, and the environment demonstrates the solutions."""

from functools import partial

import pytest

from arpo.agent.actions import Finished
from arpo.envs.desktop.env import DockerDesktop
from arpo.envs.desktop.tasks import ROOT, desktop_tasks
from arpo.envs.desktop.templates.lists import TEMPLATES, template_task
from arpo.envs.guest.certificate import Scripts, certify, holds, play, read_script
from tests.envs.desktops import FULL, QUICK, needs_desktop, needs_full

SEED = 31
FILES = sorted(ROOT.glob("examples/*/*.json"))
ON_SMALL = ("terminal/sort-a-file", "files/move-a-file", "mousepad/replace-a-word", "calculator/copy-a-result")
SMALL = [pytest.param(name, marks=needs_desktop) for name in ON_SMALL]
LONGER = [pytest.param(name, marks=[*needs_desktop, pytest.mark.long]) for name in ON_SMALL[1:]]


@pytest.fixture(scope="module")
def desktop():
    env = DockerDesktop(**{**QUICK, "quiet_s": 0.3, "settle_limit_s": 15.0, "window_timeout_s": 120.0})
    yield env
    env.close()


@pytest.fixture(scope="module")
def full():
    env = DockerDesktop(image=FULL, memory_mb=2048, disk_mb=256, start_timeout_s=120.0, window_timeout_s=120.0)
    yield env
    env.close()


def scores(env, name):
    instance = TEMPLATES[name].instance(SEED)
    near_misses = {what: read_script(script) for what, script in instance.near_misses.items()}
    scripts = Scripts(read_script(instance.solution), near_misses)
    return certify(partial(play, env), template_task(TEMPLATES[name], SEED), scripts, repeats=1)


@pytest.mark.parametrize("name", [SMALL[0], *LONGER])
def test_on_a_small_desktop_the_solution_scores_1_and_all_else_0(desktop, name):
    found = scores(desktop, name)
    assert holds(found), found


@pytest.mark.parametrize("name", SMALL)
def test_the_environment_demonstrates_it(desktop, name):
    desktop.reset(template_task(TEMPLATES[name], SEED + 1))
    actions = []
    for action in desktop.solve():
        actions.append(action)
        desktop.step(action)
    assert isinstance(actions[-1], Finished)
    assert desktop.evaluate() == 1.0


@pytest.mark.parametrize("name", [pytest.param(name, marks=[*needs_full, pytest.mark.long]) for name in TEMPLATES])
def test_on_the_full_desktop_the_solution_scores_1_and_all_else_0(full, name):
    found = scores(full, name)
    assert holds(found), found


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("path", [pytest.param(path, marks=needs_desktop, id=path.stem) for path in FILES])
def test_a_solution_of_desktop32_scores_one_and_idleness_zero(desktop, path):
    (task,) = desktop_tasks({path.parent.name: [path.stem]})
    desktop.reset(task)
    desktop.step(Finished())
    assert desktop.evaluate() == 0.0
    for action in desktop.solve():
        desktop.step(action)
    assert desktop.evaluate() == 1.0
