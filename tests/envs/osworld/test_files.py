"""Downloads from a real server: a page in the place of a file is known, never kept, and noticed where it was kept."""

import logging
import uuid

import pytest

from arpo.envs.osworld.files import FileCache
from arpo.errors import EnvError
from tests.envs.osworld.guest import HOME

QUOTA = b"<!DOCTYPE html><html><head><title>Google Drive - Quota exceeded</title></head></html>"
PAGES = {
    "quota": QUOTA,
    "scan": b"\n\n<html><body>Google Drive can't scan this file for viruses</body></html>",
    "old": b"<!-- saved -->\n<HTML lang=en>",
    "strict": b'\xef\xbb\xbf<?xml version="1.0"?><!DOCTYPE html PUBLIC>',
}
ZIP, PDF = b"PK\5\6" + bytes(18), b"%PDF-1.4\n"  # an empty archive is its end alone
PNG, JPEG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"\xff\xd8\xff\xe0\0\x10JFIF\0"


def fetch(guest, cache, name, content, content_type="application/octet-stream"):
    guest.web["/web/file"], guest.content_type = content, content_type
    return FileCache(cache).fetch(f"{guest.address}/web/file", "task-1", f"{HOME}/{name}")


def kept(cache):
    return [path.name for path in (cache / "task-1").iterdir() if path.suffix != ".lock"]


@pytest.mark.parametrize("content_type", ["text/html; charset=utf-8", "application/octet-stream"])
@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("Export.xlsx", "quota"),
        ("a.pdf", "scan"),
        ("a.png", "old"),
        ("a.txt", "strict"),
        ("a", "old"),
        ("A.ZIP", "quota"),
    ],
)
def test_a_page_in_the_place_of_a_file_is_an_environment_error_and_never_kept(
    guest, tmp_path, name, page, content_type
):
    with pytest.raises(EnvError, match="/web/file gives no ") as caught:
        fetch(guest, tmp_path, name, PAGES[page], content_type)
    assert caught.value.kind == "reset"
    assert name in str(caught.value)
    assert repr(PAGES[page][:80])[2:-1] in str(caught.value)
    assert kept(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "content", "content_type"),
    [
        ("Export.xlsx", b"Quota exceeded", "text/plain"),
        ("Export.xlsx", b"", "application/octet-stream"),
        ("cut.docx", b"PK\3\4\x14\0" + bytes(200), "application/octet-stream"),
        ("notes.txt", b"<head><title>Sign in</title></head>", "application/octet-stream"),
        ("data.csv", b"<!-- " + bytes(2000).replace(b"\0", b"x") + b" -->" + QUOTA, "application/octet-stream"),
        ("a.pptx", b'{"error": {"code": 403}}', "application/json"),
        ("a.png", b"<Error><Code>AccessDenied</Code></Error>", "application/xml"),
        ("a.mp4", b"Too many requests\n", "application/octet-stream"),
        ("notes.txt", b"Quota exceeded", "text/html"),
        ("data.json", b"Sorry", "TEXT/HTML;charset=ISO-8859-1"),
    ],
)
def test_so_is_an_excuse_in_other_words(guest, tmp_path, name, content, content_type):
    with pytest.raises(EnvError, match="gives no "):
        fetch(guest, tmp_path, name, content, content_type)
    assert kept(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "content", "content_type"),
    [
        ("page.html", QUOTA, "text/html"),
        ("PAGE.HTM", QUOTA, "application/octet-stream"),
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
        ("gold", b"anything", "application/octet-stream"),
    ],
)
def test_what_was_asked_for_is_kept(guest, tmp_path, name, content, content_type):
    assert fetch(guest, tmp_path, name, content, content_type).read_bytes() == content
    assert len(kept(tmp_path)) == 1


def test_a_page_that_was_kept_before_is_noticed_and_replaced(guest, tmp_path, caplog):
    url = f"{guest.address}/web/file"
    bad = tmp_path / "task-1" / f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_Export.xlsx"
    bad.parent.mkdir()
    bad.write_bytes(QUOTA)
    with pytest.raises(EnvError, match="Quota exceeded"):
        fetch(guest, tmp_path, "Export.xlsx", QUOTA, "text/html")
    with caplog.at_level(logging.WARNING):
        assert fetch(guest, tmp_path, "Export.xlsx", ZIP).read_bytes() == ZIP
    assert "is downloaded again" in caplog.text
    fetched = len(guest.fetched)
    assert fetch(guest, tmp_path, "Export.xlsx", b"not asked for again").read_bytes() == ZIP
    assert len(guest.fetched) == fetched


def test_a_gold_file_that_is_a_page_fails_the_evaluation_and_not_the_task(guest, tmp_path):
    guest.web["/web/gold"], guest.content_type = QUOTA, "text/html"
    evaluator = {"expected": {"type": "cloud_file", "path": f"{guest.address}/web/gold", "dest": "gold.xlsx"}}
    with pytest.raises(EnvError, match=r"gives no gold\.xlsx but text/html of"):
        FileCache(tmp_path / "cache").gold_files(evaluator, "task-1")
