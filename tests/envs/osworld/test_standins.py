"""Stand-ins for files that tasks download: each has a builder, scripts and a certificate, and plays as that says."""

import inspect
import json
from pathlib import Path

import pytest

from arpo.apps.certify import RetryingDesktop
from arpo.envs.guest.certificate import holds, read_scripts
from arpo.envs.osworld.env import OSWorldEnv
from arpo.envs.osworld.files import FileCache, files_of
from arpo.envs.osworld.machine import container
from arpo.envs.osworld.needs import Need, need_of
from arpo.envs.osworld.tasks import read_tasks
from tests.envs.desktops import FULL, needs_full
from tests.envs.osworld.standins import BUILDERS, ROOT
from tests.envs.osworld.standins.building import build, tasks_with_standins
from tests.envs.osworld.task_files import FILES, ids_of, needs_files
from tests.envs.osworld.test_grader import PYTHON, needs_graders

RECORDS = {path.stem: path for path in sorted(ROOT.glob("*/*.json"))}


def record_of(name):
    return json.loads(RECORDS[name].read_text(encoding="utf-8"))


def test_each_task_with_a_builder_has_scripts_and_the_other_way_round():
    assert set(RECORDS) == set(BUILDERS)
    assert len(RECORDS) >= 18


@pytest.mark.parametrize("name", RECORDS)
def test_each_record_has_a_solution_two_near_misses_and_a_certificate_that_holds(name):
    record = record_of(name)
    scripts = read_scripts(record)
    assert scripts.solution
    assert len(scripts.near_misses) >= 2
    assert set(record["certificate"]["near_misses"]) == set(scripts.near_misses)
    assert holds(record["certificate"])


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
    env = RetryingDesktop(
        lambda: OSWorldEnv(container(FULL), cache=cache, grader_python=PYTHON, guarded=True, boot_timeout_s=120)
    )
    yield env
    env.close()


@pytest.mark.long
@pytest.mark.timeout(1200)
@needs_files
@needs_graders
@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_full) for name in RECORDS])
def test_the_solution_scores_1_and_each_near_miss_0(env, name):
    (task,) = tasks_with_standins([name])
    scripts = read_scripts(record_of(name))
    assert env.play(task, scripts.solution) == 1.0
    assert {near: env.play(task, script) for near, script in scripts.near_misses.items()} == dict.fromkeys(
        scripts.near_misses, 0.0
    )
