import io
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psutil
import pytest
from omegaconf import OmegaConf
from PIL import Image

from arpo.agent.actions import Click, Drag, Hotkey, KeyDown, Press, Scroll, TypeText, Wait
from arpo.envs.contract import check_env, check_episode
from arpo.envs.miniwob import env as env_module
from arpo.envs.miniwob import tasks as tasks_module
from arpo.envs.miniwob.env import FIRST_SCREENS, MiniWobEnv
from arpo.envs.miniwob.tab import DESKTOP_COLOUR, Geometry
from arpo.envs.miniwob.tasks import known_pages, miniwob_sample, miniwob_shares, miniwob_task, miniwob_tasks
from arpo.errors import ConfigError, EnvError, TaskFormatError
from arpo.types import Task
from tests.browser import chromium_is_missing, needs_chromium
from tests.host.watchdogs import wait_until

ROOT = Path(__file__).parents[3]
DEMO_PAGES = tuple(OmegaConf.load(ROOT / "experiments/replay_ablation/conf/tasks/miniwob_16.yaml").pages)

SOLUTIONS = Path(env_module.__file__).with_name("solutions.js").read_text()
SOLVABLE_PAGES = tuple(sorted(re.findall(r"^    '([\w-]+)':", SOLUTIONS, re.MULTILINE)))


def browser(test):
    return pytest.mark.browser(needs_chromium(test))


@pytest.fixture(scope="module", autouse=True)
def one_browser():
    """Keep the shared browser open between tests, and leave none behind."""
    if chromium_is_missing():
        yield
        return
    with closing(MiniWobEnv()) as keeper:
        keeper.reset(miniwob_task("click-test", 1))
        yield


@pytest.fixture
def make():
    with ExitStack() as envs:
        yield lambda **settings: envs.enter_context(closing(MiniWobEnv(**settings)))


@pytest.fixture
def env(make):
    return make()


def picture(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("RGB")


def solve(env: MiniWobEnv, limit: int = 60) -> float:
    for number, action in enumerate(env.solve()):
        if env.step(action).terminated or number == limit:
            break
    return env.evaluate()


def click_on(env: MiniWobEnv) -> None:
    for _ in range(10_000):
        env.step(Click(1, 1))


def test_the_wheel_has_the_registered_pages_and_five_more_and_a_task_is_one_with_a_seed():
    found = {path.stem for path in tasks_module.pages_directory().glob("*.html")}
    others = {"button-delay", "chase-circle", "hover-shape", "moving-items", "simon-says"}
    assert len(known_pages()) == 125
    assert found - set(known_pages()) == others
    tasks = miniwob_tasks(["click-test", "enter-text"], [3, 4])
    named = [each.id.removeprefix("miniwob/") for each in tasks]
    assert named == ["click-test/3", "click-test/4", "enter-text/3", "enter-text/4"]
    assert tasks[0] == Task("miniwob/click-test/3", "", "click-test", {"page": "click-test", "seed": 3})


def test_a_sample_has_seeds_of_its_own_for_each_page_and_is_always_the_same():
    pages, seeds = ["click-test", "enter-text"], range(1_201_539_860, 1_201_539_960)
    sample = miniwob_sample(pages, seeds, 25)
    drawn = {page: [each.config["seed"] for each in sample if each.domain == page] for page in pages}
    assert all(len(set(numbers)) == 25 and set(numbers) <= set(seeds) for numbers in drawn.values())
    assert drawn["click-test"] != drawn["enter-text"]
    assert sample[0] == miniwob_task("click-test", drawn["click-test"][0])
    assert miniwob_sample(pages, seeds, 25) == sample != miniwob_sample(pages, seeds, 25, seed=1)
    assert miniwob_sample(pages[1:], seeds, 25) == sample[25:]  # whatever other pages there are
    first = [each.config["seed"] for each in sample[:3]]
    assert first == [1_201_539_867, 1_201_539_871, 1_201_539_872]  # in every process and version


def test_shares_give_a_page_more_or_fewer_seeds_than_usual_whatever_other_pages_have_shares():
    shares = {"enter-text": 1.5, "click-tab": 0.25, "login-user": 9.0}
    tasks = miniwob_shares(["click-test", "enter-text", "click-tab"], shares, 4, 70)
    assert [(each.domain, each.config["seed"]) for each in tasks] == [
        *[("click-test", seed) for seed in (70, 71, 72, 73)],
        *[("enter-text", seed) for seed in (70, 71, 72, 73, 74, 75)],
        ("click-tab", 70),
    ]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: miniwob_shares(["click-test"], {"click-tset": 2.0}, 4, 0), TaskFormatError, "no MiniWoB"),
        (lambda: miniwob_shares(["click-test"], {"click-test": 0.1}, 4, 0), ConfigError, "no task is left of click"),
        (lambda: miniwob_tasks(["click-tset"], [1]), TaskFormatError, "no MiniWoB"),
        (lambda: miniwob_sample(["click-test"], [1, 2], 3), ConfigError, "per_page=3 is more than the 2 seeds"),
    ],
    ids=["unknown share", "empty page", "unknown page", "too few seeds"],
)
def test_tasks_that_cannot_be_made_are_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize("config", [{}, {"page": "nowhere", "seed": 1}, {"page": "click-test", "seed": "1"}])
@needs_chromium
def test_a_task_without_page_or_seed_is_refused_before_a_browser_starts(env, config):
    with pytest.raises(TaskFormatError, match="config"):
        env.reset(Task("x", "", "", config))


