"""Templates: what every instance of them has, and what their checkers say of files on this machine."""

import re
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from arpo.envs.desktop.tasks import read_task
from arpo.envs.desktop.templates.lists import TEMPLATES, named, template_task, template_tasks
from arpo.envs.desktop.templates.template import LARGEST, Draw, Home, Instance
from arpo.envs.desktop.templates.words import sentences
from arpo.envs.guest.certificate import Window, read_script
from arpo.errors import TaskFormatError
from arpo.run.build import build, compose
from arpo.types import Task
from tests.envs.desktop.templates.local import LocalHome
from tests.envs.osworld.support import FILES, needs_files

in_fifty = pytest.mark.parametrize(
    "seeds", [range(6), pytest.param(range(6, 50), marks=pytest.mark.long)], ids=["six", "the others of fifty"]
)
LOCAL = [name for name, template in TEMPLATES.items() if template.application == "terminal"]
"""Those whose scripts run on any machine."""


@pytest.fixture
def home_of(tmp_path):
    return lambda instance: LocalHome(Path(tempfile.mkdtemp(dir=tmp_path)), instance)


def typed(script):
    lines = [re.fullmatch(r"type\(content='(.*)\\n'\)", line) for line in script]
    assert all(lines), script
    return [line[1] for line in lines]


@in_fifty
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_instance_has_scripts_that_can_be_read_and_is_unsolved(name, seeds, home_of):
    for seed in seeds:
        instance = TEMPLATES[name].instance(seed)
        solution = read_script(instance.solution)
        assert solution
        assert len(instance.near_misses) >= 2
        for wrong in instance.near_misses.values():
            assert wrong != instance.solution
            assert read_script(wrong) != solution
        assert instance.window
        assert instance.instruction.endswith((".", "?"))
        assert not instance.done(home_of(instance))


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_seed_draws_the_same_instance_each_time_and_hardly_two_draw_the_same(name):
    instances = [TEMPLATES[name].instance(seed) for seed in range(200)]
    shown = [(one.instruction, tuple(one.files.items())) for one in instances]
    assert [(one.instruction, tuple(one.files.items())) for one in map(TEMPLATES[name].instance, range(200))] == shown
    assert len(set(shown)) >= 195
    starts = {one.instruction.split()[0] + one.instruction.split()[1] for one in instances}
    assert len(starts) > 1  # several phrasings


def test_sentences_are_as_many_as_were_asked_for_and_differ():
    assert [len(set(sentences(Draw(seed), count))) for seed, count in enumerate(range(1, 30))] == list(range(1, 30))


@in_fifty
@pytest.mark.parametrize("name", LOCAL)
def test_in_a_terminal_the_solution_solves_every_instance_and_no_near_miss_does(name, seeds, home_of):
    for seed in seeds:
        instance = TEMPLATES[name].instance(seed)
        for what, script in {"solution": instance.solution, **instance.near_misses}.items():
            home = home_of(instance)
            home.run("\n".join(typed(script)))
            assert instance.done(home) == (what == "solution"), (seed, instance.instruction, what)


@pytest.mark.parametrize("name", ["terminal/count-lines", "mousepad/replace-a-word"])
def test_a_word_that_is_counted_or_replaced_is_no_part_of_another_one(name):
    for seed in range(300):
        instance = TEMPLATES[name].instance(seed)
        (text,) = instance.files.values()
        for word in re.findall(r"'(\w+)'", instance.instruction):
            assert text.decode().count(word) == len(re.findall(rf"\b{word}\b", text.decode())), (seed, word)


def test_tasks_are_named_by_template_and_seed_and_lists_leave_out_what_they_are_told():
    tasks = template_tasks(["terminal", "files/rename-a-file"], [3, 4], without=[["terminal/count-lines"]])
    assert len(tasks) == 2 * len(LOCAL)
    assert tasks[-1].id == "files/rename-a-file/4"
    assert tasks[-1].domain == "files"
    assert tasks[-1].instruction == TEMPLATES["files/rename-a-file"].instance(4).instruction
    assert not any("count-lines" in task.id for task in tasks)
    assert len(template_tasks(["all"], [0])) == len(TEMPLATES)


