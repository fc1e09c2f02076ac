"""Downloads that break off, from a real server: they go on from where they were, and nothing is mixed."""

import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from arpo.envs.osworld import files
from arpo.envs.osworld.files import ATTEMPTS, OVERLAP, FileCache
from arpo.errors import EnvError

CONTENT = bytes(range(256)) * 200
OTHER = CONTENT[::-1]


def fetch(web, root, content=CONTENT, name="film.mp4"):
    web.files["/film"] = content
    return FileCache(root).fetch(web.url("/film"), "task-1", name)


def asked(web):
    return [place for _, place in web.asked]


def partial(root):
    (found,) = (root / "task-1").glob("*.partial")
    return found


def left(root):
    return [path.suffix for path in (root / "task-1").iterdir() if path.suffix != ".lock"]


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
    assert left(tmp_path) == [".mp4"]


def test_what_a_process_has_left_is_gone_on_with_by_the_next(web, tmp_path):
    break_off(web, tmp_path, 20_000)
    assert partial(tmp_path).read_bytes() == CONTENT[:20_000]
    heard = []
    FileCache(tmp_path, heard.append).fetch(web.url("/film"), "task-1", "film.mp4")
    assert asked(web) == [f"bytes={20_000 - OVERLAP}-"]
    assert sum(heard) == len(CONTENT) - 20_000 + OVERLAP
    assert fetch(web, tmp_path).read_bytes() == CONTENT


def test_what_is_whole_but_had_no_time_to_get_its_name_is_asked_for_its_end(web, tmp_path):
    break_off(web, tmp_path, 20_000)
    partial(tmp_path).write_bytes(CONTENT)
    assert fetch(web, tmp_path).read_bytes() == CONTENT
    assert asked(web) == [f"bytes={len(CONTENT) - OVERLAP}-"]


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


def test_a_server_that_sends_another_place_than_it_was_asked_for_is_asked_anew(web, tmp_path):
    zeros = bytes(60_000)  # which are alike everywhere
    break_off(web, tmp_path, 20_000, zeros)
    web.off_by = 1
    assert fetch(web, tmp_path, zeros).read_bytes() == zeros
    assert asked(web) == [f"bytes={20_000 - OVERLAP}-", None]


def test_a_rest_that_is_packed_is_not_put_behind_what_is_not(web, tmp_path):
    break_off(web, tmp_path, 20_000)
    web.headers = {"Content-Encoding": "identity"}
    assert fetch(web, tmp_path).read_bytes() == CONTENT
    assert asked(web) == [f"bytes={20_000 - OVERLAP}-", None]


def test_a_length_that_no_file_has_is_no_file(web, tmp_path):
    web.lies_by = 5
    with pytest.raises(EnvError, match="without sending complete message body"):
        fetch(web, tmp_path)
    assert left(tmp_path) == [".partial"]


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
    assert left(tmp_path) == []


def test_a_full_disk_is_said_and_frees_what_it_took(web, tmp_path):
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))  # of a file, as if the disk had no more
    try:
        with pytest.raises(EnvError, match=r"cannot be kept at .*film\.mp4: .*File too large"):
            fetch(web, tmp_path, CONTENT * 40)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    assert left(tmp_path) == []
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
