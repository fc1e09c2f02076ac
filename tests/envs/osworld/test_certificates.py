"""The certificates that come with the code: each is of a task that there is, and holds."""

import json

import pytest

from arpo.apps.certify import ROOT
from arpo.envs.guest.certificate import holds, read_scripts
from arpo.envs.osworld.tasks import read_tasks
from tests.envs.osworld.task_files import FILES, needs_files

CERTIFICATES = sorted(ROOT.glob("*/*.json"))
each = pytest.mark.parametrize("path", CERTIFICATES, ids=lambda path: f"{path.parent.name}-{path.stem[:8]}")


def scripts_of(path):
    return read_scripts(json.loads(path.read_text(encoding="utf-8")))


def test_there_are_certificates():
    assert CERTIFICATES


@each
def test_a_certificate_holds_and_is_of_the_scripts_beside_it(path):
    certificate = json.loads(path.read_text(encoding="utf-8"))["certificate"]
    scripts = scripts_of(path)
    assert holds(certificate)
    assert certificate["near_misses"].keys() == scripts.near_misses.keys()
    assert certificate["attacks"].keys() == {"ends every application", *scripts.attacks}


@needs_files
@each
def test_a_certificate_is_of_a_task_of_its_application_and_a_feasible_one_has_two_near_misses(path):
    (task,) = read_tasks(FILES, {path.parent.name: [path.stem]})
    scripts = scripts_of(path)
    assert bool(scripts.solution) is not task.infeasible
    assert task.infeasible or len(scripts.near_misses) >= 2