@pytest.mark.parametrize("choice", ["desktop_templates", "desktop_templates_light"])
def test_what_is_held_out_is_in_no_other_list(choice):
    tasks = build(compose("train", ["env=desktop", f"tasks={choice}", "tasks.seeds=5"]).tasks)
    lists = [name for name in tasks if name in ("train", "in_domain") or name.startswith("held_out")]
    ids = {name: {task.id for task in tasks[name]} for name in lists}
    trained = {task_id.rpartition("/")[0] for task_id in ids["train"]}
    assert ids["in_domain"] <= ids["train"]
    assert not ids["held_out_instances"] & ids["train"]
    assert {task_id.rpartition("/")[0] for task_id in ids["held_out_instances"]} == trained
    templates = {task_id.rpartition("/")[0] for task_id in ids["held_out_templates"]}
    assert templates
    assert not templates & trained
    applications = {task.domain for task in tasks["held_out_applications"]}
    assert not applications & {task.domain for task in tasks["train"]}
    assert {task.domain for task in tasks["held_out_templates"]} <= {task.domain for task in tasks["train"]}
    demonstrated = {task.id for task in tasks["demonstrated"]}
    assert {task_id.rpartition("/")[0] for task_id in demonstrated} == trained
    assert not demonstrated & ids["train"]


@pytest.mark.parametrize("config", [{"template": "files/fly", "seed": 1}, {"template": "files/rename-a-file"}])
def test_a_task_of_no_template_is_refused(config):
    with pytest.raises(TaskFormatError, match="'wrong'"):
        read_task(Task("wrong", "Do it.", config=config))
    with pytest.raises(TaskFormatError, match=r"no template 'fly'.*files/rename-a-file"):
        named("fly")


def test_the_task_of_a_template_is_read_with_its_files_window_and_solution():
    template = TEMPLATES["files/rename-a-file"]
    task = read_task(template_task(template, 7))
    instance = template.instance(7)
    assert task.files == instance.files
    assert task.windows == ("papers",)
    assert len(task.solution) == len(instance.solution)
    assert not task.infeasible
    assert not any(isinstance(line, Window) for line in task.solution)


@needs_files
def test_no_instruction_is_one_of_osworld_s():
    texts = [path.read_text(encoding="utf-8") for path in (FILES / "examples").rglob("*.json")]
    for template in TEMPLATES.values():
        for seed in range(5):
            instruction = template.instance(seed).instruction
            assert not any(instruction in text for text in texts)


TREE_FILES = {"work/a.txt": b"one", "work/b.txt": b"", "work/in/c.txt": b"three", "work/none/": b""}
TREE = {path.removeprefix("work/"): content for path, content in TREE_FILES.items()} | {"in/": b""}


@pytest.fixture
def home(tmp_path):
    instance = Instance("Do it.", (), "", lambda _: True, (), {}, TREE_FILES)
    home = LocalHome(tmp_path / "home", instance)
    yield home
    home.run("chmod -R u+rwX work")


def test_a_tree_has_the_contents_of_all_files_and_folders_end_in_a_slash(home):
    assert home.tree("work") == TREE
    assert home.tree("work/none") == {}
    assert home.tree("elsewhere") == {}


def test_a_link_and_a_pipe_are_no_files(home):
    home.run("ln -s a.txt work/link; mkfifo work/pipe; ln work/a.txt work/hard; ln -s in work/folder")
    odd, found = {"link@", "pipe@", "folder@"}, home.tree("work").keys() - TREE.keys()
    assert found in (odd | {"hard@"}, odd | {"hard", "a.txt@"})  # which of the two names tar meets first


@pytest.mark.parametrize(
    "command", ["chmod 0 work/a.txt", "chmod 0 work/in", "chmod 300 work/none", "head -c 400000 /dev/zero > work/d"]
)
def test_of_a_tree_with_what_cannot_be_read_nothing_is(home, command):
    home.run(command)
    assert home.tree("work") == {}


def test_an_archive_is_read_as_a_tree(home):
    home.run("tar -czf packed.tar.gz work; head -c 50 packed.tar.gz > half.tar.gz; tar -cf plain.tar.gz work")
    assert home.unpacked("packed.tar.gz") == {"work/": b""} | {f"work/{path}": each for path, each in TREE.items()}
    assert [home.unpacked(f"{name}.tar.gz") for name in ("half", "plain", "none")] == [{}, {}, {}]


def test_what_does_not_end_reads_as_nothing(home):
    home.run("mkfifo pipe.tar.gz")
    assert home.output("cat pipe.tar.gz") == ""
    assert home.unpacked("pipe.tar.gz") == {}


def test_a_file_larger_than_those_of_tasks_reads_as_an_empty_one(home):
    (home.folder / "large").write_bytes(b"x" * (LARGEST + 1))
    (home.folder / "small").write_bytes(b"x" * LARGEST)
    assert home.content("large") == b""
    assert home.text("small") == "x" * LARGEST


def test_bytes_that_are_no_archive_read_as_nothing():
    odd = SimpleNamespace(execute=lambda command, *, shell: odd)
    for odd.output in ("", "!", "abc", "Y29tcGxldGU=", "AAAA"):
        assert Home(odd).tree("work") == {}
