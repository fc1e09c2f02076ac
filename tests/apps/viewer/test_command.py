"""`python -m arpo view`, and the server of a live run: this machine's, and only what the viewer shows."""

import os
import socket
import webbrowser

import httpx
import pytest

from arpo.__main__ import main
from arpo.apps.viewer.command import LOOK_EVERY_S, SHARE, last_run, pause_after
from arpo.apps.viewer.site import Site
from tests.apps.viewer.support import make_episode, make_group, served, write_run


def test_a_run_is_written_beside_itself_and_its_page_is_named_and_opened_where_that_is_asked_for(
    tmp_path, monkeypatch, caplog
):
    for name in ("run", "other"):
        write_run(tmp_path / name, make_group(0, 0, 1.0))
    run, page, opened = str(tmp_path / "run"), tmp_path / "run" / "view" / "index.html", []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    caplog.set_level("INFO")
    assert main(["view", run]) == 0
    assert page.as_uri() in caplog.text
    assert (page.exists(), opened) == (True, [])
    assert main(["view", run, "--open"]) == 0
    assert opened == [page.as_uri()]
    assert main(["view", run, str(tmp_path / "other"), "--out", str(tmp_path / "both")]) == 0
    assert (tmp_path / "both" / "data" / "b" / "index.js").exists()


def test_what_cannot_be_shown_and_a_place_that_takes_nothing_are_one_sentence_and_exit_status_2(tmp_path, caplog):
    write_run(tmp_path / "run", make_group(0, 0, 1.0))
    (tmp_path / "file").touch()
    run, file = str(tmp_path / "run"), str(tmp_path / "file")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for words, said in (
            ([str(tmp_path / "nowhere")], "nowhere: name that of a run"),
            (["a", "b", "c"], "two runs stand side by side, not 3: name one or two"),
            ([run, "--out", file], "holds other files: name a new folder with --out"),
            ([run, "--out", f"{file}/view"], "cannot write the viewer to"),
            ([run, "--serve", "--port", str(taken.getsockname()[1])], "name another with --port"),
            ([run, "--serve", "--port", "70000"], "name another with --port"),
        ):
            caplog.clear()
            assert main(["view", *words]) == 2
            assert said in caplog.text


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


@pytest.fixture
def base(tmp_path):
    write_run(tmp_path / "run", [make_episode()])
    (tmp_path / "run" / "trajectories" / "..odd.png").write_text("beside the screenshots")
    with served(Site([tmp_path / "run"], tmp_path / "view", live=True)) as root:
        yield root


def get(base, path, **headers):
    return httpx.get(base + path, headers=headers, trust_env=False)


def test_page_data_and_screenshots_are_there_but_for_a_page_of_another_name(base, tmp_path):
    assert "<title>ARPO" in get(base, "/").text
    assert get(base, "/data/a/index.js?v=1").text.startswith("arpoData(")
    key, png = next(iter(make_episode().screenshots.items()))
    assert get(base, f"/screens/a/{key[:2]}/{key}.png").content == png
    headers = get(base, "/data/site.js").headers  # no foreign page may run the data
    assert (headers["cache-control"], headers["cross-origin-resource-policy"]) == ("no-cache", "same-origin")
    assert headers["x-content-type-options"] == "nosniff"
    assert get(base, "/", Host="evil.example:80").status_code == 403
    assert httpx.head(base, headers={"Host": "evil.example"}, trust_env=False).status_code == 403
    assert pause_after(0.0) == LOOK_EVERY_S
    assert pause_after(2.0) == 2.0 / SHARE  # a hundred times as long: one core is busy for one percent


ELSEWHERE = [
    "/data/",
    "/%2e%2e/run/trajectories/train/iteration_000000.jsonl",
    "/screens/a/ab/..%2f..%2ftrain%2fiteration_000000.jsonl.png", "/screens/a/ab/..odd.png",
    "/screens/b/ab/" + "a" * 64 + ".png", "/screens/a/ab/" + "a" * 64 + ".png",
]  # fmt: skip


@pytest.mark.parametrize("path", ELSEWHERE)
def test_nothing_else_is_there(base, path):
    answer = get(base, path)
    assert answer.status_code == 404 or answer.content == b""


@pytest.mark.parametrize(
    "path",
    [
        "/../run/trajectories/train/iteration_000000.jsonl",
        "//run/trajectories/train/iteration_000000.jsonl",
        "http://127.0.0.1/../run/trajectories/train/iteration_000000.jsonl",
        "/index.html%00",
        "/%ed%a0%80",
        "/" + "long" * 2000,
    ],
)
def test_an_address_that_no_browser_would_ask_for_is_not_found(base, path, capfd):
    """Asked without a client, because clients mend such an address before they ask."""
    with socket.create_connection(("127.0.0.1", int(base.rpartition(":")[2]))) as asked:
        asked.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        assert asked.makefile("rb").readline().split()[1] == b"404"
    assert "Traceback" not in capfd.readouterr().err
