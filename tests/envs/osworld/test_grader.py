"""OSWorld's own graders in their own process: real scores of real files, and no score when something breaks."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from arpo.envs.osworld.grader import MAIN, GraderProcess, GuestAddress
from arpo.envs.osworld.tasks import FUNCTIONS, GETTERS, NOT_SUPPORTED
from arpo.errors import ConfigError, EnvError
from tests.envs.osworld.guest import HOME, failure, running_guest

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("ARPO_OSWORLD_PYTHON", ROOT / ".venv-osworld" / "bin" / "python"))
needs_graders = pytest.mark.skipif(
    not PYTHON.exists(), reason=f"OSWorld's graders are not installed at {PYTHON}: run `make osworld`"
)

MAKE_FILES = """
import sys, json, docx, openpyxl
from pathlib import Path
directory = Path(sys.argv[1])
for name, total in (("right", 6), ("wrong", 7)):
    book = openpyxl.Workbook()
    for row in (("item", "sum"), ("tea", total)):
        book.active.append(row)
    book.save(directory / f"{name}.xlsx")
    document = docx.Document()
    document.add_paragraph(f"The sum is {total}.")
    document.save(directory / f"{name}.docx")
    (directory / f"{name}.json").write_text(json.dumps({"editor.fontSize": total, "other": 1}))
    (directory / f"{name}.txt").write_text(f"The sum is {total}.")
    (directory / f"{name}.csv").write_text(f"item,sum\\ntea,{total}\\n")
"""


@pytest.fixture(scope="module")
def grader():
    grader = GraderProcess(PYTHON, timeout_s=120)
    yield grader
    grader.close()


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Files of real formats, written by the libraries that applications' files are read with; by name."""
    directory = tmp_path_factory.mktemp("documents")
    subprocess.run([PYTHON, "-I", "-c", MAKE_FILES, directory], check=True)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def address(guest):
    return GuestAddress("127.0.0.1", guest.port, guest.port, guest.port)


def vm_file(name, dest=None):
    return {"type": "vm_file", "path": f"{HOME}/{name}", "dest": dest or name}


def cloud_file(name):
    """What `FileCache.place_gold_files` has put there already."""
    return {"type": "cloud_file", "path": f"http://127.0.0.1:9/{name}", "dest": name}


SETTINGS = {"expected": {"editor.fontSize": 6}}
SHEETS = {"rules": [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]}
TASKS = [
    ("txt", {"func": "compare_text_file"}),
    ("csv", {"func": "compare_csv"}),
    ("docx", {"func": "compare_docx_files"}),
    ("xlsx", {"func": "compare_table", "options": SHEETS}),
    ("json", {"func": "check_json_settings", "expected": {"type": "rule", "rules": SETTINGS}}),
]


@needs_graders
@pytest.mark.parametrize(("kind", "evaluator"), TASKS, ids=[kind for kind, _ in TASKS])
@pytest.mark.parametrize(("content", "score"), [("right", 1.0), ("wrong", 0.0)])
def test_a_file_of_the_guest_is_compared_by_osworld(
    grader, documents, guest, tmp_path, kind, evaluator, content, score
):
    guest.files[f"{HOME}/mine.{kind}"] = documents[f"{content}.{kind}"]
    (tmp_path / f"gold.{kind}").write_bytes(documents[f"right.{kind}"])
    task = {"result": vm_file(f"mine.{kind}"), "expected": cloud_file(f"gold.{kind}"), **evaluator}
    assert grader.grade(task, address(guest), tmp_path) == score


@needs_graders
def test_a_file_that_the_agent_did_not_make_scores_zero(grader, documents, guest, tmp_path):
    (tmp_path / "gold.txt").write_bytes(documents["right.txt"])
    task = {"func": "compare_text_file", "result": vm_file("mine.txt"), "expected": cloud_file("gold.txt")}
    assert grader.grade(task, address(guest), tmp_path) == 0.0


@needs_graders
def test_a_getter_that_finds_no_file_scores_zero_as_in_osworld(grader, guest, tmp_path):
    guest.web["/web/x"] = b"x"
    result = {"type": "cloud_file", "path": f"{guest.address}/web/x", "dest": "no/such/folder/x"}
    task = {"func": "check_include_exclude", "result": result, "expected": includes("x")}
    assert grader.grade(task, address(guest), tmp_path) == 0.0


def said(text):
    return {"type": "vm_command_line", "command": ["echo", text]}


def includes(*words):
    return {"type": "rule", "rules": {"include": list(words), "exclude": []}}


