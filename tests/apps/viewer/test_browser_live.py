"""The viewer of a live run in a real browser, and what other pages see of it."""

import threading

import pytest

from arpo.apps.viewer.serve import make_server
from arpo.apps.viewer.site import Site
from tests.apps.viewer.support import make_episode, make_group, write_run
from tests.browser import needs_chromium

pytestmark = [pytest.mark.browser, needs_chromium, pytest.mark.timeout(120)]


def test_a_page_of_somebody_else_cannot_read_the_data(page, tmp_path):
    write_run(tmp_path / "run", [make_episode()])
    site = Site([tmp_path / "run"], tmp_path / "view", live=True)
    site.write()
    with make_server(site, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (tmp_path / "evil.html").write_text(
            "<script>function arpoData(name) { window.stolen = name }</script>"
            f'<script src="http://127.0.0.1:{server.server_port}/data/site.js"></script>'
        )
        page.send("Page.navigate", {"url": (tmp_path / "evil.html").as_uri()})
        page.until("location.protocol === 'file:' && document.readyState === 'complete'")
        assert page.value("window.stolen") is None
        server.shutdown()


def test_a_live_run_is_followed_and_half_an_episode_is_never_shown(page, tmp_path):
    episodes = make_group(0, 0, 1.0, 0.0, 0.0)
    store = write_run(tmp_path / "run", episodes[:1])
    site = Site([tmp_path / "run"], tmp_path / "view", live=True)
    site.write()
    train = store.root / "train" / "iteration_000000.jsonl"
    with make_server(site, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page.open(f"http://127.0.0.1:{server.server_port}/#/a/group/0%2F0")
        assert page.texts(".member .name") == ["0/0/0"]
        store.write(episodes[1])
        with train.open("ab") as file:
            file.write(b'{"id": "0/0/2", "task_id": "page')
        site.write()
        page.until("document.querySelectorAll('.member').length === 2")
        assert page.texts(".member .name") == ["0/0/0", "0/0/1"]
        store.write(episodes[2])  # the store cuts what was torn
        site.write()
        page.until("document.querySelectorAll('.member').length === 3")
        assert page.seen == []
        server.shutdown()


def test_what_somebody_reads_stays_as_it_is_while_the_run_goes_on(page, tmp_path):
    store = write_run(tmp_path / "run", [make_episode("0/0/0")])
    site = Site([tmp_path / "run"], tmp_path / "view", live=True)
    site.write()
    with make_server(site, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page.open(f"http://127.0.0.1:{server.server_port}/#/a/episode/0%2F0/0/1")
        page.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        opened = page.count("details[open]")
        store.write(make_episode("0/1/0"))
        site.write()
        page.until("START.serial() === 2")
        page.value("new Promise((resolve) => setTimeout(resolve, 300))")  # longer than a page takes
        assert page.count("details[open]") == opened > 0
        store.write(make_episode("0/0/1"))
        site.write()
        page.until("START.serial() === 3 && document.querySelectorAll('details[open]').length === 0")
        assert page.seen == []
        server.shutdown()
