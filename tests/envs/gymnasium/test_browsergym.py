"""BrowserGym's tasks: what its calls are, its names and seeds, verdicts, and browsers that come and go."""

import asyncio
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Timer

import psutil
import pytest

from arpo.agent import actions
from arpo.envs.contract import check_env
from arpo.envs.gymnasium.browsergym import BROWSER, calls_of
from arpo.envs.gymnasium.env import GymnasiumEnv
from arpo.envs.gymnasium.tasks import browsergym_tasks
from arpo.envs.miniwob.tasks import known_pages
from arpo.errors import ConfigError, EnvError
from arpo.host.processes import count_processes
from arpo.host.session import Session
from arpo.run.build import build
from arpo.types import Task
from tests.browser import needs_chromium
from tests.composed import composed
from tests.envs.pool.support import fail, with_pool

MIDDLE = (
    "(box => [box.x + box.width / 2, box.y + box.height / 2])(document.querySelector('%s').getBoundingClientRect())"
)


@pytest.fixture(scope="module")
def _benchmark():
    pytest.importorskip("browsergym.miniwob", reason="the package browsergym-miniwob is not installed")


@pytest.fixture(scope="module")
def _browser(_benchmark):
    """Keep the browser of this thread open between tests."""
    with closing(GymnasiumEnv(id="browsergym/miniwob.click-test")):
        yield


def browser(test):
    return pytest.mark.browser(pytest.mark.slow(pytest.mark.usefixtures("_browser")(needs_chromium(test))))


def task(page: str, seed: int = 1) -> Task:
    return browsergym_tasks("miniwob", [seed], [page])[0]


def begun(page: str, **options) -> GymnasiumEnv:
    env = GymnasiumEnv(viewport=(168, 210), **options)
    env.reset(task(page))
    return env


def page_of(env: GymnasiumEnv):
    """Playwright's page."""
    return env._world.env.unwrapped.page


def click_on(env: GymnasiumEnv, element: str = "#subbtn", scale: float = 1.0) -> actions.Click:
    """A click on the middle of an element, by default the button of click-test."""
    x, y = page_of(env).evaluate(MIDDLE % element)
    return actions.Click(x * scale, y * scale)


LONG = "a\t" * 101


@pytest.mark.parametrize(
    ("action", "calls"),
    [
        (actions.Click(5, 6), "mouse_click(5, 6, 'left')"),
        (actions.Click(5, 6, "right"), "mouse_click(5, 6, 'right')"),
        (actions.Click(5, 6, count=2), "mouse_dblclick(5, 6, 'left')"),
        (actions.Hover(5, 6), "mouse_move(5, 6)"),
        (actions.Drag(1, 2, 3, 4), "mouse_drag_and_drop(1, 2, 3, 4)"),
        (actions.Scroll("down", 5, 6), "scroll_at(5, 6, 0, 100)"),
        (actions.Scroll("left"), "scroll_at(5, 6, -100, 0)"),
        (actions.Press("enter"), "keyboard_press('Enter')"),
        (actions.Press("a"), "keyboard_press('a')"),
        (actions.Hotkey(("ctrl", "shift", "left")), "keyboard_press('Control+Shift+ArrowLeft')"),
        (actions.KeyDown("shift"), "keyboard_down('Shift')"),
        (actions.KeyUp("f5"), "keyboard_up('F5')"),
        (actions.Press("volumeup"), None),
        (actions.Hotkey(("ctrl", "volumeup")), None),
        (actions.TypeText("a\tb\n"), "keyboard_type('a')\nkeyboard_press('Tab')\nkeyboard_type('b\\n')"),
        (actions.TypeText(""), None),
        (actions.TypeText(LONG), f"keyboard_insert_text({LONG!r})"),
        (actions.Wait(), "noop(1000)"),
        (actions.Finished("42"), "send_msg_to_user('42')"),
        (actions.Fail(), "report_infeasible('The agent says that nothing solves the task.')"),
        (actions.CallUser(), None),
        (actions.Call("f"), None),
    ],
    ids=str,
)
def test_an_action_is_the_calls_of_its_action_set_that_do_the_same(action, calls):
    assert calls_of(action, (5, 6)) == calls


@pytest.mark.usefixtures("_benchmark")
def test_a_benchmark_has_its_registered_names():
    tasks = browsergym_tasks("miniwob", [3, 4])
    assert {each.domain for each in tasks} == {*known_pages()}
    assert len(tasks) == 2 * 125
    name = "browsergym/miniwob.click-tab"
    assert task("click-tab", 3) == Task(f"{name}/3", "", "click-tab", {"id": name, "seed": 3})
    with pytest.raises(ConfigError, match=r"miniwob has no click-tba; tasks\.names=null"):
        task("click-tba")
    with pytest.raises(ConfigError, match="needs browsergym-nothing: `uv pip install browsergym-nothing`"):
        browsergym_tasks("nothing", [1])


@browser
@pytest.mark.parametrize("page", ["click-test", pytest.param("enter-text", marks=pytest.mark.long)])
def test_the_contract_of_a_desktop_holds(page):
    check_env(GymnasiumEnv(viewport=(168, 210)), task(page, 3))


