"""The tables of one run and of two in a real browser: what their rows are, and which episodes stand in pairs."""

from dataclasses import replace

import pytest

from arpo.apps.viewer.site import Site
from arpo.types import Outcome
from tests.apps.viewer.support import address, make_episode, make_group, write_run
from tests.browser import needs_chromium

pytestmark = [pytest.mark.browser, needs_chromium, pytest.mark.timeout(120)]


def test_an_evaluation_alone_and_two_runs_without_a_common_task_have_their_pages(page, tmp_path):
    write_run(tmp_path / "one", [make_episode(f"eval-0/all/0/{member}", task_reward=member) for member in range(2)])
    write_run(tmp_path / "two", make_group(0, 0, 1.0, 0.0, task_id="other/two/1"))
    Site([tmp_path / "one", tmp_path / "two"], tmp_path / "view").write()
    page.open(address(tmp_path / "view"))
    assert page.count("a.cell") == 1
    page.click("a.cell")
    page.until("location.hash === '#/a/group/eval-0%2Fall%2F0' && document.querySelectorAll('.member').length === 2")
    page.open(address(tmp_path / "view", "#/pair"))
    assert "The runs have no task and iteration in common here." in page.text("article")
    assert page.seen == []


def test_two_runs_are_paired_by_task_and_seed(page, tmp_path):
    write_run(tmp_path / "one", make_group(0, 0, 1.0, 0.0))
    other = make_group(0, 0, 0.0, 0.0)
    write_run(tmp_path / "two", [other[1], replace(other[0], outcome=Outcome.MAX_STEPS)])
    Site([tmp_path / "one", tmp_path / "two"], tmp_path / "view").write()
    page.open(address(tmp_path / "view", "#/pair"))
    assert page.count(".heat.difference .cell.down") == 1
    page.click(".heat.difference .cell.down")
    page.until("document.querySelectorAll('.paired').length === 2")
    assert page.texts(".paired h2") == ["seed 0", "seed 1"]
    assert page.value(
        "[...document.querySelectorAll('.paired')].map((pair) => pair.querySelectorAll('.member').length)"
    ) == [2, 2]
    assert page.texts(".paired .forked") == ["acts differently"]  # the failure of seed 1 does the same in both
    assert page.text(".crumbs") == "two runs › iteration 0"
    assert page.seen == []


@pytest.fixture
def wide(tmp_path):
    """Two runs of two pages with seeds of their own: 130 tasks, each played once; the groups of one page fail once."""
    for name, reward in (("one", 0.0), ("two", 1.0)):
        episodes = []
        for number in range(130):
            iteration, task = number // 5, f"{'even' if number % 2 else 'odd'}/{number}"
            rewards = (1.0, 0.0) if number else (reward, 0.0)
            episodes += make_group(iteration, number % 5, *rewards, task_id=task)
        write_run(tmp_path / name, episodes)
    Site([tmp_path / "one", tmp_path / "two"], tmp_path / "view").write()
    return tmp_path / "view"


def test_more_tasks_than_can_be_seen_are_drawn_by_domain(page, wide):
    page.open(address(wide))
    assert page.texts(".heat .row") == ["even", "odd"]  # 130 of 260 succeeded there, one of 130 fewer here
    assert page.count("a.cell") == 2 * 26
    # the first column: two groups of `even`, three of `odd`, of which the first has failed as a whole
    assert page.count("a.cell.partly") == 1
    page.click("a.cell.partly")
    page.until("document.querySelectorAll('.groupline').length === 3")
    assert page.hash == "#/a/iteration/0?domain=odd"
    assert page.text("h1") == "Iteration 0 · odd"
    page.key("]")
    page.until("document.querySelector('h1').innerText === 'Iteration 1 · odd'")
    page.value("history.go(-2)")
    page.until("document.querySelectorAll('.heat').length > 0")
    page.click(".choice a[href*='rows=task']")
    page.until("document.querySelectorAll('.heat .row').length === 130")
    assert page.count("a.cell.failed") == 1
    assert page.seen == []


def test_two_runs_of_many_tasks_are_paired_within_their_domains(page, wide):
    page.open(address(wide, "#/pair"))
    assert page.texts(".heat .row") == ["even", "odd"]
    assert page.count(".cell.up") == 1
    page.click(".cell.up")
    page.until("document.querySelectorAll('.paired').length === 6")  # three groups of two
    assert page.text(".paired h2") == "odd/0, seed 0"
    assert page.seen == []
