"""`python -m arpo view`."""

import os
import socket
import webbrowser

from arpo.__main__ import main
from arpo.apps.viewer.command import last_run
from tests.apps.viewer.support import make_group, write_run


def test_a_run_is_written_beside_itself_and_its_page_is_named(tmp_path, caplog):
    write_run(tmp_path / "run", make_group(0, 0, 1.0))
    caplog.set_level("INFO")
    assert main(["view", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "view" / "index.html").exists()
    assert (tmp_path / "run" / "view" / "index.html").as_uri() in caplog.text


def test_the_page_is_opened_where_that_is_asked_for(tmp_path, monkeypatch):
    write_run(tmp_path / "run", make_group(0, 0, 1.0))
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert main(["view", str(tmp_path / "run")]) == 0
    assert opened == []
    assert main(["view", str(tmp_path / "run"), "--open"]) == 0
    assert opened == [(tmp_path / "run" / "view" / "index.html").as_uri()]


def test_two_runs_go_where_they_are_told(tmp_path):
    for name in ("one", "two"):
        write_run(tmp_path / name, make_group(0, 0, 1.0))
    assert main(["view", str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(tmp_path / "both")]) == 0
    assert (tmp_path / "both" / "data" / "b" / "index.js").exists()


def test_what_cannot_be_shown_is_one_sentence_and_exit_status_2(tmp_path, caplog):
    assert main(["view", str(tmp_path / "nowhere")]) == 2
    assert main(["view", "a", "b", "c"]) == 2
    assert "nowhere: name that of a run" in caplog.text
    assert "two runs stand side by side, not 3: name one or two" in caplog.text


def test_a_place_that_takes_nothing_is_one_sentence_and_exit_status_2(tmp_path, caplog):
    write_run(tmp_path / "run", make_group(0, 0, 1.0))
    (tmp_path / "file").touch()
    run = str(tmp_path / "run")
    assert main(["view", run, "--out", str(tmp_path / "file")]) == 2
    assert "holds other files: name a new folder with --out" in caplog.text
    assert main(["view", run, "--out", str(tmp_path / "file" / "view")]) == 2
    assert "cannot write the viewer to" in caplog.text
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["view", run, "--serve", "--port", str(taken.getsockname()[1])]) == 2
    assert main(["view", run, "--serve", "--port", "70000"]) == 2
    assert caplog.text.count("name another with --port") == 2


def test_without_a_name_the_last_run_is_shown(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    assert main(["view"]) == 2
    assert "there is no run in outputs/ to look at" in caplog.text
    for age, name in ((100, "x/old"), (5, "y/seed=1"), (50, "x/other")):
        store = write_run(tmp_path / "outputs" / name, make_group(0, 0, 1.0))
        stamp = (store.root / "train").stat().st_mtime - age
        os.utime(store.root / "train", (stamp, stamp))
    assert last_run(tmp_path / "outputs") == tmp_path / "outputs" / "y" / "seed=1"
    assert main(["view"]) == 0
    assert (tmp_path / "outputs" / "y" / "seed=1" / "view" / "index.html").exists()