def test_screen_and_page_coordinates_are_each_others_inverse():
    # 400 x 300 screen, 160 x 210 page: the window starts at ((400 - 160) / 2, (300 - 210) / 2) = (120, 45).
    geometry = Geometry((400, 300), (160, 210), 1.0)
    assert geometry.to_page(Click(130, 50)) == Click(10, 5)
    assert geometry.to_screen(10, 5) == (130, 50)
    assert geometry.to_page(Drag(130, 50, 0, 0)) == Drag(10, 5, -120, -45)
    assert geometry.to_page(Click(119, 50)) is None
    assert geometry.to_page(TypeText("a")) == TypeText("a")
    # 336 x 420 window on 640 x 480: starts at (152, 30); (162 - 152) / 2 = 5, (40 - 30) / 2 = 5.
    geometry = Geometry((640, 480), (168, 210), 2.0)
    assert geometry.to_page(Click(162, 40)) == Click(5, 5)
    assert geometry.to_page(Drag(None, None, 162, 40)) == Drag(None, None, 5, 5)
    assert geometry.to_page(Drag(None, None, 5, 5)) is None
    # points of the page are named by whole pixels inside the screen
    assert geometry.to_screen(5, 5.2) == (162.0, 40.0)
    assert geometry.to_screen(-200, -200) == (0.0, 0.0)  # scrolled out of the window
    assert geometry.to_screen(900, 900) == (639.0, 479.0)


@browser
def test_the_environment_keeps_the_contract(env):
    check_env(env, miniwob_task("click-button", 1))


@browser
def test_the_instruction_comes_from_the_page(env):
    observation = env.reset(miniwob_task("click-button-sequence", 1))
    assert observation.instruction == "Click button ONE, then click button TWO."
    assert picture(observation.screenshot).size == (observation.width, observation.height) == (168, 210)


@browser
def test_the_same_seed_gives_the_same_screen_in_another_tab_and_another_seed_does_not(env, make):
    first = env.reset(miniwob_task("click-option", 1))
    other = make(viewport=(168, 210), screen=(168, 210))
    again = other.reset(miniwob_task("click-option", 1))
    assert again == first
    assert other.reset(miniwob_task("click-option", 2)).screenshot != first.screenshot


@browser
def test_the_right_actions_earn_one_and_end_the_episode_and_a_wrong_one_earns_nothing(env):
    assert env.browser_pid == 0
    env.reset(miniwob_task("click-test", 1))
    action = next(iter(env.solve()))
    assert env.step(action).terminated
    assert env.evaluate() == 1.0
    with pytest.raises(EnvError, match="has ended"):
        env.step(action)
    env.reset(miniwob_task("click-test-2", 1))
    (wrong,) = env.distractors()
    assert env.step(wrong).terminated
    assert (env.evaluate(), env.raw_reward) == (0.0, -1.0)


