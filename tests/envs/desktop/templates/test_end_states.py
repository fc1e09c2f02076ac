"""What checkers say of what an agent may leave: the right thing in several ways, and much that is not right."""

import importlib
import re
import subprocess

import pytest

from arpo.envs.desktop.templates.lists import TEMPLATES
from tests.envs.desktop.templates.local import LocalHome
from tests.envs.desktop.templates.mutants import mutants

SEEDS = range(2)
NAMES = [name for name in TEMPLATES if name != "calculator/copy-a-result"]
"""Those whose results are files."""


def states_of(name, instance):
    """The states that an agent may leave of an instance; the first one of documents is right, its mutants are not."""
    application, _, kind = name.partition("/")
    module = importlib.import_module(f"tests.envs.desktop.templates.states.{application}")
    states = list(vars(module)[kind.replace("-", "_")](instance))
    _, solved, first = states[0]
    if isinstance(first, bytes):
        assert solved
        states += [(what, False, each) for what, each in mutants(first)]
    return states


def leave(home, instance, state):
    if isinstance(state, bytes):
        (path,) = [name for name in instance.files if name.startswith("Documents/")]
        (home.folder / path).write_bytes(state)
    else:
        home.run(state)


@pytest.fixture
def homes(tmp_path):
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


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("gimp/")])
def test_an_instruction_for_gimp_says_what_is_changed_and_where_the_result_belongs(name):
    for instance in map(TEMPLATES[name].instance, range(20)):
        assert re.search("picture.*(Overwrite|beside|same folder)", instance.instruction)


GARBAGE = {
    "random bytes": "head -c 3000 /dev/urandom > {}",
    "a large file": "head -c 3000000 /dev/zero > {}",
    "a folder": "rm {0}; mkdir {0}",
    "a pipe": "rm {0}; mkfifo {0}",
    "a link to itself": "rm {0}; ln -s {0} {0}",
    "a link to what has no end": "rm {0}; ln -s /dev/zero {0}",
    "locked": "echo > {0}; chmod 0 {0}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_garbage_in_the_place_of_all_files_solves_nothing(name, homes):
    instance = TEMPLATES[name].instance(0)
    for command in GARBAGE.values():
        home = homes(instance)
        for path in instance.files:
            if not path.endswith("/"):
                home.run(command.format(path))
        assert instance.done(home) is False


def test_a_program_in_the_home_directory_does_not_tell_what_is_in_the_clipboard(homes):
    instance = TEMPLATES["calculator/copy-a-result"].instance(0)
    first, word, second = re.search(r"(\d+) (plus|minus|times) (\d+)", instance.instruction).groups()
    value = {"plus": int.__add__, "minus": int.__sub__, "times": int.__mul__}[word](int(first), int(second))
    home = homes(instance)
    (home.folder / "tkinter.py").write_text(f"class Tk:\n    def clipboard_get(self):\n        return {value}\n")
    assert not instance.done(home)
