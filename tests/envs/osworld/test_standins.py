"""Certificates that come with the code, and stand-ins for files that tasks download, which play as theirs say."""

import inspect
import json
from pathlib import Path

import pytest

from arpo.apps import certify
from arpo.envs.guest.certificate import holds, play, read_scripts
from arpo.envs.osworld.env import OSWorldEnv
from arpo.envs.osworld.files import FileCache, files_of
from arpo.envs.osworld.machine import container
from arpo.envs.osworld.needs import Need, need_of
from arpo.envs.osworld.tasks import read_tasks
from tests.envs.desktops import FULL, needs_full
from tests.envs.osworld.standins import BUILDERS, ROOT
from tests.envs.osworld.standins.building import build, tasks_with_standins
from tests.envs.osworld.support import FILES, PYTHON, ids_of, needs_files, needs_graders

CERTIFICATES = sorted(certify.ROOT.glob("*/*.json"))
RECORDS = {path.stem: path for path in sorted(ROOT.glob("*/*.json"))}
with_each_record = pytest.mark.parametrize(
    "path", [*RECORDS.values(), *CERTIFICATES], ids=lambda path: f"{path.parent.name}-{path.stem[:8]}"
)


def test_each_task_with_a_builder_has_scripts_and_the_other_way_round():
    assert set(RECORDS) == set(BUILDERS)
    assert len(RECORDS) >= 18
    assert CERTIFICATES


@with_each_record
def test_each_certificate_holds_and_is_of_the_scripts_beside_it(path):
    record = json.loads(path.read_text(encoding="utf-8"))
    scripts, found = read_scripts(record), record["certificate"]
    assert holds(found)
    assert found["near_misses"].keys() == scripts.near_misses.keys()
    assert found["attacks"].keys() == {"ends every application", *scripts.attacks}
    assert path in CERTIFICATES or (scripts.solution and len(scripts.near_misses) >= 2)


@needs_files
@with_each_record
def test_each_certificate_is_of_a_task_of_its_application_and_a_feasible_one_has_two_near_misses(path):
    (task,) = read_tasks(FILES, {path.parent.name: [path.stem]})
    scripts = read_scripts(json.loads(path.read_text(encoding="utf-8")))
    assert bool(scripts.solution) is not task.infeasible
    assert task.infeasible or len(scripts.near_misses) >= 2


@needs_files
def test_each_task_with_a_builder_is_one_of_osworld_s_and_its_builder_takes_a_path_for_each_of_its_files():
    tasks = tasks_with_standins()
    assert {task.id for task in tasks} == set(BUILDERS)
    for task in tasks:
        inspect.signature(BUILDERS[task.id]).bind(*files_of(task))


@needs_files
@needs_graders
def test_builders_make_every_file_where_the_cache_looks_for_it_and_no_other(tmp_path):
    build(tasks_with_standins(), tmp_path)
    places = FileCache(tmp_path).place
    wanted = {places(url, task.id, name) for task in tasks_with_standins() for url, name in files_of(task)}
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == wanted


@needs_files
@needs_graders
def test_a_file_of_each_kind_that_tasks_download_can_be_made(tmp_path):
    kinds = {}
    for task in read_tasks(FILES, ids_of("osworld_369")):
        if need_of(task) is Need.FILES:
            kinds |= {Path(name).suffix.lower(): task for _, name in files_of(task)}
    build(list(kinds.values()), tmp_path)
    assert len(kinds) > 20


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    build(tasks_with_standins(), cache)
    env = OSWorldEnv(container(FULL), cache=cache, grader_python=PYTHON, guarded=True, boot_timeout_s=120)
    yield env
    env.close()


@pytest.mark.long
@pytest.mark.timeout(1200)
@needs_files
@needs_graders
@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_full) for name in RECORDS])
def test_the_solution_scores_1_and_each_near_miss_0(env, name):
    (task,) = tasks_with_standins([name])
    scripts = read_scripts(json.loads(RECORDS[name].read_text(encoding="utf-8")))
    assert play(env, task, scripts.solution) == 1.0
    assert {near: play(env, task, script) for near, script in scripts.near_misses.items()} == dict.fromkeys(
        scripts.near_misses, 0.0
    )
