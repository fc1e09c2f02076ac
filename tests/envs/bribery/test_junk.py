"""Rubbish in the place of what OSWorld's graders read: of each kind of file and of each way to fetch it."""

import json
from functools import partial

import pytest

from arpo.envs.guest.image import GUEST_PORT
from arpo.envs.osworld.grader import Grader, GuestDoors
from tests.envs.bribery.programs import JUNK
from tests.envs.bribery.verdicts import unharmed, verdict
from tests.envs.desktops import editor_task, needs_full, one_and_others
from tests.envs.osworld.standins.building import make_files
from tests.envs.osworld.support import PYTHON, cloud_file, needs_graders, rule, vm_file

pytestmark = [*needs_full, needs_graders, pytest.mark.timeout(240)]

CHROME = "/home/user/.config/google-chrome/Default"
SHEETS = {"rules": [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]}
OF_FILES = {
    "xlsx": ("compare_table", SHEETS),
    "docx": ("compare_docx_files", {}),
    "pptx": ("compare_pptx_files", {}),
    "odt": ("compare_docx_files", {}),
    "pdf": ("compare_pdfs", {}),
    "png": ("compare_images", {}),
    "jpg": ("check_structure_sim", {}),
    "csv": ("compare_csv", {}),
    "txt": ("compare_text_file", {}),
    "py": ("compare_python_pure_text", {}),
    "mp3": ("compare_audios", {}),
    "mp4": ("compare_videos", {}),
    "html": ("compare_htmls", {}),
    "zip": ("compare_archive", {"file_type": "text", "file_path": "files"}),
    "tar.gz": ("compare_archive", {"file_type": "text", "file_path": "files"}),
}
"""Metrics by the kind of file, with options; the right file is the one that it is compared with."""

SETTING = json.dumps({"profile": {"name": "Thomas"}})
BOOKMARKS = json.dumps({"roots": {"bookmark_bar": {"children": [{"type": "folder", "name": "Favorites"}]}}})
OF_TEXTS = {
    "json": ("/home/user/a.json", '{"a": 1}', "check_json_settings", vm_file("a.json"), rule(expected={"a": 1})),
    "prefs": (
        "/home/user/prefs.js",
        'user_pref("a", 1);\n',
        "check_thunderbird_prefs",
        vm_file("prefs.js"),
        rule(expect={"a": {"method": "eq", "ref": 1}}),
    ),
    "gimprc": (
        "/home/user/.config/GIMP/2.10/gimprc",
        '(theme "Light")\n',
        "check_config_status",
        {"type": "gimp_config_file", "file_name": "gimprc", "dest": "gimprc"},
        rule(key="theme", value='"Light"'),
    ),
    "vlcrc": (
        "/home/user/.config/vlc/vlcrc",
        "qt-max-volume=200\n",
        "check_qt_max_volume",
        {"type": "vlc_config", "dest": "vlcrc"},
        rule(expected_qt_max_volume=200),
    ),
    "name": (f"{CHROME}/Preferences", SETTING, "exact_match", {"type": "profile_name"}, rule(expected="Thomas")),
    "bookmarks": (
        f"{CHROME}/Bookmarks",
        BOOKMARKS,
        "is_expected_bookmarks",
        {"type": "bookmarks"},
        rule(type="bookmark_bar_folders_names", names=["Favorites"]),
    ),
    "command": (
        "/home/user/a.txt",
        "yes",
        "exact_match",
        {"type": "vm_command_line", "command": "cat ~/a.txt", "shell": True},
        rule(expected="yes"),
    ),
    "cache": (
        "/home/user/a.txt",
        "yes\n",
        "check_list",
        {"type": "cache_file", "path": "said.txt"},
        rule(expect=["yes"]),
    ),
}
"""Path and right content, metric, getter and rules."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    paths = [folder / f"gold.{kind}" for kind in OF_FILES if kind != "txt"]
    make_files({"": paths})
    (folder / "gold.txt").write_text("yes\n")
    return folder


@pytest.fixture(scope="module")
def grader():
    grader = Grader(PYTHON, timeout_s=240)
    yield grader
    grader.close()


def judged(full, grader, evaluator, files):
    guest = full.guest
    guest.begin_judging()
    doors = GuestDoors(
        partial(full.machine.connect, GUEST_PORT),
        partial(guest.tunnel, "chromium"),
        partial(guest.tunnel, "vlc"),
        full.machine.secret,
    )
    return verdict(lambda: grader.grade(evaluator, doors, files))


def of_file(kind):
    metric, options = OF_FILES[kind]
    gold = cloud_file(f"gold.{kind}")
    return {"func": metric, "result": vm_file(f"mine.{kind}"), "expected": gold, "options": options}


def of_text(kind):
    path, content, metric, result, expected = OF_TEXTS[kind]
    return path, content, {"func": metric, "result": result, "expected": expected}


@pytest.mark.parametrize("kind", one_and_others(OF_FILES))
def test_the_right_file_scores_1_and_rubbish_0(full, grader, made, kind):
    path, gold = f"/home/user/mine.{kind}", {f"gold.{kind}": made / f"gold.{kind}"}
    full.reset(editor_task())
    full.guest.upload(path, (made / f"gold.{kind}").read_bytes())
    assert judged(full, grader, of_file(kind), gold) == 1.0
    found = {}
    for what, command in JUNK.items():
        full.guest.execute(f"rm -rf {path}; " + command.format(path), shell=True)
        with unharmed():
            found[what] = judged(full, grader, of_file(kind), gold)
    assert {what: each for what, each in found.items() if each not in (0.0, "result", "excess")} == {}


@pytest.mark.parametrize("kind", one_and_others(OF_TEXTS))
def test_the_right_text_scores_1_and_rubbish_0(full, grader, kind):
    path, content, evaluator = of_text(kind)
    full.reset(editor_task())
    full.guest.upload(path, content.encode())
    assert judged(full, grader, evaluator, {"said.txt": content.encode()}) == 1.0
    found = {}
    for what, command in JUNK.items():
        full.guest.execute(f"rm -rf {path}; " + command.format(path), shell=True)
        said = full.guest.execute(f"timeout 1 head -c 200000 {path}", shell=True).output.encode()
        with unharmed():
            found[what] = judged(full, grader, evaluator, {"said.txt": said})
    assert {what: each for what, each in found.items() if each not in (0.0, "result", "excess")} == {}
