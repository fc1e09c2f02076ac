"""The server of a live run: this machine's, and only what the viewer shows."""

import socket
import threading

import httpx
import pytest

from arpo.apps.viewer.serve import LOOK_EVERY_S, SHARE, make_server, pause_after
from arpo.apps.viewer.site import Site
from tests.apps.viewer.support import make_episode, write_run


@pytest.fixture
def base(tmp_path):
    write_run(tmp_path / "run", [make_episode()])
    (tmp_path / "run" / "trajectories" / "..odd.png").write_text("beside the screenshots")
    site = Site([tmp_path / "run"], tmp_path / "view", live=True)
    site.write()
    with make_server(site, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def get(base, path, **headers):
    return httpx.get(base + path, headers=headers, trust_env=False)


def test_page_data_and_screenshots_are_there(base, tmp_path):
    assert "<title>ARPO" in get(base, "/").text
    assert get(base, "/data/a/index.js?v=1").text.startswith("arpoData(")
    key, png = next(iter(make_episode().screenshots.items()))
    assert get(base, f"/screens/a/{key[:2]}/{key}.png").content == png
    headers = get(base, "/data/site.js").headers  # no page of somebody else may run the data
    assert (headers["cache-control"], headers["cross-origin-resource-policy"]) == ("no-cache", "same-origin")


@pytest.mark.parametrize(
    "path",
    [
        "/data/",
        "/%2e%2e/run/trajectories/train/iteration_000000.jsonl",
        "/screens/a/ab/..%2f..%2ftrain%2fiteration_000000.jsonl.png",
        "/screens/a/ab/..odd.png",
        "/screens/b/ab/" + "a" * 64 + ".png",
        "/screens/a/ab/" + "a" * 64 + ".png",
    ],
)
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


def test_a_look_that_takes_long_is_taken_less_often():
    assert pause_after(0.0) == LOOK_EVERY_S
    assert pause_after(2.0) == 2.0 / SHARE  # a hundred times as long: one core is busy for one percent


def test_a_page_of_another_name_gets_nothing(base):
    assert get(base, "/", Host="evil.example:80").status_code == 403
    assert httpx.head(base, headers={"Host": "evil.example"}, trust_env=False).status_code == 403
