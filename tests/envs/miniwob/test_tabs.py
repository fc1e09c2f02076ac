"""The tabs that environments of a process share, with a real browser."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from arpo.agent.actions import Click
from arpo.envs.miniwob.env import MiniWobEnv
from arpo.envs.miniwob.tab import Geometry, Tab
from arpo.envs.miniwob.tabs import LoadedTabs
from arpo.envs.miniwob.tasks import miniwob_task
from arpo.envs.web import find_chromium
from arpo.errors import EnvError
from tests.browser import needs_chromium

pytestmark = [pytest.mark.browser, needs_chromium]
TIMEOUT_S = 60.0


@pytest.fixture
def loads(monkeypatch):
    """The pages that were loaded, in their order."""
    pages = []
    load = Tab.load

    def noted(tab, page, deadline):
        pages.append(page)
        load(tab, page, deadline)

    monkeypatch.setattr(Tab, "load", noted)
    return pages


@pytest.fixture
def tabs():
    tabs = LoadedTabs(find_chromium(None), Geometry((168, 210), (168, 210), 1.0), renderers=1)
    tabs.join(2)
    yield tabs
    tabs.leave(2)


def use(tabs, *pages):
    """Take tabs with these pages, one after the other, and give each back."""
    used = []
    for page in pages:
        used.append(tabs.take(page, TIMEOUT_S))
        tabs.give(used[-1])
    return used


def test_a_page_that_one_has_loaded_serves_the_next(tabs, loads):
    (first,) = use(tabs, "click-test")
    assert tabs.take("click-test", TIMEOUT_S) is first
    assert loads == ["click-test"]
    second = tabs.take("click-test", TIMEOUT_S)  # the first is in use
    assert loads == ["click-test", "click-test"]
    tabs.give(first)
    tabs.give(second)


def test_where_there_is_no_room_the_longest_unused_page_makes_some(tabs, loads):
    use(tabs, "click-test", "click-tab", "click-link", "click-tab")
    assert loads == ["click-test", "click-tab", "click-link"]
    use(tabs, "click-test")
    assert loads[3:] == ["click-test"]  # in the tab of click-link, which was unused the longest by then
    use(tabs, "click-tab")
    assert len(loads) == 4


def test_a_page_that_carries_traces_is_loaded_for_every_episode(tabs, loads):
    use(tabs, "hot-cold", "hot-cold")
    assert loads == ["hot-cold", "hot-cold"]


def test_who_leaves_takes_the_room_along(tabs):
    tabs.join(1)
    used = [tabs.take(page, TIMEOUT_S) for page in ("click-test", "click-tab", "click-link")]
    for tab in used:
        tabs.give(tab)
    browser = used[0].browser
    tabs.leave(1)
    assert browser.alive
    assert {tabs.take(page, TIMEOUT_S) for page in ("click-tab", "click-link")} == set(used[1:])
    for tab in used[1:]:
        tabs.give(tab)
    tabs.leave(2)
    assert not browser.alive
    tabs.join(2)


def test_tabs_of_a_browser_that_is_gone_are_not_given_out(tabs):
    (first,) = use(tabs, "click-test")
    first.browser.close()
    second = tabs.take("click-test", TIMEOUT_S)
    assert second is not first
    assert second.browser.alive
    assert second.evaluate("1 + 1", time.monotonic() + TIMEOUT_S, int) == 2
    tabs.give(second)


def test_environments_find_the_pages_of_each_other(loads):
    envs = [MiniWobEnv(tabs=3) for _ in range(4)]
    pages = ("click-test", "click-tab", "click-link", "enter-text")

    def play(number):
        for turn in range(8):
            envs[number].reset(miniwob_task(pages[(number + turn) % 4], turn))
            envs[number].step(Click(80, 120))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(play, range(4)))
    assert len(loads) <= 12  # of 32 episodes, in room for 12 tabs
    for env in envs:
        env.close()


def test_a_tab_whose_last_call_failed_is_closed_and_not_given_to_others(monkeypatch, loads):
    env, keeper = MiniWobEnv(), MiniWobEnv()
    keeper.reset(miniwob_task("click-tab", 1))
    env.reset(miniwob_task("click-test", 1))
    with monkeypatch.context() as broken:
        broken.setattr(Tab, "screenshot", lambda tab, deadline: 1 / 0)
        with pytest.raises(EnvError):
            env.step(Click(1, 1))
    env.reset(miniwob_task("click-test", 2))
    assert loads == ["click-tab", "click-test", "click-test"]
    env.close()
    keeper.close()
