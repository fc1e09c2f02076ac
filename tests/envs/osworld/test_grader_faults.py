"""What a guest answers OSWorld's graders: a file that is not there scores 0, a guest that fails gives no score."""

import re

import pytest

from arpo.envs.osworld.grader import GraderProcess
from arpo.errors import EnvError
from tests.envs.osworld.guest import HOME, failure, running_guest
from tests.envs.osworld.test_grader import PYTHON, address, cloud_file, includes, needs_graders, said, vm_file


@pytest.fixture(scope="module")
def grader():
    grader = GraderProcess(PYTHON, timeout_s=120)
    yield grader
    grader.close()


@pytest.fixture
def guest():
    with running_guest() as guest:
        yield guest


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
