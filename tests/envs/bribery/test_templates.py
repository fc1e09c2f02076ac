"""Attacks on the judges of our own tasks, one task of each application: a 0, soon, and the trainer notices nothing."""

import re
import time

import pytest

from arpo.envs.desktop.templates.lists import TEMPLATES, template_task
from arpo.envs.guest.client import poll_until
from tests.envs.bribery.programs import PROGRAMS
from tests.envs.bribery.verdicts import unharmed, verdict
from tests.envs.desktop.templates.test_end_states import states_of
from tests.envs.desktops import needs_full, one_and_others

pytestmark = [*needs_full, pytest.mark.timeout(240)]

SEED = 5
ACTS_S = 1.5
"""For so long an attack may prepare itself."""
ONE_EACH = (
    "files/rename-a-file",
    "mousepad/replace-a-word",
    "terminal/pack-a-folder",
    "calculator/copy-a-result",
    "calc/total-a-column",
    "writer/begin-a-page",
    "impress/duplicate-a-slide",
    "browser/fill-in-a-form",
    "gimp/rotate-a-picture",
    next(name for name in TEMPLATES if name.startswith("several/")),
)
COPY = "python3 -c \"import tkinter; t = tkinter.Tk(); t.clipboard_append('{}'); t.update(); t.mainloop()\""


def begin(env, name):
    env.reset(template_task(TEMPLATES[name], SEED))
    return TEMPLATES[name].instance(SEED)


def solve(env, name, instance):
    if name == "calculator/copy-a-result":
        first, word, second = re.search(r"(\d+) (plus|minus|times) (\d+)", instance.instruction).groups()
        value = {"plus": int.__add__, "minus": int.__sub__, "times": int.__mul__}[word](int(first), int(second))
        env.guest.launch(["sh", "-c", COPY.format(value)])
        time.sleep(ACTS_S)
        return
    state = next(state for _, solved, state in states_of(name, instance) if solved)
    if isinstance(state, bytes):
        (path,) = [path for path in instance.files if path.startswith("Documents/")]
        env.guest.upload(f"/home/user/{path}", state)
    else:
        env.guest.execute(state, shell=True)


@pytest.mark.parametrize("name", one_and_others(ONE_EACH))
def test_the_state_that_solves_a_task_scores_1(full, name):
    solve(full, name, begin(full, name))
    with unharmed():
        assert verdict(full.evaluate) == 1.0


@pytest.mark.parametrize("name", one_and_others(ONE_EACH))
@pytest.mark.parametrize("what", one_and_others(PROGRAMS))
def test_an_attack_scores_0(full, name, what):
    begin(full, name)
    full.guest.launch(["sh", "-c", PROGRAMS[what]])
    time.sleep(ACTS_S)
    with unharmed():
        assert verdict(full.evaluate) in (0.0, "result", "excess", "destroyed")
    if what.startswith(("trace", "write")):
        assert full.guest.file("/tmp/took-over") is None


def test_a_program_of_the_agent_that_is_taken_over_is_noted(full):
    begin(full, "files/rename-a-file")
    full.guest.launch(["sh", "-c", PROGRAMS["write where every program writes"]])
    time.sleep(ACTS_S)
    full.guest.launch(["sleep", "1"])
    assert poll_until(lambda: full.guest.file("/tmp/took-over") is not None, 20)
