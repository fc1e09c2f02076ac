"""Set-up steps: each does on the guest what OSWorld's does, and one that fails is never passed over."""

import json
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from functools import partial

import pytest

from arpo.envs.guest.client import Deadlines, Guest
from arpo.envs.guest.setup import Screen
from arpo.envs.osworld.chrome import ChromeTabs, same_page
from arpo.envs.osworld.files import EMPTY_HISTORY, EMPTY_HISTORY_URL, FileCache
from arpo.envs.osworld.setup import OSWorldSetup, add_visits
from arpo.errors import EnvError
from tests.envs.osworld.guest import HOME, failure
from tests.envs.osworld.standins.anything import empty_history

EMPTY_ZIP = b"PK\5\6" + bytes(18)
PAGE = {"url": "https://a.org", "title": "A", "visit_time_from_now_in_seconds": 60}


@pytest.fixture
def setup(guest, tmp_path):
    client = Guest(guest.address, deadlines=Deadlines(window_s=0.0))
    chrome = ChromeTabs(guest.address, start_timeout_s=0.2, load_timeout_s=1.0)
    screen, files = Screen(1920, 1080, "secret"), FileCache(tmp_path / "cache")
    return OSWorldSetup(client, "task-1", screen, chrome=chrome, files=files)


def step(kind, **parameters):
    return {"type": kind, "parameters": parameters}


def test_a_download_lands_in_the_guest_and_is_made_once(guest, setup):
    guest.web["/web/table.xlsx"] = EMPTY_ZIP
    download = step("download", files=[{"url": f"{guest.address}/web/table.xlsx", "path": f"{HOME}/table.xlsx"}])
    setup.prepare([download])
    guest.files.clear()
    setup.prepare([download])
    assert guest.files == {f"{HOME}/table.xlsx": EMPTY_ZIP}
    assert guest.fetched == ["/web/table.xlsx"]


def test_environments_that_want_one_file_at_once_download_it_once_under_osworld_s_name(guest, tmp_path):
    guest.web["/web/gold"] = b"x" * 10**6
    fetch = partial(FileCache(tmp_path).fetch, f"{guest.address}/web/gold", "task-1", f"{HOME}/gold.txt")
    with ThreadPoolExecutor(4) as threads:
        (found,) = {future.result() for future in [threads.submit(fetch) for _ in range(4)]}
    assert found.read_bytes() == guest.web["/web/gold"]
    assert guest.fetched == ["/web/gold"]
    # OSWorld: <cache>/<task id>/<uuid5 of the address>_<base name in the guest>
    assert (found.parent, found.name[36:]) == (tmp_path / "task-1", "_gold.txt")


def test_a_download_that_fails_is_tried_three_times_and_is_an_environment_error_that_leaves_nothing(
    guest, setup, tmp_path, caplog
):
    failing = step("download", files=[{"url": f"{guest.address}/web/late", "path": "x"}])
    said = "cannot be downloaded.*404"
    with pytest.raises(EnvError, match=rf"task task-1, set-up step 0 \(download\): .*/web/late {said}"):
        setup.prepare([failing])
    assert guest.fetched == ["/web/late"] * 3
    assert len(caplog.records) == 2  # one before each further attempt
    assert [path.suffix for path in (tmp_path / "cache" / "task-1").iterdir()] == [".lock"]
    with pytest.raises(EnvError, match="cannot be downloaded"):  # before grading as well
        setup.conclude([failing])
    guest.web["/web/late"] = b"there now"
    setup.prepare([failing])
    assert guest.files == {"x": b"there now"}
    with pytest.raises(EnvError, match="InvalidURL"):
        FileCache(tmp_path).fetch("http://a:b", "task-1", "a")


def test_gold_files_are_found_by_the_names_that_the_getters_look_for(guest, tmp_path):
    guest.web |= {"/web/1": b"one", "/web/2": b"two", "/web/3": b"three"}
    one, two, three = (f"{guest.address}{path}" for path in guest.web)
    single = {"type": "cloud_file", "path": one, "dest": "gold.txt"}
    multiple = {"type": "cloud_file", "multi": True, "path": [two, three], "dest": ["2.txt", "3.txt"]}
    evaluator = {"result": {"type": "vm_file", "path": "p", "dest": "p"}, "expected": [single, None, multiple]}
    found = FileCache(tmp_path).gold_files(evaluator, "task-1")
    content = {name: path.read_bytes() for name, path in found.items()}
    assert content == {"gold.txt": b"one", "2.txt": b"two", "3.txt": b"three"}
    assert sorted(guest.fetched) == ["/web/1", "/web/2", "/web/3"]


