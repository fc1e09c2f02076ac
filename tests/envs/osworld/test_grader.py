"""OSWorld's own graders in a cell: scores of real files, 0 for what cannot be read, none when something breaks."""

import json
import subprocess
from dataclasses import replace

import pytest

from arpo.envs.osworld.grader import MAIN, Grader
from arpo.envs.osworld.tasks import FUNCTIONS, GETTERS, NOT_SUPPORTED
from arpo.errors import BlamedError, ConfigError, EnvError
from arpo.host.cell import Cells
from tests.envs.osworld import support
from tests.envs.osworld.guest import HOME, failure, in_json, running_guest
from tests.envs.osworld.standins.building import make_files
from tests.envs.osworld.support import PYTHON, cloud_file, doors, includes, needs_judging, rule, said, vm_file

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
    grader = Grader(PYTHON, timeout_s=120)
    yield grader
    grader.close()


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Files of real formats, written by the libraries that applications' files are read with; by name."""
    directory = tmp_path_factory.mktemp("documents")
    subprocess.run([PYTHON, "-I", "-c", MAKE_FILES, directory], check=True)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


TEXTS = {"func": "compare_text_file", "result": vm_file("mine.txt"), "expected": cloud_file("gold.txt")}
GOLD = {"gold.txt": b"6"}
PRINTS = {"func": "check_include_exclude", "result": said("a"), "expected": includes("a")}
FAVORITES = {"func": "check_gnome_favorite_apps", "result": said("a"), "expected": rule(expected=["a.desktop"])}
GIVES_NONE = {"func": "check_python_file_by_gold_file", "result": said("a"), "expected": said("b")}
SHEETS = {"rules": [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]}
TASKS = [
    ("txt", {"func": "compare_text_file"}),
    ("csv", {"func": "compare_csv"}),
    ("docx", {"func": "compare_docx_files"}),
    ("xlsx", {"func": "compare_table", "options": SHEETS}),
    ("json", {"func": "check_json_settings", "expected": rule(expected={"editor.fontSize": 6})}),
]


@needs_judging
@pytest.mark.parametrize(("kind", "evaluator"), TASKS, ids=[kind for kind, _ in TASKS])
@pytest.mark.parametrize(("content", "score"), [("right", 1.0), ("wrong", 0.0)])
def test_a_file_of_the_guest_is_compared_by_osworld(grader, documents, guest, kind, evaluator, content, score):
    guest.files[f"{HOME}/mine.{kind}"] = documents[f"{content}.{kind}"]
    gold = {f"gold.{kind}": documents[f"right.{kind}"]}
    task = {"result": vm_file(f"mine.{kind}"), "expected": cloud_file(f"gold.{kind}"), **evaluator}
    assert grader.grade(task, doors(guest), gold) == score


@needs_judging
@pytest.mark.parametrize(
    ("conjunction", "words", "score"),
    [("and", ("a", "b"), 1.0), ("and", ("a", "x"), 0.0), ("or", ("x", "b"), 1.0), ("or", ("x", "x"), 0.0)],
)
def test_several_metrics_are_joined_as_osworld_joins_them(grader, guest, conjunction, words, score):
    expected = [includes(word) for word in words]
    metrics = {"func": ["check_include_exclude"] * 2, "conj": conjunction}
    task = {**metrics, "result": [said("a"), said("b")], "expected": expected}
    assert grader.grade(task, doors(guest), {}) == score


@needs_judging
@pytest.mark.parametrize(
    ("evaluator", "error", "kind", "message"),
    [
        ({"func": "exact_match", "result": {"type": "crystal_ball"}}, EnvError, "evaluate", "'get_crystal_ball'"),
        ({"func": "crystal_ball", "result": said("a")}, EnvError, "evaluate", r"request: .*'crystal_ball'"),
        ({"result": said("a")}, EnvError, "evaluate", r"request: .*'func'"),
        ({"func": "exact_match", "result": said("a"), "expected": rule()}, BlamedError, "result", "match: KeyError"),
        ({"func": "exact_match", "result": {"type": "rule"}}, BlamedError, "result", "rule: KeyError"),
        (GIVES_NONE, BlamedError, "result", "None, which is no score"),
    ],
    ids=["no getter", "no metric", "no function", "a metric raises", "a getter raises", "no score"],
)
def test_a_grader_that_is_not_there_is_an_environment_error_and_one_that_raises_is_blamed_on_the_agent(
    grader, guest, evaluator, error, kind, message
):
    with pytest.raises(error, match=message) as caught:
        grader.grade(evaluator, doors(guest), {})
    assert caught.value.kind == kind


@needs_judging
def test_a_package_that_is_left_out_is_an_environment_error_though_osworld_catches_every_exception(
    grader, guest, documents
):
    guest.files[f"{HOME}/mine.docx"] = documents["right.docx"]
    task = {"func": "compare_image_text", "result": vm_file("mine.docx"), "expected": rule(type="text", text=["6"])}
    with pytest.raises(EnvError, match=r"package: easyocr\.Reader is not installed"):
        grader.grade(task, doors(guest), {})


@support.needs_graders
def test_osworld_has_every_function_and_getter_of_our_table_and_each_can_be_imported():
    known = json.loads(subprocess.check_output([PYTHON, "-I", MAIN]))
    assert set(known["functions"]) == FUNCTIONS - {"infeasible"} | {"compare_image_text"}
    assert set(known["getters"]) == GETTERS | {name for name in NOT_SUPPORTED if name == "googledrive_file"}
    assert {name for lists in known.values() for name, lacks in lists.items() if lacks is not None} == set()


