"""Rubbish in the place of each result of OSWorld's tasks for containers: no task is void, and none is solved by it.

The guest is a server of this process that answers every getter with the rubbish; what tasks are compared with is some
file of each kind.
"""

import os

import pytest

from arpo.envs.osworld.files import FileCache, files_of
from arpo.envs.osworld.grader import Grader
from arpo.envs.osworld.needs import tasks_by_need
from arpo.errors import BlamedError, EnvError
from tests.envs.desktops import needs_cells
from tests.envs.osworld.guest import FakeGuest, failure, in_json
from tests.envs.osworld.standins.building import make_files
from tests.envs.osworld.support import FILES, PYTHON, doors, ids_of, needs_files, needs_graders

pytestmark = [needs_files, needs_graders, *needs_cells, pytest.mark.long, pytest.mark.timeout(3000)]

RUBBISH = {
    "nothing": b"",
    "one byte": b"a",
    "a bracket": b"[",
    "random bytes": os.urandom(70_000),
    "a large file": bytes(31 * 2**20),
    "an environment": b"HOME=/home/user\0DISPLAY=:1\0PATH=/usr/bin\0",
    "what cannot be read": None,
    "a list of lists": b"[" * 20_000 + b"]" * 20_000,
}
"""A link leads to an environment; a pipe and a folder cannot be read."""
UNTOUCHED = {"dfac9ee8": "an account is gone if a program that lists accounts lists nothing"}
"""Tasks that score 1 all the same, and why: OSWorld's check asks that something be absent."""


class Rubbish(FakeGuest):
    """A guest that answers every question for something that an agent has made with the same bytes."""

    content = b""

    def answer(self, method, target, body):
        text = (self.content or b"")[:300_000].decode("latin-1")
        asks_for_a_path = "expanduser" in str(body) or "$HOME" in str(body)
        file = failure(404, "File not found") if self.content is None else (200, self.content)
        said = in_json(200, output="/home/user/a" if asks_for_a_path else text, error=text, returncode=0)
        tree = {"type": "directory", "name": text, "children": []}
        answers = {
            "/file": file,
            "/wallpaper": file,
            "/execute": said,
            "/setup/execute": said,
            "/run_python": said,
            "/terminal": said,
            "/accessibility": in_json(200, AT=text),
            "/list_directory": in_json(200, directory_tree=tree),
        }
        return answers.get(target.partition("?")[0]) or super().answer(method, target, body)


@pytest.fixture(scope="module")
def tasks():
    found = tasks_by_need(FILES, ids_of("osworld_369"), needs=["nothing", "files", "a package"])
    return [task for task in found if not task.infeasible]


@pytest.fixture(scope="module")
def cache(tasks, tmp_path_factory):
    places = FileCache(tmp_path_factory.mktemp("cache"))
    make_files({"": [places.place(url, task.id, name) for task in tasks for url, name in files_of(task)]})
    return places


@pytest.fixture(scope="module")
def grader():
    grader = Grader(PYTHON, timeout_s=60)
    yield grader
    grader.close()


def refuse():
    raise EnvError("guest", "Chrome does not answer")


def saved_by(evaluator):
    """The names under which steps before grading save what programs have said."""
    steps = [step["parameters"] for step in evaluator.get("postconfig", [])]
    return [step[stream] for step in steps for stream in ("stdout", "stderr") if step.get(stream)]


@pytest.mark.parametrize("what", RUBBISH)
def test_rubbish_is_worth_0_in_each_task(tasks, cache, grader, what):
    guest = Rubbish()
    guest.content = RUBBISH[what]
    ways = doors(guest)._replace(chromium=refuse)
    void, solved = {}, {}
    for task in tasks:
        evaluator = task.config["evaluator"]
        saved = dict.fromkeys(saved_by(evaluator), guest.content or b"")
        try:
            score = grader.grade(evaluator, ways, {**cache.gold_files(evaluator, task.id), **saved})
        except BlamedError:
            continue
        except EnvError as error:
            void[task.id[:8]] = str(error)
        else:
            solved |= {task.id[:8]: evaluator["func"]} if score > 0 else {}
    guest.stop()
    assert len(tasks) > 230
    assert void == {}
    assert solved.keys() <= UNTOUCHED.keys(), solved
