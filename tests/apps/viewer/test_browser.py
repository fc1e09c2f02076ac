"""The viewer in a real browser, opened from the disk: click, keys, filters, links, hostile records."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from arpo.apps.viewer.site import Site
from arpo.rollout.storage import read_update, update_path, write_update
from arpo.types import Outcome, screenshot_key
from tests.apps.viewer.support import address, make_episode, make_group, served, small_run, write_numbers, write_run
from tests.browser import needs_chromium
from tests.rollout.trajectories import foreign

pytestmark = [pytest.mark.browser, needs_chromium, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "run"
    small_run(run)
    (run / "eval").mkdir()
    overall = {"success_rate": 0.5, "interval_low": 0.25, "interval_high": 0.75, "episodes": 8}
    (run / "eval" / "iteration_000002.json").write_text(json.dumps({"held_out": {"overall": overall, "lost": 0}}))
    Site([run], run / "view").write()
    return run / "view"


def test_from_the_run_to_a_group_to_an_episode_and_back(page, out):
    page.open(address(out))
    assert page.text("h1").endswith("/ run")
    assert page.count(".heat.rate a.cell") == 4 + 2  # two tasks in two iterations; one in two evaluations
    assert page.count("a.cell.failed") == 1
    assert page.count("a.cell.replay") == 1
    page.click("a.cell.replay")
    page.until("location.hash === '#/a/group/1%2F0'")
    page.until("document.querySelectorAll('.member').length === 5")  # four learned from, one that made room
    assert page.texts(".member .name") == ["1/0/0", "0/0/3", "1/0/2", "1/0/3", "1/0/1"]
    assert page.count(".member.injected") == page.count(".member.leftout") == 1
    assert page.texts(".member .advantage b") == ["−0.250", "+0.750", "−0.250", "−0.250"]
    page.click(".member.injected .frame")
    page.until("location.hash === '#/a/episode/1%2F0/1/1'")
    page.until("document.querySelector('#at')?.innerText === 'step 1 of 2'")  # the address comes first
    for key, step in (("ArrowRight", 2), ("ArrowLeft", 1), ("ArrowRight", 2)):
        page.key(key)
        page.until(f"document.querySelector('#at').innerText === 'step {step} of 2'")
    assert page.text(".action") == "finished()"
    page.key("ArrowDown")
    page.until("location.hash === '#/a/episode/1%2F0/2/2'")
    page.until("document.querySelector('#at')?.innerText === 'step 2 of 2'")
    page.key("Escape")
    page.until("location.hash === '#/a/group/1%2F0'")
    page.value("history.go(-3)")
    page.until("location.hash === '' && document.querySelectorAll('.heat').length > 0")


def test_a_call_of_a_function_is_shown_as_text(page, tmp_path):
    write = r"call(function='mousepad.write', path='a', text='it\'s')"
    write_run(tmp_path / "run", [make_episode(actions=(write, "call(function='f')", "call(function='f')\nwait()"))])
    page.show(tmp_path / "view", [tmp_path / "run"])
    page.click("a.cell")
    page.until("document.querySelectorAll('.frame .label').length >= 3")
    first, second, third = page.texts(".frame .label")[:3]
    assert (first, second) == (r"mousepad.write(path='a', text='it\'s')", "f()")
    assert third.startswith("call(function='f')")
    page.open(address(tmp_path / "view", "#/a/episode/0%2F0/0/1"))  # whose record has all digits of its seed
    page.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.until("document.querySelectorAll('pre.raw').length === 2")
    texts = page.value("[...document.querySelectorAll('pre.raw')].map((each) => each.textContent)")
    assert [str(2**62 + 1) in text for text in texts] == [True, True]


def test_where_episodes_part_is_marked_and_another_one_can_be_compared_with(page, out):
    page.open(address(out, "#/a/group/0%2F0"))
    # compared with 0/0/0, a success: the failures act differently in their second step, the other success is the same
    assert page.texts(".forked") == ["acts differently", "acts differently"]
    forks = "[...document.querySelectorAll('.member')].map((m) => m.querySelectorAll('.frame.fork').length)"
    assert page.value(forks) == [0, 1, 1, 0]
    page.click(".member:nth-child(2) a.chip")
    page.until("location.hash.includes('ref=1')")
    page.until("document.querySelectorAll('.member:nth-child(2) .chip.ref').length === 1")
    assert page.count(".forked") == 3


def test_a_group_says_what_the_update_did_to_each_of_its_episodes(page, tmp_path):
    members = make_group(0, 0, 1.0, 0.0)
    store = write_run(tmp_path / "run", members)
    record = write_numbers(store, 0, [members])
    change = np.repeat(np.float32([0.125, -0.25]), 6)  # six tokens an episode
    numbers = {**record.numbers, "after_logprobs": record.numbers["old_logprobs"] + change}
    write_update(store.root, replace(record, numbers=numbers))
    page.show(tmp_path / "view", [tmp_path / "run"], "#/a/group/0%2F0")
    assert page.texts("[data-gained]") == ["log-prob +0.750", "log-prob −1.500"]
    page.click(".member .frame")
    page.until("document.querySelector('#measures .chosen')?.innerText === 'ratio after'")
    assert page.text(".crumbs").endswith("iteration 0 › page/one/1")


def test_a_group_without_a_signal_says_so_and_a_reward_at_the_threshold_is_no_success(page, tmp_path):
    members = make_group(0, 0, 0.5, 0.75)
    store = write_run(tmp_path / "run", members)
    record = write_numbers(store, 0, [members])
    for advantages, moved in (([0.0, 0.0], False), ([0.0, 0.5], True)):
        write_update(store.root, replace(record, advantages=np.array(advantages, dtype=np.float32)))
        page.show(tmp_path / "view", [tmp_path / "run"], "#/a/group/0%2F0")
        assert ("every advantage is 0 and it moved nothing" in page.text("article")) is not moved
        assert page.text("article").count("1 of 2 episodes succeeded") == 1


def test_filters_stand_in_the_address_and_survive_a_reload_and_the_way_back(page, out):
    page.open(address(out, "#/a/episodes"))
    assert page.text("#count").startswith("17 episodes of 17")  # 12 played, one of them twice, and four of evaluations
    page.choose("split", "train")
    page.until("document.querySelector('#count').innerText.startsWith('13 ')")
    page.choose("result", "failure")
    page.until("document.querySelector('#count').innerText.startsWith('7 ')")
    page.choose("from", "1")
    page.until("document.querySelector('#count').innerText.startsWith('4 ')")
    assert page.hash == "#/a/episodes?split=train&result=failure&from=1"
    page.reload()
    assert page.text("#count").startswith("4 episodes of 17")
    assert page.value("document.querySelector('[name=result]').value") == "failure"
    page.click(".entry a")
    page.until("location.hash.includes('group')")
    page.value("history.back()")
    page.until("document.querySelector('#count')?.innerText.startsWith('4 ')")
    for field, value, count in (("to", "1", 4), ("to", "0", 0), ("to", "", 4), ("least", "0", 4), ("most", "0", 4)):
        page.choose(field, value)
        page.until(f"document.querySelector('#count').innerText.startsWith('{count} ')")
    page.choose("replayed", "yes")
    page.choose("most", "")
    page.until("document.querySelector('#count').innerText.startsWith('0 ')")
    page.choose("result", "")
    page.until("document.querySelector('#count').innerText.startsWith('1 ')")


def test_answers_can_be_searched(page, tmp_path):
    episodes = make_group(0, 0, 1.0, 0.0)
    odd = replace(episodes[1], steps=(replace(episodes[1].steps[0], response="I see a Zebra"), *episodes[1].steps[1:]))
    write_run(tmp_path / "run", [episodes[0], odd])
    page.show(tmp_path / "view", [tmp_path / "run"], "#/a/episodes?q=zebra")
    assert page.text("#count").startswith("0 episodes")
    page.click("[name=answers]")
    page.until("document.querySelector('#count').innerText.startsWith('1 episode of 2')")
    page.reload()
    page.until("document.querySelector('#count').innerText.startsWith('1 episode of 2')")
    page.until("document.querySelectorAll('.member .name').length")
    assert page.texts(".member .name") == ["0/0/1"]


def test_the_numbers_of_a_token_are_those_of_the_update(page, out):
    update = read_update(update_path(out.parent / "trajectories", 1))
    page.open(address(out, "#/a/episode/1%2F0/1/2?by=logprobs"))  # the second member, its second step
    page.click("[data-at='2']")
    page.until("document.querySelector('#numbers td')")
    rows = "[...document.querySelectorAll('#numbers tr')].map((row) => [row.dataset.name, +row.lastChild.innerText])"
    cells = dict(page.value(rows))
    at = int(update.offsets[1]) + 3 + 2
    values = {name: float(numbers[at]) for name, numbers in update.numbers.items()}
    assert {name: cells[name] for name in values} == pytest.approx(values, abs=1e-6)
    assert cells["ratio"] == pytest.approx(np.exp(values["logprobs"] - values["old_logprobs"]), abs=1e-6)
    assert cells["sampler"] == pytest.approx(-1e-9, abs=1e-6)
    assert page.text("#measures .chosen") == "log-prob in"
    page.reload()
    assert page.text("#measures .chosen") == "log-prob in"
    assert page.text("#at") == "step 2 of 2"


def test_an_episode_of_another_agent_shows_all_of_its_exchanges_and_the_numbers_of_its_steps(page, tmp_path):
    """Its third step is exchange 4, whose tokens are the last two of the seven that are trained."""
    made = replace(foreign(), id="0/0/0")
    store = write_run(tmp_path / "run", [made])
    record = write_numbers(store, 0, [[made]])
    page.show(tmp_path / "view", [tmp_path / "run"], "#/a/episode/0%2F0/0/3?by=old_logprobs")
    assert page.count(".token") == 2
    page.click('.token[data-at="1"]')
    assert page.text('tr[data-name="old_logprobs"] td') == f"{record.numbers['old_logprobs'][6]:.7f}"
    assert page.count("#tree .exchange") == 6
    page.open(address(tmp_path / "view", "#/a/episode/0%2F0/0/1"))
    assert page.count(".token") == 2  # of exchange 0


def test_an_address_that_leads_nowhere_shows_a_page_all_the_same(page, out):
    places = "a/group/9%2F9 a/episode/0%2F0/99/1 a/iteration/77 %E0%A4%A a/__proto__ b pair"
    for place in (*places.split(), "a/episode/0%2F0/0/1?by=constructor"):
        page.open(address(out, f"#/{place}"))
        assert page.count("h1") == 1
        assert page.text("h1") != "This page cannot be shown"
        assert page.seen == []


EVIL = (
    '</script><script>window.hacked=1</script><img src=x onerror="window.hacked=1">\'"`'
    "\u202e\u2067עברית\u2028${window.hacked=1}\x00\ud83d"
)


def test_hostile_text_is_text(page, tmp_path):
    long = "x" * 10_000 + EVIL
    action = "type(content='<b onclick=alert(1)>')"
    group = [
        make_episode("0/0/0", task_id=f"evil/{EVIL}", instruction=EVIL, response=long, actions=(action, EVIL)),
        make_episode("0/0/1", task_id=f"evil/{EVIL}", instruction=EVIL, response=EVIL, task_reward=0.0),
        make_episode("0/0/constructor", task_id="__proto__", instruction=EVIL),
    ]
    store = write_run(tmp_path / EVIL.replace("/", "-")[:40].encode(errors="replace").decode(), group)
    screens = list((store.root / "screens").rglob("*.png"))
    screens[0].unlink()
    screens[1].write_bytes(b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.hacked=1'/>")
    train = store.root / "train" / "iteration_000000.jsonl"
    whole = train.read_bytes()
    wrong = {"id": "0/0/8", "task_reward": EVIL, "__proto__": {"a": 1}}
    train.write_bytes(whole + whole[:300] + f"\n{json.dumps(wrong)}\n[NaNNaNNaN]\n".encode() + whole[:200])
    out = tmp_path / "view"
    Site([store.root.parent], out).write()
    shown = "group/0%2F0 episode/0%2F0/0/1 episode/0%2F0/0/2 episode/0%2F0/1/1 episode/0%2F0/2/1 iteration/0"
    for hash in ("", "#/a/episodes?q=x&answers=1", *(f"#/a/{place}" for place in shown.split())):
        page.open(address(out, hash))
        page.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        page.value("new Promise((resolve) => setTimeout(resolve, 150))")
        assert page.value("window.hacked") is None
        assert page.count("main script, main b[onclick], main img[onerror]") == 0
        assert page.seen == []
    page.open(address(out))
    assert page.text("details.broken summary").startswith("3 broken records")
    assert "line 4" in page.value("document.querySelector('details.broken').textContent")
    assert "ends in a part of a record" in page.text("article")
    page.open(address(out, "#/a/episode/0%2F0/1/1"))  # 0/0/constructor stands before 0/0/0
    page.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    shown = page.value("document.querySelector('.said pre').textContent.length")
    assert shown == len(long.encode("utf-16-le", "surrogatepass")) // 2
    page.open(address(out, "#/a/group/0%2F0"))
    page.until("document.querySelectorAll('.missing').length > 0")


def test_nothing_but_files_is_loaded_and_the_theme_follows_the_button(page, out):
    page.open(address(out))
    page.open(address(out, "#/a/group/0%2F0"))
    page.until("document.images.length > 0")
    assert {name.partition(":")[0] for name in page.value("window.asked")} == {"file", "data"}
    page.open(address(out))
    before = page.value("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.value("getComputedStyle(document.body).backgroundColor") != before
    page.value(
        "(() => { const script = document.createElement('script'); script.textContent = 'window.hacked = 1';"
        " document.body.append(script); })()"
    )
    page.until("window.seen.length > 0")
    page.expected = ["refused inline"]  # a script that got into the page all the same
    assert page.value("window.hacked") is None


def test_a_large_screenshot_is_whole_on_the_page_of_its_episode_and_small_elsewhere(page, tmp_path):
    buffer = io.BytesIO()
    Image.effect_noise((1920, 1080), 60).convert("RGB").save(buffer, "PNG")
    key, episode = screenshot_key(buffer.getvalue()), make_episode(size=(1920, 1080))
    steps = (replace(episode.steps[0], screenshot=key), *episode.steps[1:])
    shown = {**episode.screenshots, key: buffer.getvalue()}
    store = write_run(tmp_path / "50 %41#?&'", [replace(episode, steps=steps, screenshots=shown)])
    page.show(tmp_path / "view", [store.root.parent], "#/a/episode/0%2F0/0/1")
    page.until("document.querySelector('.screen > .picture img').naturalWidth === 1920")
    page.open(address(tmp_path / "view", "#/a/group/0%2F0"))
    page.until("document.querySelector('.member img').naturalWidth === 480")
    (store.root / "screens" / key[:2] / f"{key}.png").unlink()
    page.open(address(tmp_path / "view", "#/a/episode/0%2F0/0/1"))
    page.until("document.querySelector('.screen > .picture img').naturalWidth === 480")


def test_an_evaluation_alone_and_two_runs_without_a_common_task_have_their_pages(page, tmp_path):
    write_run(tmp_path / "one", [make_episode(f"eval-0/all/0/{member}", task_reward=member) for member in range(2)])
    write_run(tmp_path / "two", make_group(0, 0, 1.0, 0.0, task_id="other/two/1"))
    page.show(tmp_path / "view", [tmp_path / "one", tmp_path / "two"])
    assert page.count("a.cell") == 1
    page.click("a.cell")
    page.until("location.hash === '#/a/group/eval-0%2Fall%2F0' && document.querySelectorAll('.member').length === 2")
    page.open(address(tmp_path / "view", "#/pair"))
    assert "The runs have no task and iteration in common here." in page.text("article")


def test_two_runs_are_paired_by_task_and_seed(page, tmp_path):
    write_run(tmp_path / "one", make_group(0, 0, 1.0, 0.0))
    other = make_group(0, 0, 0.0, 0.0)
    write_run(tmp_path / "two", [other[1], replace(other[0], outcome=Outcome.MAX_STEPS)])
    page.show(tmp_path / "view", [tmp_path / "one", tmp_path / "two"], "#/pair")
    assert page.count(".heat.difference .cell.down") == 1
    page.click(".heat.difference .cell.down")
    page.until("document.querySelectorAll('.paired').length === 2")
    assert page.texts(".paired h2") == ["seed 0", "seed 1"]
    members = "[...document.querySelectorAll('.paired')].map((pair) => pair.querySelectorAll('.member').length)"
    assert page.value(members) == [2, 2]
    assert page.texts(".paired .forked") == ["acts differently"]  # the failure of seed 1 does the same in both
    assert page.text(".crumbs") == "two runs › iteration 0"


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


def test_two_runs_of_many_tasks_are_paired_within_their_domains(page, wide):
    page.open(address(wide, "#/pair"))
    assert page.texts(".heat .row") == ["even", "odd"]
    assert page.count(".cell.up") == 1
    page.click(".cell.up")
    page.until("document.querySelectorAll('.paired').length === 6")  # three groups of two
    assert page.text(".paired h2") == "odd/0, seed 0"


def test_a_page_of_somebody_else_cannot_read_the_data(page, tmp_path):
    write_run(tmp_path / "run", [make_episode()])
    with served(Site([tmp_path / "run"], tmp_path / "view", live=True)) as root:
        thief = "<script>function arpoData(name) { window.stolen = name }</script>"
        (tmp_path / "evil.html").write_text(f'{thief}<script src="{root}/data/site.js"></script>')
        page.send("Page.navigate", {"url": (tmp_path / "evil.html").as_uri()})
        page.until("location.protocol === 'file:' && document.readyState === 'complete'")
        assert page.value("window.stolen") is None


def test_a_live_run_is_followed_and_half_an_episode_is_never_shown(page, tmp_path):
    episodes = make_group(0, 0, 1.0, 0.0, 0.0)
    store = write_run(tmp_path / "run", episodes[:1])
    site = Site([tmp_path / "run"], tmp_path / "view", live=True)
    train = store.root / "train" / "iteration_000000.jsonl"
    with served(site) as root:
        page.open(f"{root}/#/a/group/0%2F0")
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


def test_what_somebody_reads_stays_as_it_is_while_the_run_goes_on(page, tmp_path):
    store = write_run(tmp_path / "run", [make_episode("0/0/0")])
    site = Site([tmp_path / "run"], tmp_path / "view", live=True)
    with served(site) as root:
        page.open(f"{root}/#/a/episode/0%2F0/0/1")
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