def test_an_upload_brings_a_file_of_this_machine(guest, setup, tmp_path):
    (tmp_path / "local.txt").write_text("here")
    setup.prepare([step("upload_file", files=[{"local_path": str(tmp_path / "local.txt"), "path": f"{HOME}/l.txt"}])])
    assert guest.files == {f"{HOME}/l.txt": b"here"}
    with pytest.raises(EnvError, match="the file to upload cannot be read"):
        setup.prepare([step("upload_file", files=[{"local_path": str(tmp_path / "none"), "path": "x"}])])


def test_a_command_may_name_screen_and_password_and_a_line_without_shell_is_split_where_it_is_launched(guest, setup):
    words = "{SCREEN_WIDTH} {SCREEN_HEIGHT} {SCREEN_WIDTH_HALF} {SCREEN_HEIGHT_HALF} {CLIENT_PASSWORD}"
    steps = [
        step("execute", command=["echo", words], stdout="out.txt", stderr="err.txt"),
        step("command", command="echo again", shell=True, stdout="again.txt"),
        step("launch", command=["google-chrome", "--remote-debugging-port=1337"]),
        step("launch", command="vlc --loop"),
        step("launch", command="thunderbird -compose 'a b'", shell=True),
    ]
    setup.prepare(steps)
    assert setup.saved == {"out.txt": b"1920 1080 960 540 secret\n", "err.txt": b"", "again.txt": b"again\n"}
    chrome = ["google-chrome", "--remote-debugging-port=1337"], False
    assert guest.launched == [chrome, (["vlc", "--loop"], False), ("thunderbird -compose 'a b'", True)]


def test_files_open_and_windows_come_to_the_front_and_close(guest, setup):
    guest.files[f"{HOME}/a.odt"] = b""
    guest.windows = ["Chrome", "Terminal"]
    steps = [
        step("open", path=f"{HOME}/a.odt"),
        step("activate_window", window_name="Chrome", strict=True),
        step("close_window", window_name="Terminal", by_class=True),
        step("sleep", seconds=0.01),
    ]
    setup.prepare(steps)
    assert guest.windows == ["a.odt", "Chrome"]


def test_a_window_that_comes_late_is_waited_for_and_one_that_does_not_come_is_said_by_the_guest_s_own_words(
    guest, setup, monkeypatch
):
    opening = step("open", path=f"{HOME}/a.odt")
    guest.post_setup_open_file = lambda _: failure(500, "no window shows a.odt after 25 s")
    guest.get_windows = lambda _: (200, json.dumps([{"title": title} for title in guest.windows]).encode())
    threading.Timer(0.2, lambda: guest.windows.append("a.odt - LibreOffice Writer")).start()
    setup.prepare([opening])
    assert guest.windows == ["a.odt - LibreOffice Writer"]
    guest.windows.clear()
    monkeypatch.setattr("arpo.envs.osworld.setup.LATE_S", 0.05)
    with pytest.raises(EnvError, match=r"set-up step 0 \(open\): .*no window shows a\.odt after 25 s"):
        setup.prepare([opening])


def test_tabs_open_in_order_in_place_of_the_first_one_and_close_by_address(guest, setup):
    setup.prepare([step("chrome_open_tabs", urls_to_open=["https://www.a.org/?q=1&r=#top", "https://b.org"])])
    assert list(guest.tabs.values()) == ["https://www.a.org/?q=1&r=#top", "https://b.org"]
    setup.prepare([step("chrome_close_tabs", urls_to_close=["http://b.org/", "https://never.org"])])
    assert list(guest.tabs.values()) == ["https://www.a.org/?q=1&r=#top"]