@browser
def test_half_a_solution_earns_nothing(env):
    env.reset(miniwob_task("click-checkboxes-large", 1))
    for _ in range(2):
        env.step(next(iter(env.solve())))
    submit = env.look_up("[document.querySelector('#subbtn').getBoundingClientRect()].map(b => [b.x + 9, b.y + 9])[0]")
    assert env.step(Click(*submit)).terminated
    assert -1 < env.raw_reward < 0.99
    assert env.evaluate() == 0.0


@browser
def test_waiting_lets_virtual_time_pass_and_thinking_does_not(env):
    env.reset(miniwob_task("stock-market", 1))
    price = "document.querySelector('#area').textContent"
    before = env.look_up(price)
    time.sleep(0.3)  # real seconds, of which the page must see none
    assert env.look_up(price) == before
    env.step(Wait())
    assert env.look_up(price) != before
    env.reset(miniwob_task("enter-text", 1))
    for _ in range(30):
        env.step(Wait())  # thirty virtual seconds: three times the page's own limit
    assert solve(env) == 1.0
    assert env.raw_reward == 1.0


@browser
def test_a_screen_around_the_page_moves_every_coordinate(make):
    env = make(screen=(640, 480), viewport=(160, 210), scale=2.0)
    screen = picture(env.reset(miniwob_task("click-color", 1)).screenshot)
    assert screen.size == (640, 480)
    assert screen.getpixel((5, 5)) == DESKTOP_COLOUR
    assert screen.getpixel((320, 40)) == (255, 255, 0)  # the page's yellow instruction box
    assert not env.step(Click(5, 5)).terminated
    assert solve(env) == 1.0


@browser
def test_no_reward_clock_or_trace_of_a_click_is_visible(make):
    env = make(screen=(400, 420), viewport=(400, 420))  # wide enough for MiniWoB++'s own displays
    first = env.reset(miniwob_task("click-test-2", 1))
    beside = picture(first.screenshot).crop((160, 0, 400, 420))
    assert len(beside.getcolors()) == 1
    after = env.step(Click(150, 200)).observation  # an empty place: MiniWoB++ would draw a blue disc
    assert after.screenshot == first.screenshot


@browser
def test_a_cursor_in_a_text_field_neither_shows_nor_blinks(env):
    """One that blinks is painted twice a second, seen or not: 5 ms of processor time a second in each idle tab."""
    env.reset(miniwob_task("enter-text", 1))
    if not env.look_up("CSS.supports('caret-animation', 'manual')", bool):
        pytest.skip("Chromium before 140 knows no cursor that does not blink")
    env.step(next(env.solve()))
    assert env.look_up("document.activeElement.id", str) == "tt"
    style = env.look_up("(({caretColor, caretAnimation}) => [caretColor, caretAnimation])(getComputedStyle(tt))", list)
    assert style == ["rgba(0, 0, 0, 0)", "manual"]


@browser
def test_the_solvable_pages_are_those_with_a_script_and_others_say_so(env):
    env.reset(miniwob_task("tic-tac-toe", 1))
    assert tuple(env.look_up("arpo.solvable")) == SOLVABLE_PAGES
    assert set(DEMO_PAGES) <= set(SOLVABLE_PAGES)
    with pytest.raises(ConfigError, match="no scripted solution for 'tic-tac-toe'"):
        env.solve()


@browser
def test_text_arrives_as_typed_also_where_the_page_listens_to_keys(env):
    env.reset(miniwob_task("enter-text", 1))
    env.step(next(iter(env.solve())))
    env.step(TypeText('Grüße, "A-b_1" £5 {x}; 你好'))
    assert env.look_up("document.querySelector('#tt').value") == 'Grüße, "A-b_1" £5 {x}; 你好'
    env.step(Hotkey(("ctrl", "a")))
    env.step(Press("Backspace"))
    assert env.look_up("document.querySelector('#tt').value") == ""
    env.reset(miniwob_task("terminal", 1))
    env.step(TypeText("ls\n"))
    assert "ls" in env.look_up("document.querySelector('#area').textContent")


