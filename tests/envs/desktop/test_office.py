"""LibreOffice and Chromium in the office image, with the limits of an episode: opened, typed into, saved."""

import io
import json
import time
import zipfile
from xml.etree import ElementTree

import pytest

from arpo.agent.actions import TypeText
from arpo.envs.desktop.env import DockerDesktop
from tests.envs.desktops import OFFICE, needs_office, task

pytestmark = [*needs_office, pytest.mark.slow]

PAGE = "<title>Nothing</title><input autofocus oninput='document.title = this.value'>"
WORDS = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}t"
CELL = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}c"
TABLE = "printf 'tea,3\\nmilk,4\\n' > ~/mine.csv"
SETTLE_LIMIT_S = 10.0


@pytest.fixture(scope="module")
def env():
    env = DockerDesktop(image=OFFICE, settle_limit_s=SETTLE_LIMIT_S)
    yield env
    env.close()


def office_task(make, step, window, solution=()):
    config = [{"type": "execute", "parameters": {"command": make, "shell": True}}, step]
    return task(config=config, windows=[window], evaluator={"func": "infeasible"}, solution=solution)


def opened(source, kind, solution):
    make = f"{source} && libreoffice --headless --convert-to {kind} ~/mine.* --outdir ~"
    return office_task(make, {"type": "open", "parameters": {"path": f"~/mine.{kind}"}}, f"mine.{kind}", solution)


def saved(env, path, part):
    """A part of a saved document; one that is just being written is none."""
    content = env.machine.guest.file(path)
    return ElementTree.fromstring(zipfile.ZipFile(io.BytesIO(content)).read(part))


def solve(env, task):
    env.reset(task)
    for action in env.solve():
        env.step(action)


def titles(env):
    return env.machine.guest.titles()


def test_writer_opens_a_document_and_saves_what_is_typed(env):
    letter = "printf 'Dear reader,' > ~/mine.txt"
    keys = ["hotkey(key='ctrl end')", "type(content=' thank you.')", "hotkey(key='ctrl s')"]
    solve(env, opened(letter, "docx", keys))
    assert titles(env) == ["mine.docx - LibreOffice Writer"]
    document = saved(env, "~/mine.docx", "word/document.xml")
    assert "".join(text.text for text in document.iter(WORDS)) == "Dear reader, thank you."


def test_calc_opens_a_table_computes_and_saves(env):
    keys = ["hotkey(key='ctrl end')", "hotkey(key='down')", "type(content='=B1+B2\\n')", "hotkey(key='ctrl s')"]
    solve(env, opened(TABLE, "xlsx", keys))
    assert titles(env) == ["mine.xlsx - LibreOffice Calc"]
    cells = {cell.get("r"): cell for cell in saved(env, "~/mine.xlsx", "xl/worksheets/sheet1.xml").iter(CELL)}
    assert [part.text for part in cells["B3"]] == ["B1+B2", "7"]


def test_the_accessibility_tree_has_the_cells_that_a_sheet_shows(env):
    env.reset(opened(TABLE, "xlsx", ()))
    answer = json.loads(env.machine.guest._get("/accessibility"))
    (table,) = ElementTree.fromstring(answer["AT"]).iter("table")
    cells = {cell.get("name"): cell.text for cell in table}
    assert (cells["A1"], cells["B2"], cells["C3"]) == ("tea", "4", None)
    assert 50 < len(cells) < 2000  # of 2^34


def test_chromium_opens_a_page_and_its_scripts_run(env):
    make = f'echo "{PAGE}" > ~/page.html'
    env.reset(office_task(make, {"type": "launch", "parameters": {"command": "chromium ~/page.html"}}, "Nothing"))
    assert titles(env) == ["Nothing - Chromium"]
    env.step(TypeText("something"))
    assert titles(env) == ["something - Chromium"]


def test_the_next_episode_knows_nothing_of_the_last(env):
    env.reset(office_task("true", {"type": "launch", "parameters": {"command": "xterm -title new"}}, "new"))
    assert titles(env) == ["new"]
    files = env.machine.guest.execute("find ~ -name 'mine*' -o -path '*chromium/*'", shell=True)
    assert files.output == ""


def test_a_page_comes_to_rest_at_once_when_the_file_manager_opens_it(env):
    """Nobody tells the window manager that Chromium has started: a busy pointer would turn for 20 s."""
    began = time.monotonic()
    step = {"type": "open", "parameters": {"path": "~/page.html"}}
    env.reset(office_task("echo '<p>Hello' > ~/page.html", step, "page.html"))
    assert time.monotonic() - began < SETTLE_LIMIT_S
