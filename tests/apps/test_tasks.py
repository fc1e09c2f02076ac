"""What OSWorld's tasks need and what is here, and their files fetched beforehand from a real server."""

import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from arpo.__main__ import main as arpo
from arpo.apps.tasks import Downloads, fetch, main, named, tasks_of
from arpo.envs.osworld.files import FileCache
from arpo.errors import ConfigError
from arpo.run.build import compose
from arpo.types import Task
from tests.envs.osworld.guest import running_web
from tests.envs.osworld.support import FILES, needs_files

PAGE = b"<!DOCTYPE html><title>Quota exceeded</title>"


@pytest.fixture
def web():
    with running_web() as web:
        yield web


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("ARPO_OSWORLD_TASKS", str(FILES))
    monkeypatch.setenv("ARPO_OSWORLD_CACHE", str(tmp_path / "cache"))


def task(web, name, *paths, gold=None):
    downloads = [{"url": web.url(path), "path": f"home/{path}"} for path in paths]
    expected = {"expected": {"type": "cloud_file", "path": web.url(gold), "dest": gold}} if gold else {}
    config = [{"type": "download", "parameters": {"files": downloads}}]
    return Task(name, "Do it.", "os", {"config": config, "evaluator": {"func": "compare_text_file", **expected}})


def cells(capsys):
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def rows(capsys):
    return {row[0]: row[1:] for row in cells(capsys)}


@needs_files
def test_the_table_has_what_the_tasks_of_each_application_need_and_a_file_that_is_here_makes_one_ready(
    here, capsys, tmp_path
):
    assert main(["osworld"]) == 0
    table = rows(capsys)
    assert len(table) == 11
    assert table["all"] == ["369", "46", "206", "8", "28", "72", "1", "8", "0 of 678", "48", "43"]
    assert table["vs_code"] == ["23", "", "", "", "20", "3", "", "", "0 of 18", "0", ""]
    (one,) = named(tasks_of(compose("train", ["tasks=osworld_subset32"])), ["554785e9"])
    cache = FileCache(tmp_path / "cache")
    for url, name in cache.lacking(one):
        place = cache.place(url, one.id, name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"\x89PNG\r\n\x1a\n\0")
    assert main(["osworld", "tasks=osworld_subset32"]) == 0
    table = rows(capsys)
    assert table["gimp"] == ["3", "", "3", "", "", "", "", "", "1 of 3", "1", ""]
    assert table["all"][-2] == "5"