@browser
def test_copy_and_paste_stay_inside_the_tab(env, make):
    other = make()
    for each, word in ((env, "one"), (other, "two")):
        each.reset(miniwob_task("login-user", 1))
        each.step(next(iter(each.solve())))
        each.step(TypeText(word))
        each.step(Hotkey(("ctrl", "a")))
        each.step(Hotkey(("ctrl", "x")))
    for each in (env, other):
        each.step(Hotkey(("ctrl", "v")))
        each.step(Hotkey(("ctrl", "v")))
    assert env.look_up("document.querySelector('#username').value") == "oneone"
    assert other.look_up("document.querySelector('#username').value") == "twotwo"


@browser
def test_the_wheel_scrolls_down_and_up_again(env):
    env.reset(miniwob_task("email-inbox", 1))
    position = "Math.max(...[...document.querySelectorAll('#area, #area *')].map(e => e.scrollTop))"
    env.step(Scroll("down", 70, 150))
    assert env.look_up(position) == 60
    env.step(Scroll("up", 70, 150))
    assert env.look_up(position) == 0


@browser
def test_a_drop_down_opens_on_the_screen(env):
    closed = env.reset(miniwob_task("choose-list", 0))
    opened = env.step(next(iter(env.solve()))).observation
    assert opened.screenshot != closed.screenshot
    assert solve(env) == 1.0


@browser
def test_right_and_double_clicks_and_held_keys_reach_the_page(env):
    env.reset(miniwob_task("click-button", 1))
    env.look_up(
        "window.seen = [], ['contextmenu', 'dblclick', 'keydown'].forEach(name => "
        "document.addEventListener(name, e => seen.push([name, e.shiftKey])))"
    )
    env.step(Click(160, 200, button="right"))
    env.step(KeyDown("shift"))
    env.step(Click(160, 200, count=2))
    assert env.look_up("seen") == [["contextmenu", False], ["keydown", True], ["dblclick", True]]


@browser
@pytest.mark.parametrize(
    "script",
    [
        "location.href = 'about:blank'",
        "document.body.innerHTML += '<a id=away href=click-test.html target=_blank>x</a>'",
    ],
)
def test_nothing_leads_away_from_the_page(env, script):
    env.reset(miniwob_task("click-button", 1))
    env.look_up(f"void ({script})")
    env.look_up("void document.querySelector('#away')?.click()")
    time.sleep(0.1)
    env.step(Wait())
    assert env.look_up("location.pathname").endswith("/click-button.html")


def demo_pages_first(pages):
    """The pages of the demonstrations, and the others of these for who has time."""
    others = [pytest.param(page, marks=pytest.mark.long) for page in pages if page not in DEMO_PAGES]
    return [*DEMO_PAGES, *others]


@browser
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 10), marks=pytest.mark.long)], ids=["2", "8 more"])
@pytest.mark.parametrize("page", demo_pages_first(SOLVABLE_PAGES))
def test_every_scripted_page_is_solved_on_ten_seeds(env, page, seeds):
    for seed in seeds:
        env.reset(miniwob_task(page, seed))
        assert solve(env) == 1.0, (page, seed)


@pytest.mark.long
@browser
@pytest.mark.slow
def test_all_pages_keep_the_contract_without_network():
    program = "from tests.envs.miniwob.test_env import check_all_pages; check_all_pages()"
    command = [sys.executable, "-c", program]
    if subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True).returncode == 0:
        command = ["unshare", "-n", *command]
    subprocess.run(command, check=True, timeout=280)


