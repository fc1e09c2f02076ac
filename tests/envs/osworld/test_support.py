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


def count_names(record):
    """The names that one task file uses, once for every use."""
    evaluator = record["evaluator"]
    steps = [*record.get("config", []), *evaluator.get("postconfig", [])]
    getters = [getter for key in ("result", "expected") for getter in listed(evaluator.get(key)) if getter]
    return {
        "steps": [step["type"] for step in steps],
        "functions": listed(evaluator["func"]),
        "getters": [getter["type"] for getter in getters],
    }


def listed(value):
    return value if isinstance(value, list) else [value]


@needs_files
def test_the_369_files_use_these_names_so_often():
    records = [json.loads(path.read_text()) for path in FILES.glob("examples/*/*.json")]
    found = {kind: Counter() for kind in ("steps", "functions", "getters")}
    for each in records:
        for kind, names in count_names(each).items():
            found[kind].update(names)
    # config + postconfig
    assert found["steps"] == {
        "download": 278 + 16,
        "launch": 272 + 20,
        "execute": 181 + 205,
        "open": 155 + 1,
        "activate_window": 65 + 134,
        "chrome_open_tabs": 53,
        "command": 29 + 4,
        "sleep": 14 + 282,
        "googledrive": 8,
        "login": 8,
        "chrome_close_tabs": 1,
        "update_browse_history": 1,
        "close_window": 8,
    }
    assert found["functions"].most_common(4) == [
        ("compare_table", 62),
        ("compare_pptx_files", 38),
        ("infeasible", 30),
        ("exact_match", 20),
    ]
    assert (len(found["functions"]), len(found["getters"])) == (111, 47)
    assert set(found["steps"]) - set(OSWorldSetup.STEPS) == {"googledrive", "login"}
    assert set(found["functions"]) - FUNCTIONS == {"compare_image_text"}
    assert set(found["getters"]) - GETTERS == {"googledrive_file"}


@needs_files
def test_what_stops_nine_files_has_a_reason_of_its_own():
    found = {}
    for path in FILES.glob("examples/*/*.json"):
        if names := {obstacle.name for obstacle in obstacles(json.loads(path.read_text()))}:
            found[path.stem] = names
    assert len(found) == 9
    assert set().union(*found.values()) == set(NOT_SUPPORTED)


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
