"""What of OSWorld can run here: known names, counted over all 369 files."""

import json
from collections import Counter

import pytest

from arpo.envs.osworld.setup import OSWorldSetup
from arpo.envs.osworld.support import FUNCTIONS, GETTERS, NOT_SUPPORTED, obstacles
from arpo.errors import TaskFormatError
from tests.envs.osworld.test_tasks import FILES, needs_files


def record(*steps, **evaluator):
    return {"config": list(steps), "evaluator": {"func": "exact_match", **evaluator}}


def step(kind, **parameters):
    return {"type": kind, "parameters": parameters}


def listed(value):
    return value if isinstance(value, list) else [value]


@needs_files
def test_what_the_369_files_use_is_known_but_for_what_stops_nine_of_them():
    steps, functions, getters, stopped = Counter(), Counter(), Counter(), {}
    for path in FILES.glob("examples/*/*.json"):
        task = json.loads(path.read_text())
        evaluator = task["evaluator"]
        steps.update(each["type"] for each in [*task.get("config", []), *evaluator.get("postconfig", [])])
        functions.update(listed(evaluator["func"]))
        found = [getter for key in ("result", "expected") for getter in listed(evaluator.get(key)) if getter]
        getters.update(getter["type"] for getter in found)
        if names := {obstacle.name for obstacle in obstacles(task)}:
            stopped[path.stem] = names
    assert len(stopped) == 9
    assert set().union(*stopped.values()) == set(NOT_SUPPORTED)
    assert set(steps) - set(OSWorldSetup.STEPS) == {"googledrive", "login"}
    assert set(functions) - FUNCTIONS == {"compare_image_text"}
    assert set(getters) - GETTERS == {"googledrive_file"}
    assert (len(functions), len(getters)) == (111, 47)


def test_nothing_is_both_known_and_left_out():
    assert not set(NOT_SUPPORTED) & (set(OSWorldSetup.STEPS) | FUNCTIONS | GETTERS)


def test_an_unknown_name_is_given_with_its_key():
    found = obstacles(
        {
            "config": [step("sleep", seconds=1), step("teleport")],
            "evaluator": {
                "func": ["exact_match", "guess"],
                "result": [{"type": "vm_file"}, {"type": "crystal_ball"}],
                "postconfig": [step("teleport")],
            },
        }
    )
    assert [(each.key, each.name) for each in found] == [
        ("config[1].type", "teleport"),
        ("evaluator.postconfig[0].type", "teleport"),
        ("evaluator.func", "guess"),
        ("evaluator.result.type", "crystal_ball"),
    ]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (record(step("launch")), r"config\[0\]\.parameters' of a step 'launch' lacks command"),
        (record({"type": "sleep"}), r"config\[0\]' must be a step with type and parameters"),
        ({"config": "sleep", "evaluator": {"func": "exact_match"}}, r"'config' must be a list of steps"),
        (record(func=None), r"'evaluator\.func' must be a name or a list"),
        (record(result={"path": "x"}), r"'evaluator\.result' must be a getter with a type"),
    ],
    ids=["no command", "no parameters", "no list", "no function", "no type"],
)
def test_what_is_no_task_at_all_is_refused_with_its_key(broken, words):
    with pytest.raises(TaskFormatError, match=words):
        obstacles(broken)