def check_all_pages() -> None:
    def check(page: str) -> None:
        with closing(MiniWobEnv()) as env:
            check_episode(env, miniwob_task(page, 1))
            asked = env.look_up("performance.getEntriesByType('resource').map(e => e.name)")
            assert all(name.startswith(("file:", "data:")) for name in asked), (page, asked)

    with closing(MiniWobEnv()) as keeper, ThreadPoolExecutor(4) as threads:
        keeper.reset(miniwob_task("click-test", 1))  # holds the browser open between the pages
        list(threads.map(check, known_pages()))


@browser
@pytest.mark.parametrize("page", demo_pages_first(known_pages()))
def test_an_episode_leaves_no_trace_in_the_next_first_screen(env, page):
    first = env.reset(miniwob_task(page, 1))
    for action in (Click(80, 120), TypeText("ab"), Drag(40, 90, 90, 150), Scroll("down", 80, 150), Click(60, 80)):
        if env.step(action).terminated:
            break
    env.reset(miniwob_task(page, 2))
    FIRST_SCREENS.clear()
    assert env.reset(miniwob_task(page, 1)) == first


@browser
def test_many_environments_share_one_browser_from_many_threads(make):
    envs = [make() for _ in range(8)]

    def episode(number: int) -> float:
        env = envs[number]
        env.reset(miniwob_task(DEMO_PAGES[number], number))
        return solve(env)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(episode, range(8))) == [1.0] * 8
    assert len({env.browser_pid for env in envs}) == 1


def kill_renderers(pid):
    for each in processes_of(pid):
        if b"--type=renderer" in Path(f"/proc/{each}/cmdline").read_bytes():
            os.kill(each, signal.SIGKILL)


@browser
@pytest.mark.parametrize("kill", [lambda pid: os.killpg(pid, signal.SIGKILL), kill_renderers], ids=["browser", "page"])
def test_a_killed_browser_or_renderer_is_an_env_error_and_the_next_episode_gets_a_new_one(env, make, kill):
    env.reset(miniwob_task("click-test", 1))
    kill(env.browser_pid)
    with pytest.raises(EnvError) as caught:
        click_on(env)
    assert caught.value.kind == "crash"
    for each in (make(), env):
        each.reset(miniwob_task("click-test", 1))
        assert solve(each) == 1.0


@browser
def test_a_hung_page_is_a_timeout_and_does_not_hold_up_its_neighbours(env, make):
    env.reset(miniwob_task("click-test", 1))
    hung = make(step_timeout_s=1.0)
    hung.reset(miniwob_task("click-test", 2))
    hung.look_up("void document.addEventListener('mousedown', () => { for (;;); })")
    errors = {}

    def step(name: str, which: MiniWobEnv) -> None:
        try:
            click_on(which)
        except EnvError as error:
            errors[name] = error.kind

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(step, ("hung", "neighbour"), (hung, env)))
    assert errors == {"hung": "timeout", "neighbour": "crash"}
    env.reset(miniwob_task("click-test", 1))
    assert solve(env) == 1.0


@browser
def test_the_last_environment_closes_the_browser_and_its_profile(tmp_path, monkeypatch):
    monkeypatch.setenv("ARPO_SESSION_DIR", str(tmp_path))
    env = MiniWobEnv(renderers=2)  # another browser than that of other tests
    env.reset(miniwob_task("click-test", 1))
    pid = env.browser_pid
    assert list(tmp_path.iterdir())
    env.close()
    env.close()
    assert not list(tmp_path.iterdir())
    wait_until(lambda: not processes_of(pid))


@browser
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "sys.exit(0)", "raise KeyboardInterrupt"])
def test_nothing_runs_on_when_the_process_ends(tmp_path, end):
    program = f"""
        import os, sys
        from arpo.envs.miniwob.env import MiniWobEnv
        from arpo.envs.miniwob.tasks import miniwob_task
        env = MiniWobEnv()
        env.reset(miniwob_task("click-test", 1))
        sys.stdout.write(str(env.browser_pid))
        sys.stdout.flush()
        {end}
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    environment = {**os.environ, "ARPO_SESSION_DIR": str(tmp_path)}
    ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=60)
    wait_until(lambda: not processes_of(int(ended.stdout)))


def processes_of(group: int) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found