@needs_graders
@pytest.mark.parametrize(
    ("conjunction", "words", "score"),
    [("and", ("a", "b"), 1.0), ("and", ("a", "x"), 0.0), ("or", ("x", "b"), 1.0), ("or", ("x", "x"), 0.0)],
)
def test_several_metrics_are_joined_as_osworld_joins_them(grader, guest, tmp_path, conjunction, words, score):
    task = {
        "func": ["check_include_exclude"] * 2,
        "conj": conjunction,
        "result": [said("a"), said("b")],
        "expected": [includes(word) for word in words],
    }
    assert grader.grade(task, address(guest), tmp_path) == score


@needs_graders
@pytest.mark.parametrize(
    ("evaluator", "words"),
    [
        (
            {"func": "exact_match", "result": said("a"), "expected": {"type": "rule", "rules": {}}},
            r"metric: exact_match: KeyError",
        ),
        ({"func": "exact_match", "result": {"type": "rule"}}, r"getter: rule: KeyError"),
        ({"func": "exact_match", "result": {"type": "crystal_ball"}}, r"getter: crystal_ball: KeyError"),
        ({"func": "infeasible", "result": said("a")}, r"metric: infeasible"),
        ({"result": said("a")}, r"request: KeyError: 'func'"),
    ],
    ids=["metric", "getter", "unknown getter", "no score", "no function"],
)
def test_a_grader_that_raises_is_an_environment_error_and_never_a_zero(grader, guest, tmp_path, evaluator, words):
    with pytest.raises(EnvError, match=words) as error:
        grader.grade(evaluator, address(guest), tmp_path)
    assert error.value.kind == "evaluate"


@needs_graders
def test_a_package_that_is_left_out_is_an_environment_error_though_osworld_catches_every_exception(
    grader, guest, documents, tmp_path
):
    guest.files[f"{HOME}/mine.docx"] = documents["right.docx"]
    (tmp_path / "gold.txt").write_text("6")
    task = {
        "func": "compare_image_text",
        "result": vm_file("mine.docx"),
        "expected": {"type": "rule", "rules": {"type": "text", "text": ["6"]}},
    }
    with pytest.raises(EnvError, match=r"package: easyocr\.Reader is not installed"):
        grader.grade(task, address(guest), tmp_path)


@needs_graders
def test_a_process_that_died_is_replaced(guest, tmp_path):
    grader = GraderProcess(PYTHON, timeout_s=120)
    task = {"func": "check_include_exclude", "result": said("a"), "expected": includes("a")}
    assert grader.grade(task, address(guest), tmp_path) == 1.0
    process = grader.process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert grader.grade(task, address(guest), tmp_path) == 1.0
    assert grader.process.pid != process.pid
    grader.close()
    grader.close()
    assert grader.process is None


@needs_graders
def test_osworld_has_every_function_and_getter_of_our_table_and_each_can_be_imported():
    known = json.loads(subprocess.check_output([PYTHON, "-I", MAIN], input=b'{"list": true}\n'))
    assert set(known["functions"]) == FUNCTIONS - {"infeasible"} | {"compare_image_text"}
    assert set(known["getters"]) == GETTERS | {name for name in NOT_SUPPORTED if name == "googledrive_file"}
    assert {name for lists in known.values() for name, lacks in lists.items() if lacks is not None} == set()


@needs_graders
def test_a_guest_that_is_gone_is_an_environment_error_though_osworld_takes_it_for_a_missing_file(grader, tmp_path):
    with running_guest() as guest:
        gone = address(guest)
    (tmp_path / "gold.txt").write_text("6")
    task = {"func": "compare_text_file", "result": vm_file("mine.txt"), "expected": cloud_file("gold.txt")}
    with pytest.raises(EnvError, match=r"guest: .*Connection"):
        grader.grade(task, gone, tmp_path)


@pytest.mark.parametrize(
    ("route", "message"),
    [
        ("file", "disk I/O error"),
        ("execute", "Command '['echo', 'a']' timed out after 120 seconds"),
        ("execute", "[Errno 12] Cannot allocate memory"),
        ("execute", "[Errno 28] No space left on device"),
    ],
)
@needs_graders
def test_a_guest_that_answers_with_a_fault_is_an_environment_error(grader, guest, tmp_path, route, message):
    setattr(guest, f"post_{route}", lambda body: failure(500, message))
    (tmp_path / "gold.txt").write_text("6")
    task = {"func": "compare_text_file", "result": vm_file("mine.txt"), "expected": cloud_file("gold.txt")}
    if route == "execute":
        task = {"func": "check_include_exclude", "result": said("a"), "expected": includes("a")}
    with pytest.raises(EnvError, match=r"guest: .* gave 500: .*" + re.escape(message)):
        grader.grade(task, address(guest), tmp_path)


