"""The contract of environments on the first tasks of newenv, and whether its experiment fits together."""

import pytest
from newenv.desktop import NewEnv
from newenv.tasks import newenv_tasks

from arpo.envs.contract import check_env
from arpo.run.arguments import check_arguments
from arpo.run.build import compose


@pytest.mark.parametrize("task", newenv_tasks(4), ids=lambda task: task.id)
def test_the_environment_keeps_the_contract(task):
    """Check all that a run relies on; each clause that does not hold is named."""
    check_env(NewEnv(), task)


def test_every_task_has_an_id_of_its_own():
    """Check it, because results are kept by task."""
    tasks = newenv_tasks(16)
    assert len({task.id for task in tasks}) == len(tasks)


@pytest.mark.parametrize("name", ["newenv", "warmstart_newenv"])
def test_the_configuration_fits_the_constructors(name):
    """Check it as a run does before anything starts."""
    check_arguments(compose("train", [f"experiment={name}", "paths.run_dir=run"]))
