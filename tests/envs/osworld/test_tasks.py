"""OSWorld's task files: all that exist are read, and a broken one is named."""

import json
from collections import Counter

import pytest

from arpo.envs.osworld.setup import OSWorldSetup
from arpo.envs.osworld.tasks import FUNCTIONS, GETTERS, NOT_SUPPORTED, obstacles, osworld_tasks
from arpo.errors import ConfigError, TaskFormatError
from tests.envs.osworld.support import FILES, ids_of, needs_files


@pytest.fixture
def root(tmp_path):
    write(tmp_path, {"id": "good", "instruction": "Do it.", "config": [], "evaluator": {"func": "exact_match"}})
    return tmp_path


def write(root, record, name="good"):
    path = root / "examples" / "chrome" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record if isinstance(record, str) else json.dumps(record))


@needs_files
def test_all_369_task_files_are_read_and_the_nine_that_cannot_run_are_named(caplog):
    tasks = osworld_tasks(FILES, ids_of("osworld_369"), skip_unsupported=True)
    named = {record.getMessage().partition(".json")[0][-36:] for record in caplog.records}
    assert (len({task.id for task in tasks} - named), len(named)) == (369 - 9, 9)
    assert sum(task.infeasible for task in tasks) == 30
    assert all(task.instruction and task.config["evaluator"] for task in tasks)
    assert {task.domain for task in tasks} == set(ids_of("osworld_369"))


@needs_files
def test_what_cannot_run_is_refused_with_file_key_and_reason_unless_it_is_to_be_skipped():
    with pytest.raises(TaskFormatError) as error:
        osworld_tasks(FILES, ids_of("osworld_369"))
    message = str(error.value)
    account, pictures = "0c825995-5b70-4526-b663-113f4c999dd2", "02ce9a50-7af2-47ed-8596-af0c230501f8"
    assert f"{account}.json: config[0].type 'googledrive': it needs a Google account" in message
    assert f"{pictures}.json: evaluator.func 'compare_image_text': it reads text in pictures" in message
    assert message.endswith("set skip_unsupported of the list")


@needs_files
@pytest.mark.parametrize(
    ("name", "theirs"),
    [("osworld_369", "test_all"), ("osworld_128", "arpo_128"), ("osworld_subset32", "arpo_subset32")],
)
def test_a_list_is_the_published_one(name, theirs):
    published = json.loads((FILES / f"{theirs}.json").read_text())
    wanted = {domain: sorted(ids) for domain, ids in published.items() if ids}
    assert {domain: sorted(ids) for domain, ids in ids_of(name).items()} == wanted


def test_a_list_may_be_a_file_of_ours_or_of_another_place_in_whose_order_tasks_come(root, tmp_path):
    write(root, {"instruction": "Another.", "evaluator": {"func": "infeasible"}}, name="a")
    (tmp_path / "mine.json").write_text(json.dumps({"chrome": ["good", "a"]}))
    assert [task.id for task in osworld_tasks(root, str(tmp_path / "mine.json"))] == ["good", "a"]
    with pytest.raises(ConfigError, match=r"ids=theirs.json is no file: name one of .*lists, or the path of another"):
        osworld_tasks(root, "theirs.json")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", r"good\.json is not JSON"),
        ([1, 2], r"good\.json holds a list, a task is an object"),
        ({"evaluator": {}}, r"good\.json: key 'instruction' must be a str, got None"),
        ({"instruction": 3, "evaluator": {}}, r"good\.json: key 'instruction' must be a str, got 3"),
        ({"instruction": "Do it.", "evaluator": "func"}, r"good\.json: key 'evaluator' must be a dict, got 'func'"),
    ],
    ids=["torn", "no object", "no instruction", "wrong instruction", "wrong evaluator"],
)
def test_a_broken_file_is_named_with_its_key(root, content, words):
    write(root, content)
    with pytest.raises(TaskFormatError, match=words):
        osworld_tasks(root, {"chrome": ["good"]})


def test_a_file_that_is_missing_or_of_a_newer_osworld_is_named(root):
    write(root, {"instruction": "Do it.", "evaluator": {"func": "compare_the_future"}}, name="newer")
    with pytest.raises(TaskFormatError, match=r"chrome/missing\.json does not exist.*evaluation_examples"):
        osworld_tasks(root, {"chrome": ["missing"]})
    newer = r"evaluator\.func 'compare_the_future': it is not known here, which reads .* at commit 7a6409d"
    with pytest.raises(TaskFormatError, match=newer):
        osworld_tasks(root, {"chrome": ["newer"]})


@pytest.mark.parametrize(
    ("where", "trouble"),
    [(None, r"paths\.osworld is not set"), ("/nowhere", "OSWorld's task files are not at /nowhere")],
)
def test_without_the_files_one_is_told_where_to_get_them(where, trouble):
    remedy = r"clone https://github\.com/.* at commit 7a6409d and set ARPO_OSWORLD_TASKS"
    with pytest.raises(ConfigError, match=f"^{trouble}: {remedy}"):
        osworld_tasks(where, {"chrome": ["good"]})


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
    evaluator = {
        "func": ["exact_match", "guess"],
        "result": [{"type": "vm_file"}, {"type": "crystal_ball"}],
        "postconfig": [step("teleport")],
    }
    found = obstacles({"config": [step("sleep", seconds=1), step("teleport")], "evaluator": evaluator})
    assert [(each.key, each.name) for each in found] == [
        ("config[1].type", "teleport"),
        ("evaluator.postconfig[0].type", "teleport"),
        ("evaluator.func", "guess"),
        ("evaluator.result.type", "crystal_ball"),
    ]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (record({"type": "sleep"}), r"config\[0\]' must be a step with type and parameters"),
        ({"config": "sleep", "evaluator": {"func": "exact_match"}}, r"'config' must be a list of steps"),
        (record(func=None), r"'evaluator\.func' must be a name or a list"),
        (record(result={"path": "x"}), r"'evaluator\.result' must be a getter with a type"),
    ],
    ids=["no parameters", "no list", "no function", "no type"],
)
def test_what_is_no_task_at_all_is_refused_with_its_key(broken, words):
    with pytest.raises(TaskFormatError, match=words):
        obstacles(broken)
