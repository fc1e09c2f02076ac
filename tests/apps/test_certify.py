"""The certificates of OSWorld's tasks and of templates: scripts are played, and the scores are written down."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial

import pytest

from arpo.agent.actions import TypeText
from arpo.apps import certify as app
from arpo.apps.certify import ATTEMPTS, FIRST_SEED, add_certificate, certify_each, certify_templates, is_certified
from arpo.apps.tasks import main, named
from arpo.envs.desktop.templates.lists import TEMPLATES
from arpo.envs.guest import certificate
from arpo.envs.protocol import Execution
from arpo.errors import BlamedError, ConfigError, EnvError, TaskFormatError
from arpo.host.terminal import Line
from arpo.types import Task
from tests.envs.desktop.templates.local import LocalHome
from tests.envs.guest.test_certificate import CONTENT_WITH_LESS, IMPOSSIBLE, RECORD, TASK, Desk
from tests.envs.osworld.support import FILES, needs_files

OTHER = Task("other", "Do it.", domain="os", config={})
NAMES = ["terminal/sort-a-file", "terminal/count-lines"]
SORT, COUNT = NAMES


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "os").mkdir()
    (tmp_path / "os" / "impossible.json").write_text('{"near_misses": {}}')
    (tmp_path / "os" / "typing.json").write_text(json.dumps(RECORD))
    return tmp_path


def test_the_certificate_is_written_beside_the_scripts_and_tasks_without_a_script_are_left(folder, caplog):
    caplog.set_level(logging.INFO)
    assert certify_each([TASK, IMPOSSIBLE, OTHER], Desk, repeats=2, root=folder) == 0
    record = json.loads((folder / "os" / "typing.json").read_text())
    assert {key: record[key] for key in RECORD} == RECORD
    assert record["certificate"]["solution"] == [1.0, 1.0]
    assert [is_certified(task, folder) for task in (TASK, IMPOSSIBLE, OTHER)] == [True, True, False]
    assert "2 of 2 tasks are certified" in caplog.text


def test_a_task_whose_desktop_fails_leaves_the_others(folder, monkeypatch, caplog):
    monkeypatch.setattr(certificate, "WINDOW_S", 0.05)
    monkeypatch.setattr(Desk, "titles", ("Desktop", "Calculator"))
    assert certify_each([TASK, IMPOSSIBLE], Desk, repeats=1, root=folder) == 1
    assert "typing (os): " in caplog.text
    assert [is_certified(task, folder) for task in (TASK, IMPOSSIBLE)] == [False, True]


class Late(Desk):
    """One of several desktops, of which all but the last fail for good."""

    def __init__(self, made, failures):
        super().__init__()
        self.last_one = len(made) == failures
        made.append(self)

    def reset(self, task):
        if not self.last_one:
            raise EnvError("reset", "the guest ended while it started")
        super().reset(task)


@pytest.mark.parametrize(("failures", "status"), [(ATTEMPTS - 1, 0), (ATTEMPTS, 1)])
def test_a_task_is_set_up_again_on_a_new_desktop_where_that_fails_a_few_times(folder, failures, status):
    made = []
    assert certify_each([TASK], lambda: Late(made, failures), repeats=1, root=folder) == status
    assert is_certified(TASK, folder) == (status == 0)
    assert len(made) == failures + 1
    assert all(desk.closed for desk in made)


def test_tasks_without_scripts_are_refused_and_one_that_a_checker_of_less_accepts_is_not_certified(folder):
    with pytest.raises(ConfigError, match="none of 1 tasks has a script"):
        certify_each([OTHER], Desk, repeats=1, root=folder)
    with pytest.raises(ConfigError, match="there is no task 'nothing' among the 1"):
        named([TASK], ["nothing"])
    assert named([TASK, IMPOSSIBLE], ["imp"]) == [IMPOSSIBLE]
    assert named([TASK, IMPOSSIBLE], []) == [TASK, IMPOSSIBLE]
    assert certify_each([TASK], lambda: Desk(CONTENT_WITH_LESS["any word"]), repeats=1, root=folder) == 1
    assert json.loads((folder / "os" / "typing.json").read_text())["certificate"]["near_misses"] == {"another word": 1}
    assert not is_certified(TASK, folder)


@needs_files
def test_the_command_reads_the_folder_of_the_scripts(monkeypatch, tmp_path):
    monkeypatch.setenv("ARPO_OSWORLD_TASKS", str(FILES))
    with pytest.raises(ConfigError, match=f"none of 1 tasks has a script in {tmp_path}"):
        main(["certify", "1273e544", "--scripts", str(tmp_path)])


class Terminal:
    """A desktop whose terminal is a shell of this machine, in a folder of its own for each instance."""

    def __init__(self, folder, lenient=False, breaks_at=None):
        self.folder, self.lenient, self.breaks_at, self.played, self.closed = folder, lenient, breaks_at, 0, False

    @property
    def guest(self):
        return self

    def execute(self, command):
        return Execution("")

    def screenshot(self, **_):
        return b""

    def reset(self, task):
        self.played += 1
        self.template = task.config["template"]
        self.instance = TEMPLATES[self.template].instance(task.config["seed"])
        self.home = LocalHome(self.folder / str(self.played), self.instance)

    def step(self, action):
        if isinstance(action, TypeText):
            self.home.run(action.text)

    def evaluate(self):
        if self.template == self.breaks_at:
            raise BlamedError("result", "the grader read too much")
        return float(bool(self.lenient) or self.instance.done(self.home))

    def close(self):
        self.closed = True


class Failing(Terminal):
    """One of several desktops, which give no score, but for those made after so many."""

    def __init__(self, folder, made, failures):
        super().__init__(folder / str(len(made)))
        self.folder.mkdir()
        self.fails = len(made) < failures
        made.append(self)

    def evaluate(self):
        if self.fails:
            raise EnvError("evaluate", "the guest does not answer")
        return super().evaluate()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "certificates.json"
    path.write_text('{"files/other": {"instances": 3}}')
    return path


def test_sound_templates_are_written_down_beside_those_of_before(tmp_path, path):
    desk = Terminal(tmp_path)
    assert certify_templates(["terminal"], lambda: desk, instances=2, path=path) == 0
    found = json.loads(path.read_text())
    assert found.pop("files/other") == {"instances": 3}
    assert set(found) == {name for name in TEMPLATES if name.startswith("terminal/")}
    assert all(each == {"instances": 2, "first_seed": FIRST_SEED, "faults": []} for each in found.values())
    assert desk.closed
    assert desk.played == sum(2 * (3 + len(TEMPLATES[name].instance(0).near_misses)) for name in found)


def test_the_line_says_which_template_is_played_and_how_many_instances_there_are(tmp_path, path, monkeypatch):
    said, lines = [], []

    class Desk(Terminal):
        def reset(self, task):
            said.append(lines[0]().text)
            super().reset(task)

    monkeypatch.setattr("arpo.apps.certify.showing", lambda line: lines.append(line) or nullcontext())
    certify_templates(NAMES, lambda: Desk(tmp_path), instances=2, path=path)
    tasks = [f"{name}/{seed}" for name in NAMES for seed in (FIRST_SEED, FIRST_SEED + 1)]
    assert list(dict.fromkeys(said)) == [f"{done} of 4 tasks · {task}" for done, task in enumerate(tasks)]
    assert lines[0]() == Line(["3 of 4 tasks", tasks[3]], 0.75)


def test_processes_that_certify_at_once_lose_no_certificate(tmp_path, path):
    names = [f"terminal/{index}" for index in range(40)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: add_certificate(path, name, {"instances": 1}), names))
    assert set(json.loads(path.read_text())) == {"files/other", *names}


@pytest.mark.parametrize(("fault", "said"), [("lenient", '"idle": 1.0'), ("breaks_at", "the grader read too much")])
def test_what_is_wrong_is_written_down_with_its_seed_and_leaves_the_others(tmp_path, path, fault, said):
    make = partial(Terminal, **{fault: SORT})
    with pytest.raises(ConfigError, match="instances must be at least 1, got 0"):
        certify_templates([SORT], lambda: make(tmp_path), instances=0, path=path)
    assert SORT not in json.loads(path.read_text())
    assert certify_templates(NAMES, lambda: make(tmp_path), instances=1, path=path) == 1
    found = json.loads(path.read_text())
    (written,) = found[SORT]["faults"]
    assert written.startswith(f"{FIRST_SEED}: ")
    assert said in written
    assert bool(found[COUNT]["faults"]) == (fault == "lenient")


def test_a_script_that_a_desktop_fails_in_is_played_again_on_a_second_one(tmp_path, path, caplog):
    made = []
    assert certify_templates([SORT], lambda: Failing(tmp_path, made, 1), instances=2, path=path) == 0
    assert json.loads(path.read_text())[SORT]["faults"] == []
    assert [desk.closed for desk in made] == [True, True]
    assert f"{SORT}/{FIRST_SEED}: the guest does not answer; a new desktop starts" in caplog.text


@pytest.mark.parametrize("before", [{}, {SORT: {"instances": 5, "first_seed": 7, "faults": []}}])
def test_a_desktop_that_fails_is_no_fault_of_a_template_which_keeps_the_certificate_that_it_has(
    tmp_path, path, caplog, before
):
    path.write_text(json.dumps(before))
    made = []
    assert certify_templates(NAMES, lambda: Failing(tmp_path, made, ATTEMPTS), instances=1, path=path) == 1
    found = json.loads(path.read_text())
    assert found.pop(COUNT)["faults"] == []  # the next template has a desktop that works
    assert found == before
    words = f"{SORT} is not certified anew: the desktops failed in 1 of 1 instances: {FIRST_SEED}: the guest"
    assert words in caplog.text


def test_a_fault_is_written_down_even_where_a_desktop_fails_in_another_instance(tmp_path, path):
    made = []

    class Tolerant(Failing):
        def evaluate(self):
            return float(super().evaluate() or True)

    assert certify_templates([SORT], lambda: Tolerant(tmp_path, made, ATTEMPTS), instances=2, path=path) == 1
    certificate = json.loads(path.read_text())[SORT]
    assert certificate["instances"] == 1  # that was judged
    assert [fault.partition(":")[0] for fault in certificate["faults"]] == [str(FIRST_SEED + 1)]


def test_a_template_that_is_not_there_is_refused_before_a_desktop_starts():
    with pytest.raises(TaskFormatError, match="there is no template 'files/fly'"):
        main(["certify", "files/fly", "env=desktop_full"])


def test_every_template_has_a_certificate_without_faults():
    found = json.loads(app.TEMPLATES.read_text("utf-8"))
    assert set(found) == set(TEMPLATES)
    assert all(each["instances"] for each in found.values())
    assert {name: each["faults"] for name, each in found.items() if each["faults"]} == {}