def test_addresses_are_of_one_page_whatever_scheme_www_and_last_slash():
    assert same_page("https://www.a.org/x/", "a.org/x")
    assert not same_page("https://a.org/x", "https://a.org/y")
    assert not same_page("https://a.org/x?q=1", "https://a.org/x?q=2")


def test_a_chrome_that_does_not_listen_is_an_environment_error(setup, guest):
    guest.refused.add("/json/list")
    with pytest.raises(EnvError, match=r"set-up step 0 \(chrome_open_tabs\): Chrome in the guest"):
        setup.prepare([step("chrome_open_tabs", urls_to_open=["https://a.org"])])


def test_a_chrome_that_listens_late_is_waited_for_and_not_asked_through_a_proxy(guest, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    answer, asked = guest.devtools, []

    def late(method, target):
        asked.append(target)
        return failure(500, "starting") if len(asked) <= 2 else answer(method, target)

    guest.devtools = late
    ChromeTabs(guest.address, start_timeout_s=10.0).open(["https://a.org"])
    assert list(guest.tabs.values()) == ["https://a.org"]


def test_a_page_without_a_title_of_its_own_is_left_to_load(guest, caplog):
    guest.tab = lambda key: {"id": key, "type": "page", "url": guest.tabs[key], "title": "a.org"}
    ChromeTabs(guest.address, load_timeout_s=0.1).open(["https://a.org"])
    assert list(guest.tabs.values()) == ["https://a.org"]
    assert caplog.messages == ["https://a.org has not loaded within 0 s"]


def test_a_tab_that_does_not_close_is_an_environment_error(guest, monkeypatch):
    monkeypatch.setattr("arpo.envs.osworld.chrome.CALL_TIMEOUT_S", 0.2)
    guest.tabs = type("Stubborn", (dict,), {"__delitem__": lambda *_: None})(guest.tabs)  # its page asks first
    with pytest.raises(EnvError, match="the tab of about:blank did not close within 0 s"):
        ChromeTabs(guest.address).close(["about:blank"])


def test_visits_are_written_as_chrome_counts_time(tmp_path):
    database = tmp_path / "History"
    empty_history(database)
    add_visits(database, [PAGE], now=datetime(1601, 1, 2, 0, 1, tzinfo=UTC))
    with closing(sqlite3.connect(database)) as connection:
        urls = connection.execute("SELECT url, title, last_visit_time FROM urls").fetchall()
        # one day after the epoch: 86400 s in microseconds
        assert urls == [("https://a.org", "A", 86_400_000_000)]
        assert connection.execute("SELECT url, visit_time FROM visits").fetchall() == [(1, 86_400_000_000)]


def test_a_history_without_chrome_s_tables_is_an_environment_error(setup, tmp_path):
    file = FileCache(tmp_path / "cache").place(EMPTY_HISTORY_URL, "task-1", EMPTY_HISTORY)
    file.parent.mkdir(parents=True)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE pages (url)")
    with pytest.raises(EnvError, match=r"history_empty.sqlite, .* is no history of Chrome: no such"):
        setup.prepare([step("update_browse_history", history=[PAGE])])


def test_before_an_episode_a_step_that_fails_is_an_error_after_it_the_agent_may_be_the_cause(setup, guest, caplog):
    gone = step("close_window", window_name="Nowhere")
    with pytest.raises(EnvError, match=r"task task-1, set-up step 0 \(close_window\)"):
        setup.prepare([gone])
    caplog.set_level("INFO")
    setup.conclude([gone, step("execute", command=["echo", "on"])])
    assert guest.executed == [["echo", "on"]]
    assert any("close_window" in record.getMessage() for record in caplog.records)


LAST = {
    "/setup/execute": step("execute", command=["save"]),
    "/setup/close_window": step("close_window", window_name="Writer"),
    "/json/list": step("chrome_close_tabs", urls_to_close=["https://a.org"]),
}


@pytest.mark.parametrize("route", LAST)
def test_before_grading_a_step_that_nobody_answered_is_an_error_and_one_that_was_refused_is_not(setup, guest, route):
    guest.refused.add(route)
    setup.conclude([LAST[route]])
    guest.lies[route] = lambda connection: None  # and hangs up
    with pytest.raises(EnvError, match="RemoteProtocolError"):
        setup.conclude([LAST[route]])
