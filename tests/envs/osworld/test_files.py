"""Downloads from a real server: a page in the place of a file is never kept, and one that broke off goes on."""

import logging
import resource
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from arpo.envs.osworld import files
from arpo.envs.osworld.files import ATTEMPTS, OVERLAP, FileCache
from arpo.errors import EnvError

CONTENT = bytes(range(256)) * 200
OTHER = CONTENT[::-1]
BINARY = "application/octet-stream"
QUOTA = b"<!DOCTYPE html><html><head><title>Google Drive - Quota exceeded</title></head></html>"
PAGES = {
    "quota": QUOTA,
    "scan": b"\n\n<html><body>Google Drive can't scan this file for viruses</body></html>",
    "old": b"<!-- saved -->\n<HTML lang=en>",
    "strict": b'\xef\xbb\xbf<?xml version="1.0"?><!DOCTYPE html PUBLIC>',
}
ZIP, PDF = b"PK\5\6" + bytes(18), b"%PDF-1.4\n"  # an empty archive is its end alone
PNG, JPEG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"\xff\xd8\xff\xe0\0\x10JFIF\0"


def fetch(web, root, content=CONTENT, name="film.mp4", content_type=None):
    web.files["/film"] = content
    web.headers |= {} if content_type is None else {"Content-Type": content_type}
    return FileCache(root).fetch(web.url("/film"), "task-1", f"home/{name}")


def kept(root):
    return [path.suffix for path in (root / "task-1").iterdir() if path.suffix != ".lock"]


@pytest.mark.parametrize("content_type", ["text/html; charset=utf-8", BINARY])
@pytest.mark.parametrize(
    ("name", "page"),
    {"Export.xlsx": "quota", "a.pdf": "scan", "a.png": "old", "a.txt": "strict", "a": "old", "A.ZIP": "quota"}.items(),
)
def test_a_page_in_the_place_of_a_file_is_an_environment_error_and_never_kept(web, tmp_path, name, page, content_type):
    with pytest.raises(EnvError, match="/film gives no ") as caught:
        fetch(web, tmp_path, PAGES[page], name, content_type)
    assert caught.value.kind == "reset"
    assert name in str(caught.value)
    assert repr(PAGES[page][:80])[2:-1] in str(caught.value)
    assert kept(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "content", "content_type"),
    [
        ("Export.xlsx", b"Quota exceeded", "text/plain"),
        ("Export.xlsx", b"", BINARY),
        ("cut.docx", b"PK\3\4\x14\0" + bytes(200), BINARY),
        ("notes.txt", b"<head><title>Sign in</title></head>", BINARY),
        ("data.csv", b"<!-- " + bytes(2000).replace(b"\0", b"x") + b" -->" + QUOTA, BINARY),
        ("a.pptx", b'{"error": {"code": 403}}', "application/json"),
        ("a.png", b"<Error><Code>AccessDenied</Code></Error>", "application/xml"),
        ("a.mp4", b"Too many requests\n", BINARY),
        ("notes.txt", b"Quota exceeded", "text/html"),
        ("data.json", b"Sorry", "TEXT/HTML;charset=ISO-8859-1"),
    ],
)
def test_so_is_an_excuse_in_other_words(web, tmp_path, name, content, content_type):
    with pytest.raises(EnvError, match="gives no "):
        fetch(web, tmp_path, content, name, content_type)
    assert kept(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "content", "content_type"),
    [
        ("page.html", QUOTA, "text/html"),
        ("PAGE.HTM", QUOTA, BINARY),
        ("Export.xlsx", ZIP, "text/html"),  # a server that calls everything so
        ("secret.docx", b"\xd0\xcf\x11\xe0\xa1\xb1", ""),
        ("a.pdf", b"\n" + PDF, "application/pdf"),
        ("a.jpg", PNG, "image/png"),  # a task may call it so
        ("a.png", JPEG, "image/jpeg"),
        ("empty.txt", b"", "text/plain"),
        ("readme.md", b"<p align=center>\n# Title", "text/plain"),
        ("code.py", b"page = '<html></html>'", "text/plain"),
        ("mail.eml", b"From: a\n\n<html>", "message/rfc822"),
        ("slow.txt", b"<!---->" * 140, "text/plain"),
        ("gold", b"anything", BINARY),
    ],
)
def test_what_was_asked_for_is_kept(web, tmp_path, name, content, content_type):
    assert fetch(web, tmp_path, content, name, content_type).read_bytes() == content
    assert len(kept(tmp_path)) == 1


def test_a_page_that_was_kept_before_is_noticed_and_replaced(web, tmp_path, caplog):
    bad = tmp_path / "task-1" / f"{uuid.uuid5(uuid.NAMESPACE_URL, web.url('/film'))}_Export.xlsx"
    bad.parent.mkdir()
    bad.write_bytes(QUOTA)
    with pytest.raises(EnvError, match="Quota exceeded"):
        fetch(web, tmp_path, QUOTA, "Export.xlsx", "text/html")
    with caplog.at_level(logging.WARNING):
        assert fetch(web, tmp_path, ZIP, "Export.xlsx", BINARY).read_bytes() == ZIP
    assert "is downloaded again" in caplog.text
    asked = len(web.asked)
    assert fetch(web, tmp_path, b"not asked for again", "Export.xlsx").read_bytes() == ZIP
    assert len(web.asked) == asked