@pytest.mark.parametrize(
    "message",
    [
        "[Errno 2] No such file or directory: 'hello'",
        "[Errno 13] Permission denied: 'hello'",
        "there is no program 'hello'",
    ],
)
@needs_graders
def test_a_program_that_the_agent_did_not_make_scores_zero_as_in_osworld(grader, guest, tmp_path, message):
    guest.post_execute = lambda body: failure(500, message)
    task = {"func": "check_include_exclude", "result": said("a"), "expected": includes("a")}
    assert grader.grade(task, address(guest), tmp_path) == 0.0


VLC_PLAYS = {
    "func": "is_vlc_playing",
    "result": {"type": "vlc_playing_info", "dest": "status.xml"},
    "expected": {"type": "rule", "rules": {"type": "file_name", "file_name": "film.mp4"}},
}


@needs_graders
def test_an_agent_that_closed_vlc_has_not_done_the_task(grader, guest, tmp_path):
    with running_guest() as vlc:
        port = vlc.port
    assert grader.grade(VLC_PLAYS, address(guest)._replace(vlc_port=port), tmp_path) == 0.0


@needs_graders
def test_a_guest_that_is_gone_has_not_closed_vlc(grader, tmp_path):
    with running_guest() as guest, running_guest() as vlc:
        gone = address(guest)._replace(vlc_port=vlc.port)
    with pytest.raises(EnvError, match=r"guest: .*Connection"):
        grader.grade(VLC_PLAYS, gone, tmp_path)


@needs_graders
def test_guests_are_asked_without_the_proxy_that_the_web_is_asked_through(guest, tmp_path, monkeypatch):
    guest.files[f"{HOME}/mine.txt"] = b"6"
    with running_guest() as proxy:
        monkeypatch.setenv("http_proxy", proxy.address)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv("NO_PROXY", "example.org")
        proxy.web["/web/gold.txt"] = b"6"
        expected = {"type": "cloud_file", "path": "http://web.test/web/gold.txt", "dest": "gold.txt"}
        task = {"func": "compare_text_file", "result": vm_file("mine.txt"), "expected": expected}
        grader = GraderProcess(PYTHON, timeout_s=120)
        assert grader.grade(task, address(guest), tmp_path) == 1.0
        grader.close()
        assert proxy.fetched == ["/web/gold.txt"]


# --- without the graders: the protocol, played by a script in their place -------------------------------------------


@pytest.fixture
def player(tmp_path, guest):
    """A grader whose interpreter is a script of ours."""
    made = []

    def make(script, timeout_s=20.0):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        made.append(GraderProcess(python, timeout_s=timeout_s))
        return lambda: made[-1].grade({"func": "exact_match"}, address(guest), tmp_path)

    yield make
    for grader in made:
        grader.close()


def test_a_score_comes_back_even_when_the_graders_talk_a_lot(player):
    chatter = "for i in $(seq 20000); do echo 'a warning of some library, long enough to fill a pipe' >&2; done"
    assert player(f"while read line; do {chatter}; echo '{json.dumps({'score': 0.5})}'; done")() == 0.5


def test_graders_that_are_too_slow_are_ended_and_say_what_they_said_last(player):
    with pytest.raises(EnvError, match=r"no score within 0\.5 s; it said last: thinking") as error:
        player("echo thinking >&2; sleep 60", timeout_s=0.5)()
    assert error.value.kind == "evaluate"


def test_graders_that_end_say_with_which_code_and_why(player):
    with pytest.raises(EnvError, match=r"the process ended with code 3; it said last: no numpy here"):
        player("echo no numpy here >&2; read line; exit 3")()


def test_what_graders_said_of_a_task_is_not_said_of_the_next(player):
    first = f"read line; echo a warning of the first >&2; echo '{json.dumps({'score': 1.0})}'"
    grade = player(f"{first}; read line; echo of the second >&2; exit 3")
    assert grade() == 1.0
    with pytest.raises(EnvError, match=r"it said last: of the second$"):
        grade()


def test_an_answer_that_is_none_is_an_environment_error(player):
    with pytest.raises(EnvError, match="OSWorld's graders"):
        player("read line; echo nonsense; sleep 60")()


def test_without_the_second_environment_one_is_told_how_to_make_it(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no .*python: make osworld"):
        GraderProcess(tmp_path / "python", timeout_s=1)
    with pytest.raises(ConfigError, match="timeout_s of a grader must be greater than 0"):
        GraderProcess(tmp_path, timeout_s=0)


def test_the_side_of_the_graders_knows_nothing_of_arpo():
    imports = [line.split()[1] for line in MAIN.read_text().splitlines() if line.startswith(("import", "from"))]
    assert not [name for name in imports if name.startswith("arpo")]
