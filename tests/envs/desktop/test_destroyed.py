"""What an agent does to its own desktop is its own doing: judged, scored with 0, and never tried again."""

import time

import pytest

from arpo.agent.actions import Hotkey, TypeText, Wait
from arpo.agent.prompt import Prompt
from arpo.agent.ui_tars import render_response
from arpo.envs.desktop.env import DockerDesktop
from arpo.errors import DesktopDestroyedError
from arpo.models.tokenization import ChatTokenizer
from arpo.rollout.episode import EpisodeSpec, Meter, Responder
from arpo.rollout.runtime import EpisodeRunner
from arpo.rollout.settings import RolloutSettings
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Outcome
from tests.envs.desktop.sabotage import DESTROYS, LEAVES_NO_PROCESS, OUTLIVED
from tests.envs.desktops import QUICK, editor_task, needs_desktop, one_and_others
from tests.envs.pool.support import make_pool, with_pool
from tests.inference.scripted import ScriptedEngine

pytestmark = needs_desktop

STRIKES_S = 30.0
"""For so long a way to destroy a desktop may take until the first call that notices."""
ACTS_S = 3.0
"""For so long a desktop is judged again and again, while something is done to it."""


def launch(env, command):
    """Run a command as the agent could from a terminal."""
    env.machine.guest.launch(["sh", "-c", command])


def play_on(env):
    """Go on with the episode until something is noticed, and let it be judged."""
    until = time.monotonic() + STRIKES_S
    while time.monotonic() < until:
        env.step(Wait())
        env.evaluate()
    raise AssertionError("nothing was noticed")


@pytest.mark.parametrize("way", one_and_others(DESTROYS))
def test_a_desktop_that_its_agent_destroys_is_the_agents_and_the_next_reset_repairs_it(desktop, way):
    desktop.reset(editor_task())
    container = desktop.machine.container.id
    launch(desktop, DESTROYS[way])
    with pytest.raises(DesktopDestroyedError):
        play_on(desktop)
    desktop.reset(editor_task())
    assert desktop.machine.container.id == container
    desktop.step(Wait())
    assert desktop.evaluate() == 0.0


@pytest.mark.parametrize("way", one_and_others(OUTLIVED))
def test_what_does_not_destroy_a_desktop_does_not_keep_it_from_being_judged(desktop, way):
    desktop.reset(shown_task())
    launch(desktop, OUTLIVED[way])
    until = time.monotonic() + ACTS_S
    while time.monotonic() < until:
        desktop.step(Wait())
        assert desktop.evaluate() == 0.0


@pytest.mark.long
def test_a_check_that_gets_no_process_ends_in_a_desktop_that_its_agent_destroyed(desktop):
    desktop.reset(shown_task())
    launch(desktop, LEAVES_NO_PROCESS)
    with pytest.raises(DesktopDestroyedError, match="as many processes as it may have"):
        play_on(desktop)


def shown_task():
    """The task of the editor, judged by the file and by what a program shows of it, after steps like OSWorld's."""
    task = editor_task()
    of_file = task.config["evaluator"]
    save = "import pyautogui; pyautogui.hotkey('ctrl', 's')"
    task.config["evaluator"] = {
        "func": [of_file["func"]] * 2,
        "conj": "or",
        "result": [of_file["result"], {"type": "vm_command_line", "command": "cat ~/list.txt", "shell": True}],
        "expected": [of_file["expected"]] * 2,
        "postconfig": [
            {"type": "activate_window", "parameters": {"window_name": "list.txt"}},
            {"type": "execute", "parameters": {"command": ["python3", "-c", save]}},
        ],
    }
    return task


@pytest.fixture
def chat(tiny_model):
    return ChatTokenizer(tiny_model)


@pytest.mark.long
def test_an_agent_that_types_its_way_out_scores_nothing_once(chat, tmp_path):
    actions = [Hotkey(("ctrl", "alt", "t")), Wait(), TypeText("kill -9 -1\n"), *[Wait()] * 5]
    said = map(render_response, actions)
    engine = ScriptedEngine(chat, lambda request: next(said))
    settings = RolloutSettings(group_size=2, max_steps=8, max_context=100_000, max_tokens=200, max_attempts=3)
    spec = EpisodeSpec("0/0/0", editor_task(), 5, settings)
    meter = Meter()

    async def play(pool):
        responder = Responder(engine, chat, Prompt.compact())
        runner = EpisodeRunner(pool, responder, TrajectoryStore(tmp_path), settings)
        return await runner.run([[spec]], meter, {}), pool.counters()

    [[trajectory]], counters = with_pool(make_pool(lambda: DockerDesktop(**QUICK)), play)
    assert (trajectory.outcome, trajectory.task_reward, trajectory.format_reward) == (Outcome.DESTROYED, 0.0, 0.0)
    assert (meter.done, meter.retried, meter.dropped) == (1, 0, 0)
    assert counters["env/episodes"] == 1
    assert not any(value for name, value in counters.items() if name.startswith("env/fault_"))
