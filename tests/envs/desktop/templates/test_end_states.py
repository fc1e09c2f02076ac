"""What checkers say of what an agent may leave: the right thing in several ways, and much that is not right."""

import importlib
import subprocess

import pytest

from arpo.envs.desktop.templates.lists import TEMPLATES
from tests.envs.desktop.templates.local import LocalHome

SEEDS = range(2)
APPLICATIONS = ("calc", "writer", "impress", "terminal", "files", "mousepad")
NAMES = [name for name, template in TEMPLATES.items() if template.application in APPLICATIONS]


def states_of(name, instance):
    """The states that an agent may leave of an instance."""
    application, _, kind = name.partition("/")
    module = importlib.import_module(f"tests.envs.desktop.templates.states.{application}")
    return vars(module)[kind.replace("-", "_")](instance)


def leave(home, instance, state):
    """Put a home directory into a state: by a command, or by the content of the document of an instance."""
    if isinstance(state, bytes):
        (path,) = [name for name in instance.files if name.startswith("Documents/")]
        (home.folder / path).write_bytes(state)
    else:
        home.run(state)


@pytest.fixture
def homes(tmp_path):
    """Makes home directories, and gives back the rights to those that are locked."""
    number = iter(range(10_000))
    yield lambda instance: LocalHome(tmp_path / str(next(number)), instance)
    subprocess.run(["chmod", "-R", "u+rwX", tmp_path], check=True)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_right_scores_1_and_what_is_not_0(name, homes):
    wrong, rights = [], 0
    for seed in SEEDS:
        instance = TEMPLATES[name].instance(seed)
        for what, solved, state in states_of(name, instance):
            home = homes(instance)
            leave(home, instance, state)
            rights += solved
            if instance.done(home) != solved:
                wrong.append(f"{seed}: {what}: {float(not solved)}")
    assert wrong == []
    assert rights