@needs_files
def test_vs_code_is_ready_where_the_image_of_the_containers_has_it(here, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr("arpo.apps.tasks.has_vs_code", lambda image: asked.append(image) or "vscode" in image)
    image = "env.make_env.machine.image=arpo/desktop:vscode"
    containers = ["env=osworld_container"]
    for words, ready in ((["env=osworld"], "0"), (containers, "0"), ([*containers, image], "10")):
        assert main(["osworld", *words]) == 0
        assert rows(capsys)["vs_code"][-2] == ready
    assert asked == ["arpo/desktop:full", "arpo/desktop:vscode"]


@needs_files
def test_each_task_has_a_line_with_what_is_in_its_way(here, capsys):
    assert main(["osworld", "--each", "experiment=arpo_full", "tasks=osworld_369"]) == 0
    # a long cell goes on in a further line
    table = {row[1][:8]: row[2:-1] for row in cells(capsys) if row[1]}
    assert len(table) == 369
    assert table["2ad9387a"] == ["nothing", "", ""]
    assert table["3299584d"] == ["a package", "jq", ""]
    assert table["e2b5e914"] == ["live web", "", ""]
    assert table["0c825995"][0] == "an account"
    assert table["0c825995"][1].startswith("config[0].type 'googledrive': it needs a Google account")


@needs_files
def test_the_tasks_are_those_of_the_words_of_a_run_and_a_list_is_looked_for_inside_another(here):
    assert len(tasks_of(compose("train", ["experiment=arpo_full"]))) == 128
    assert len(tasks_of(compose("train", ["tasks=osworld_128_vscode"]))) == 112
    with pytest.raises(ConfigError, match="needs="):
        tasks_of(compose("train", ["tasks=osworld_128_vscode", "tasks.train.needs=files"]))
    inside = compose("train", ["tasks=osworld_subset32"])
    inside.tasks = {"train": {"_target_": "some.loader", "tasks": inside.tasks.train}, "held_out": []}
    assert len(tasks_of(inside)) == 32


def test_a_run_without_osworld_s_tasks_and_a_word_that_is_none_are_said(here, caplog):
    with pytest.raises(ConfigError, match="there are no tasks of OSWorld here: name a list such as tasks=osworld_128"):
        main(["fetch", "experiment=smoke"])
    with pytest.raises(ConfigError, match="tasks=osworld_1: there is osworld_128; choose one of "):
        main(["fetch", "tasks=osworld_1"])
    assert arpo(["tasks", "osworld", "tasks"]) == 2
    assert "'tasks' is no override" in caplog.text


def test_fetching_says_what_it_could_not_get_for_which_task_and_where_to_put_it(web, tmp_path, caplog):
    web.files |= {"/a.txt": b"a", "/b.xlsx": PAGE, "/c.html": PAGE, "/gold.txt": b"gold"}
    tasks = [
        task(web, "whole", "/a.txt", "/c.html", gold="/gold.txt"),
        task(web, "page", "/a.txt", "/b.xlsx"),
        task(web, "gone", "/d.txt", "/e.txt"),
    ]
    with caplog.at_level(logging.INFO):
        assert fetch(tasks, tmp_path) == 1
    said = [record.getMessage() for record in caplog.records if record.name == "arpo.apps.tasks"]
    cache = FileCache(tmp_path)
    assert [line.split(":")[0] for line in said[:3]] == ["task page (os)", "task gone (os)", "task gone (os)"]
    assert "/b.xlsx gives no b.xlsx but" in said[0]
    assert said[0].endswith(f"b.xlsx may be put by hand at {cache.place(web.url('/b.xlsx'), 'page', 'b.xlsx')}")
    assert "404" in said[1]
    lacking = "2 of 3 tasks cannot be set up or graded without the others"
    assert said[3:] == [f"4 of 7 files are in {tmp_path}", lacking]
    assert [len(cache.lacking(each)) for each in tasks] == [0, 1, 2]


def test_fetching_again_asks_for_what_is_missing_alone_and_then_for_nothing(web, tmp_path, caplog):
    web.files["/a.txt"] = b"a"
    tasks = [task(web, "one", "/a.txt", "/b.txt")]
    assert fetch(tasks, tmp_path) == 1
    web.files["/b.txt"], web.asked = b"b", []
    assert fetch(tasks, tmp_path) == 0
    assert fetch(tasks, tmp_path) == 0
    assert [path for path, _ in web.asked] == ["/b.txt"]


def test_several_files_come_at_once_and_the_line_has_files_and_bytes(web, tmp_path):
    paths = [f"/{index}.txt" for index in range(4)]
    web.files = dict.fromkeys(paths, b"x")
    together = threading.Barrier(4)
    web.hangs, web.cuts = [together] * 4, [0] * 4  # no connection gets anything before four are open
    assert fetch([task(web, "one", *paths)], tmp_path) == 0
    assert not together.broken
    progress = Downloads(8)
    progress.done = 2
    progress.add(3 * 2**20)
    assert (progress.line().text, progress.line().share) == ("2 of 8 files · 3.0 MiB", 0.25)


def test_ctrl_c_ends_it_and_leaves_what_has_come(web, tmp_path):
    web.files["/film.mp4"], web.lies_by, web.endless = bytes(10**5), 10**12, True
    code = (
        "import signal, sys; from arpo.apps.tasks import fetch; from arpo.types import Task; url = sys.argv[1]; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "
        "step = {'type': 'download', 'parameters': {'files': [{'url': url, 'path': 'film.mp4'}]}}; "
        "sys.exit(fetch([Task('one', '', 'os', {'config': [step], 'evaluator': {}})], sys.argv[2]))"
    )
    running = subprocess.Popen([sys.executable, "-c", code, web.url("/film.mp4"), str(tmp_path)])
    assert web.begun.wait(120)
    os.kill(running.pid, signal.SIGINT)
    assert running.wait(120) == 130
    (partial,) = (tmp_path / "one").glob("*.partial")
    assert partial.stat().st_size > 0
