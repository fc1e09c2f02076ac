"""The task files of our desktops, without a desktop."""

import json
from types import SimpleNamespace

import pytest

from arpo.agent.actions import Click, Fail, Finished, Hotkey
from arpo.envs.desktop import tasks
from arpo.envs.desktop.tasks import METRICS, RESULTS, ROOT, desktop_tasks, read_task, run_checks
from arpo.envs.protocol import Execution
from arpo.errors import TaskFormatError
from arpo.types import Task
from tests.envs.desktops import editor_task, task

FILES = sorted(ROOT.glob("examples/*/*.json"))


def test_of_thirty_two_tasks_two_are_infeasible_and_each_has_windows_and_a_solution_of_at_most_seven_actions():
    infeasible = 0
    for path in FILES:
        (loaded,) = desktop_tasks({path.parent.name: [path.stem]})
        found = read_task(loaded)
        assert loaded.config["id"] == path.stem
        assert found.windows, path
        assert 1 <= len(found.solution) <= 7, path  # and `finished` is the eighth
        assert found.infeasible == (found.solution == (Fail(),)), path
        assert not any(isinstance(action, Finished) for action in found.solution), path
        infeasible += found.infeasible
    assert (len(FILES), infeasible) == (32, 2)


def test_a_task_is_read_whole():
    found = read_task(editor_task())
    assert found.windows == ("list.txt",)
    assert found.solution[0] == Hotkey(("ctrl", "end"))
    assert not found.infeasible
    assert not found.any_check
    clicked = read_task(task(evaluator={"func": "infeasible"}, solution=["click(start_box='(3,4)')"]))
    assert clicked.solution == (Click(3, 4),)


RULE = {"type": "rule", "rules": {"expected": "x"}}
FILE = {"type": "vm_file", "path": "x"}
INFEASIBLE = {"func": "infeasible"}
DANCE = {"type": "dance", "parameters": {}}


def exact(**changes):
    return {"evaluator": {"func": "exact_match", "result": FILE, "expected": RULE, **changes}}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "'evaluator' must be an object with 'func', got None"),
        ({"evaluator": INFEASIBLE, "config": [DANCE]}, r"config\[0\].type 'dance': known are"),
        (exact(func="compare_table"), "func 'compare_table' is unknown"),
        (exact(result={"type": "vlc"}), "needs a type of"),
        (exact(expected={"type": "cloud_file"}), "must have the type"),
        (exact(func=["exact_match"], result=[FILE, FILE], expected=[RULE]), "differ in length"),
        ({"evaluator": INFEASIBLE, "solution": ["jump()"]}, r"solution 'jump\(\)' is neither an action nor window"),
    ],
)
def test_a_broken_task_is_named_with_its_key(config, said):
    with pytest.raises(TaskFormatError, match=said) as error:
        read_task(Task("desktop/broken", "", config=config))
    assert "'desktop/broken'" in str(error.value)


def test_metrics_and_results_have_the_names_of_osworld():
    assert set(METRICS) == {"exact_match", "check_include_exclude"}
    assert set(RESULTS) == {"vm_command_line", "vm_file"}
    include = METRICS["check_include_exclude"]
    assert include("a cat", {"include": ["cat"], "exclude": ["dog"]})
    assert not include("a cat and a dog", {"include": ["cat"], "exclude": ["dog"]})
    assert not include("a cow", {"include": ["cat"]})


@pytest.mark.parametrize(("conj", "reward"), [("and", 0.0), ("or", 1.0)])
def test_of_two_checks_one_holds(conj, reward):
    evaluator = {
        "func": ["exact_match", "exact_match"],
        "result": [{"type": "vm_command_line", "command": "cat list"}] * 2,
        "expected": [RULE, {"type": "rule", "rules": {"expected": "y"}}],  # the guest says x
        "conj": conj,
    }
    guest = SimpleNamespace(execute=lambda command, *, shell: Execution("x", "", 0))
    assert run_checks(read_task(task(evaluator=evaluator)), guest) == reward


def test_a_file_that_no_desktop_can_do_is_refused_when_it_is_loaded(tmp_path, monkeypatch):
    file = tmp_path / "examples" / "mousepad" / "impossible.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"id": "impossible", "instruction": "Fly.", "evaluator": {"func": "flies"}}))
    monkeypatch.setattr(tasks, "ROOT", tmp_path)
    with pytest.raises(TaskFormatError, match="flies"):
        desktop_tasks({"mousepad": ["impossible"]})