def test_a_gold_file_that_is_a_page_fails_the_evaluation_and_not_the_task(web, tmp_path):
    web.files["/gold"], web.headers = QUOTA, {"Content-Type": "text/html"}
    evaluator = {"expected": {"type": "cloud_file", "path": web.url("/gold"), "dest": "gold.xlsx"}}
    with pytest.raises(EnvError, match=r"gives no gold\.xlsx but text/html of"):
        FileCache(tmp_path / "cache").gold_files(evaluator, "task-1")


def asked(web):
    return [place for _, place in web.asked]


def partial(root):
    (found,) = (root / "task-1").glob("*.partial")
    return found


def break_off(web, root, size, content=CONTENT):
    web.cuts = [size] * ATTEMPTS
    ranges, web.ranges = web.ranges, False  # each of the three attempts begins anew
    with pytest.raises(EnvError, match="cannot be downloaded: RemoteProtocolError"):
        fetch(web, root, content)
    web.ranges, web.cuts, web.asked = ranges, [], []


def test_a_server_that_dies_in_the_middle_is_asked_for_the_rest(web, tmp_path):
    web.cuts = [30_000, 10_000]
    assert fetch(web, tmp_path).read_bytes() == CONTENT
    second = 30_000 - OVERLAP
    assert asked(web) == [None, f"bytes={second}-", f"bytes={second + 10_000 - OVERLAP}-"]
    assert kept(tmp_path) == [".mp4"]


def test_what_a_process_has_left_is_gone_on_with_by_the_next(web, tmp_path):
    break_off(web, tmp_path, 20_000)
    assert partial(tmp_path).read_bytes() == CONTENT[:20_000]
    heard = []
    FileCache(tmp_path, heard.append).fetch(web.url("/film"), "task-1", "film.mp4")
    assert asked(web) == [f"bytes={20_000 - OVERLAP}-"]
    assert sum(heard) == len(CONTENT) - 20_000 + OVERLAP
    assert fetch(web, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    "content",
    [OTHER, CONTENT[:20_000], CONTENT[: 20_000 - OVERLAP + 1], CONTENT[:300], b"\0"],
    ids=["another", "as long", "shorter by less than the overlap", "shorter", "tiny"],
)
@pytest.mark.parametrize("ranges", [True, False])
def test_a_file_that_has_changed_meanwhile_is_not_mixed_with_the_old_one(web, tmp_path, content, ranges):
    break_off(web, tmp_path, 20_000)
    web.ranges = ranges
    assert fetch(web, tmp_path, content).read_bytes() == content


@pytest.mark.parametrize("trouble", [{"off_by": 1}, {"headers": {"Content-Encoding": "identity"}}])
def test_a_rest_from_another_place_or_one_that_is_packed_is_asked_for_anew(web, tmp_path, trouble):
    zeros = bytes(60_000)  # which are alike everywhere
    break_off(web, tmp_path, 20_000, zeros)
    vars(web).update(trouble)
    assert fetch(web, tmp_path, zeros).read_bytes() == zeros
    assert asked(web) == [f"bytes={20_000 - OVERLAP}-", None]


def test_a_length_that_no_file_has_is_no_file(web, tmp_path):
    web.lies_by = 5
    with pytest.raises(EnvError, match="without sending complete message body"):
        fetch(web, tmp_path)
    assert kept(tmp_path) == [".partial"]


def test_a_server_that_stands_still_is_left_and_asked_again(web, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "TIMEOUT_S", 0.3)
    gate = threading.Event()
    web.cuts, web.hangs = [20_000], [gate]
    try:
        assert fetch(web, tmp_path).read_bytes() == CONTENT
    finally:
        gate.set()
    assert asked(web) == [None, f"bytes={20_000 - OVERLAP}-"]


def test_a_page_in_the_place_of_the_rest_leaves_nothing_to_go_on_from(web, tmp_path):
    break_off(web, tmp_path, 20_000)
    web.ranges, web.headers = False, {"Content-Type": "text/html"}
    with pytest.raises(EnvError, match=r"gives no film\.mp4 but text/html"):
        fetch(web, tmp_path, b"<!doctype html><title>Quota exceeded</title>")
    assert kept(tmp_path) == []


def test_a_full_disk_is_said_and_frees_what_it_took(web, tmp_path):
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))  # of a file, as if the disk had no more
    try:
        with pytest.raises(EnvError, match=r"cannot be kept at .*film\.mp4: .*File too large"):
            fetch(web, tmp_path, CONTENT * 40)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    assert kept(tmp_path) == []
    assert fetch(web, tmp_path, CONTENT * 40).read_bytes() == CONTENT * 40


def test_a_folder_that_cannot_be_made_is_an_environment_error(web, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(EnvError, match="cannot be kept at"):
        fetch(web, tmp_path / "file")


def test_two_processes_that_want_one_file_download_it_once(web, tmp_path):
    web.files["/film"] = CONTENT
    gate = threading.Event()
    web.cuts, web.hangs = [20_000], [gate]  # the first one waits in the middle, and is then cut
    code = (
        "import sys; from arpo.envs.osworld.files import FileCache; print('begins', flush=True); "
        "print(FileCache(sys.argv[1]).fetch(sys.argv[2], 'task-1', 'film.mp4'))"
    )
    command = [sys.executable, "-c", code, str(tmp_path), web.url("/film")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [each.stdout.readline() for each in both] == ["begins\n"] * 2
    gate.set()
    (found,) = {each.communicate(timeout=120)[0].strip() for each in both}
    assert Path(found).read_bytes() == CONTENT
    assert asked(web) == [None, f"bytes={20_000 - OVERLAP}-"]
