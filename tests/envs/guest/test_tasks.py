"""OSWorld's task files: read whole, refused with file and key, and judged by the last action where that decides."""

import json

import pytest

from arpo.agent.actions import CallUser, Click, Fail, Finished
from arpo.envs.guest.setup import TaskSetup
from arpo.envs.guest.tasks import load_task, score_of_giving_up, step_obstacles
from arpo.errors import TaskFormatError


def write(root, record):
    path = root / "examples" / "os" / "one.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))
    return path


def test_a_task_has_the_name_of_its_file_and_all_that_the_file_says(tmp_path):
    record = {"id": "other", "instruction": "Do it.", "evaluator": {"func": "infeasible"}, "snapshot": "os"}
    write(tmp_path, record)
    task = load_task(tmp_path, "os", "one")
    assert (task.id, task.domain, task.instruction, task.infeasible) == ("one", "os", "Do it.", True)
    assert task.config == record
    write(tmp_path, {"instruction": "Do it.", "evaluator": {"func": ["exact_match"]}})
    assert not load_task(tmp_path, "os", "one").infeasible


def test_the_parameters_of_a_step_are_those_of_the_method_that_performs_it():
    window = {"window_name": "Editor", "strict": True, "by_class": False}
    steps = [
        {"type": "activate_window", "parameters": window},
        {"type": "activate_window", "parameters": {**window, "title": "Editor"}},
        {"type": "download", "parameters": {}},
    ]
    record = {"config": steps, "evaluator": {"postconfig": [{"type": "login", "parameters": {}}]}}
    assert [str(found) for found in step_obstacles(record, TaskSetup.STEPS)] == [
        "config[1].parameters 'title': step 'activate_window' is not known to take it",
        "config[2].type 'download': known are activate_window, close_window, command, execute, launch, open, sleep",
        "evaluator.postconfig[0].type 'login': it needs a Google account",
    ]
    with pytest.raises(TaskFormatError, match=r"'config\[0\]\.parameters' of a step 'open' lacks path"):
        list(step_obstacles({"config": [{"type": "open", "parameters": {}}], "evaluator": {}}, TaskSetup.STEPS))


@pytest.mark.parametrize(
    ("last", "infeasible", "score"),
    [
        (Fail(), True, 1.0),
        (CallUser(), True, 1.0),
        (Finished(), True, 0.0),
        (None, True, 0.0),
        (Fail(), False, 0.0),
        (CallUser(), False, 0.0),
        (Click(1, 1), False, None),
        (None, False, None),
    ],
)
def test_giving_up_solves_an_infeasible_task_and_fails_every_other(last, infeasible, score):
    assert score_of_giving_up(last, infeasible=infeasible) == score