@browser
def test_a_page_is_seen_and_solved_at_any_scale_and_nothing_else_is_extracted():
    with closing(begun("click-test", scale=2.0)) as env:
        first = env.reset(task("click-test"))
        assert (first.width, first.height) == (336, 420)
        assert first.instruction == "Click the button."
        assert not {"dom_object", "axtree_object"} & {*env._world.env.step("noop(0)")[0]}
        beside, on = env.step(actions.Click(330, 410)), env.step(click_on(env, scale=2.0))
        assert (beside.terminated, on.terminated, on.truncated, on.reward) == (False, True, False, 0.0)
        assert env.evaluate() == 1.0


@browser
def test_a_text_is_typed_as_it_is_and_no_call_is_read_in_it():
    texts = [
        'it\'s "a" \\ text',
        "report_infeasible('x')",
        "')\nreport_infeasible('x')\n#",
        "é 漢 \u2028 🙂",
        "it's " * 2000,
    ]
    with closing(begun("enter-text")) as env:
        for text in texts:
            page_of(env).evaluate("document.querySelector('#tt').value = ''; document.querySelector('#tt').focus()")
            result = env.step(actions.TypeText(text))
            assert not result.terminated
            assert page_of(env).evaluate("document.querySelector('#tt').value") == text.replace("\n", "")
        env.step(actions.Press("tab"))
        assert page_of(env).evaluate("document.activeElement.id") == "subbtn"


@browser
def test_half_a_solution_is_a_success_there_and_not_here():
    found = {}
    for verdict in ("last", "raw", "full"):
        with closing(begun("click-test", verdict=verdict)) as env:
            page_of(env).evaluate("core.endEpisode(0.4)")
            assert env.step(actions.Wait()).terminated
            found[verdict] = env.evaluate()
    assert found == {"last": 1.0, "raw": pytest.approx(0.4), "full": 0.0}


@browser
def test_environments_of_many_threads_have_a_browser_each_and_leave_no_process():
    def play(seed: int) -> bool:
        with closing(GymnasiumEnv(viewport=(168, 210))) as env, closing(GymnasiumEnv(viewport=(168, 210))) as other:
            for page in ("focus-text", "click-test"):  # a second page needs no second browser
                env.reset(task(page, seed))
                other.reset(task(page, seed))
            return env.step(click_on(env)).terminated and not other.step(actions.Hover(1, 1)).terminated

    before = {each.pid for each in psutil.Process().children(recursive=True)}
    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(play, range(3)))
    left = [each for each in psutil.Process().children(recursive=True) if each.pid not in before]
    assert left == []


@browser
@pytest.mark.parametrize(("kind", "words"), [("--headless", "closed"), ("--type=renderer", "crashed")])
def test_a_browser_or_a_page_that_dies_is_a_fault_and_the_next_environment_has_another(kind, words):
    env = begun("click-test")
    started = psutil.Process().children(recursive=True)
    for process in [each for each in started if kind in each.cmdline()]:
        with suppress(psutil.NoSuchProcess):  # with the first one its children end
            process.kill()
    with pytest.raises(EnvError, match=words):
        env.step(actions.Hover(1, 1))
    env.close()
    with closing(begun("click-test")) as env:
        assert env.step(click_on(env)).terminated


@browser
@pytest.mark.parametrize(("html", "words"), [("", "core is not defined"), ("<script>for (;;);</script>", "Timeout")])
def test_a_page_that_is_broken_is_a_fault_of_the_reset(tmp_path, html, words):
    (tmp_path / "click-test.html").write_text(html)
    pages = {"task_kwargs": {"base_url": f"{tmp_path.as_uri()}/"}}
    with closing(GymnasiumEnv(options=pages)) as env, pytest.raises(EnvError, match=words):
        env.reset(task("click-test"))


@browser
def test_a_page_that_hangs_lets_its_step_fail_once_it_is_interrupted():
    with closing(begun("click-test")) as env:
        page_of(env).evaluate("addEventListener('mousedown', () => { for (;;); })")
        Timer(4.0, env.interrupt).start()
        with pytest.raises(EnvError, match="closed"):
            env.step(click_on(env))


def test_a_process_that_has_the_number_of_a_browser_that_is_gone_is_let_alone(monkeypatch):
    with subprocess.Popen(["sleep", "60"]) as another:
        gone = psutil.Process(another.pid)
        monkeypatch.setattr(gone, "_ident", (another.pid, 1.0))  # which began long before
        monkeypatch.setitem(BROWSER.processes, 1, gone)
        BROWSER.end(1)
        BROWSER.end(2)  # a thread that has no browser
        with suppress(subprocess.TimeoutExpired):
            assert another.wait(0.2) is None, "it was ended"
        monkeypatch.setitem(BROWSER.processes, 1, psutil.Process(another.pid))
        BROWSER.end(1)
        assert another.wait(5) == -9


@browser
@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_sixty_four_environments_play_at_once_and_leave_no_process():
    async def scenario(pool) -> tuple[list[EnvError | None], int]:
        faults = await asyncio.gather(*(fail(pool, task("click-test", seed)) for seed in range(64)))
        return faults, count_processes(session.label)

    with Session.start(Path(tempfile.mkdtemp(dir="/tmp"))) as session, ThreadPoolExecutor(1) as thread:
        pool = build(composed("env=gymnasium", "env.size=64").env)
        faults, started = with_pool(pool, scenario, lambda run: thread.submit(asyncio.run, run).result())
        assert count_processes(session.label) == 0
    assert faults == [None] * 64
    assert started > 64 * 6  # the processes of a browser