@needs_judging
def test_a_guest_that_is_gone_is_an_environment_error_though_osworld_takes_it_for_a_missing_file(grader):
    with running_guest() as guest:
        gone = doors(guest)
    with pytest.raises(EnvError, match=r"did not answer its judge: .*Connection"):
        grader.grade(TEXTS, gone, GOLD)


@needs_judging
@pytest.mark.parametrize(
    ("route", "message"),
    [
        (None, "a file that the agent did not make"),
        ("file", "[Errno 28] No space left on device"),
        ("execute", "[Errno 28] No space left on device"),
        ("execute", "[Errno 2] No such file or directory: 'hello'"),
        ("execute", "[Errno 13] Permission denied: 'hello'"),
        ("execute", "there is no program 'hello'"),
    ],
)
def test_what_the_agent_did_not_make_and_an_answer_that_it_can_have_spoilt_score_zero(grader, guest, route, message):
    if route:
        setattr(guest, f"post_{route}", lambda body: failure(500, message))
    assert grader.grade(PRINTS if route == "execute" else TEXTS, doors(guest), GOLD) == 0.0


@needs_judging
def test_a_program_for_which_the_machine_was_too_slow_is_an_environment_error(grader, guest):
    guest.post_execute = lambda body: failure(503, "it did not end within 60 s")
    with pytest.raises(EnvError, match=r"slow: .*did not end within 60 s"):
        grader.grade(PRINTS, doors(guest), {})


@pytest.mark.long
@needs_judging
def test_sounds_are_compared_in_a_cell_and_two_that_cannot_be_read_are_not_alike(guest, tmp_path):
    """OSWorld's metric takes two that it cannot read for the same; its libraries compile for ten seconds of a core."""
    grader = Grader(PYTHON, timeout_s=120, cells=lambda program: Cells.of(replace(program, cpu_s=5)))
    make_files({"": [tmp_path / "gold.mp3"]})
    task = {"func": "compare_audios", "result": vm_file("mine.mp3"), "expected": cloud_file("gold.mp3")}
    for content, score in (((tmp_path / "gold.mp3").read_bytes(), 1.0), (b"junk", 0.0)):
        guest.files[f"{HOME}/mine.mp3"] = content
        assert grader.grade(task, doors(guest), {"gold.mp3": tmp_path / "gold.mp3"}) == score
    grader.close()


SUITE = """
from snake import Snake
def test():
    one = Snake()
    one.eat((3, 4))
    return one.body == [(1, 1), (3, 4)]
"""
RIGHT = "class Snake:\n    def __init__(self): self.body = [(1, 1)]\n    def eat(self, food): self.body.append(food)"
FORGED = """
import builtins, gc, os, sys
for each in list(sys.modules.values()) + gc.get_objects():
    try: each.test = lambda: True
    except Exception: pass
for number in range(64):
    try: os.write(number, b'{"score": 1.0}')
    except OSError: pass
os.system('touch /scratch/mine')
class Snake:
    def eat(self, food): sys.exit(0)
    def __getattr__(self, name): return type("Same", (), {"__eq__": lambda *_: True})()
"""


@needs_judging
@pytest.mark.parametrize(("content", "score"), [(RIGHT, 1.0), (RIGHT.replace("append", "remove"), 0.0), (FORGED, 0.0)])
def test_a_suite_judges_python_files_that_cannot_forge_its_verdict(grader, guest, content, score):
    guest.files[f"{HOME}/snake.py"] = content.encode()
    result = {**vm_file("snake.py"), "multi": True, "path": [f"{HOME}/snake.py"], "dest": ["snake.py"]}
    task = {"func": "check_python_file_by_test_suite", "result": result, "expected": cloud_file("suite.py")}
    assert grader.grade(task, doors(guest), {"suite.py": SUITE.encode()}) == score


@needs_judging
def test_a_list_that_a_program_printed_is_read_and_not_run(grader, guest):
    for printed, score in (("['a.desktop']", 1.0), ("['b.desktop']", 0.0)):
        guest.post_execute = lambda body, printed=printed: in_json(200, output=printed)
        assert grader.grade(FAVORITES, doors(guest), {}) == score
    program = "['a.desktop'] if __import__('os').system('true') == 0 else []"
    guest.post_execute = lambda body: in_json(200, output=program)
    with pytest.raises(BlamedError, match="malformed node"):
        grader.grade(FAVORITES, doors(guest), {})


PLAYING = {"type": "vlc_playing_info", "dest": "status.xml"}
VLC_PLAYS = {"func": "is_vlc_playing", "result": PLAYING, "expected": rule(type="file_name", file_name="film.mp4")}


@needs_judging
def test_an_agent_that_closed_vlc_has_not_done_the_task_and_a_guest_that_is_gone_has_not_closed_it(grader):
    with running_guest() as guest:
        with running_guest() as vlc:
            without = doors(guest, vlc)
        assert grader.grade(VLC_PLAYS, without, {}) == 0.0
    with pytest.raises(EnvError, match=r"did not answer its judge: .*Connection"):
        grader.grade(VLC_PLAYS, without, {})


def test_without_the_second_environment_one_is_told_how_to_make_it(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no .*python: make osworld"):
        Grader(tmp_path / "python", timeout_s=1)
    with pytest.raises(ConfigError, match="timeout_s must be above 0"):
        Grader(tmp_path, timeout_s=0)


def test_the_side_of_the_graders_knows_nothing_of_arpo():
    imports = [line.split()[1] for line in MAIN.read_text().splitlines() if line.startswith(("import", "from"))]
    assert not [name for name in imports if name.startswith("arpo")]
