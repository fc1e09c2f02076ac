"""Real desktops in Docker: the contract, resets, and faults, which are typed errors and never a reward."""

import asyncio
from contextlib import closing

import pytest

from arpo.agent.actions import CallUser, Fail, Hotkey, TypeText, Wait
from arpo.envs.contract import check_env
from arpo.envs.desktop.env import DockerDesktop
from arpo.envs.guest import client
from arpo.errors import EnvError
from tests.envs.desktop.test_reset import TASK as TYPING
from tests.envs.desktops import BREAKS, QUICK, editor_task, kill, needs_desktop, task
from tests.envs.pool.support import make_pool, solve, with_pool

pytestmark = needs_desktop


OTHER_WAYS = [pytest.param({"reset": way}, marks=pytest.mark.long) for way in ("restart", "fresh")]


@pytest.mark.parametrize("settings", [{"reset": "in_place"}, *OTHER_WAYS, {"pause": True}])
def test_a_desktop_keeps_the_contract_however_it_is_reset_and_frozen_between_steps_too(settings):
    check_env(DockerDesktop(**QUICK, **settings), editor_task())


@pytest.mark.parametrize("action", [Fail(), CallUser()])
def test_giving_up_is_right_where_the_task_cannot_be_done_and_wrong_elsewhere(desktop, action):
    desktop.reset(task(evaluator={"func": "infeasible"}))
    desktop.step(action)
    assert desktop.evaluate() == 1.0
    nothing = {"type": "rule", "rules": {"expected": ""}}
    desktop.reset(task(evaluator={**editor_task().config["evaluator"], "expected": nothing}))
    desktop.step(Wait())
    assert desktop.evaluate() == 1.0  # there is no such file, and that is what the task wants
    desktop.step(action)
    assert desktop.evaluate() == 0.0


def test_an_idle_episode_does_not_inherit_a_locked_solution(desktop):
    rule = {"type": "rule", "rules": {"expected": "done"}}
    wanted = task(evaluator={"func": "exact_match", "result": {"type": "vm_file", "path": "~/a"}, "expected": rule})
    desktop.reset(wanted)
    desktop.machine.guest.execute("printf done > ~/a; chmod 555 ~", shell=True)
    assert desktop.evaluate() == 1.0
    desktop.reset(wanted)
    assert desktop.evaluate() == 0.0


def test_a_long_text_of_many_scripts_is_typed_whole(desktop):
    # 700 characters, no two of the first 600 the same, and what the keyboard has between them
    text = "".join(chr(0x4E00 + 7 * i) for i in range(600)) + "λ a Я ü " * 12 + "end."
    desktop.reset(TYPING)
    desktop.step(TypeText(text))
    desktop.step(Hotkey(("ctrl", "s")))
    desktop.step(Wait())
    assert desktop.machine.guest.file("~/typed.txt").decode() == text


@pytest.mark.timeout(60)  # twice the deadlines of a step and an evaluation, and a start
@pytest.mark.parametrize("fault", BREAKS)
def test_a_fault_is_a_typed_error_and_no_hang(fault):
    with closing(DockerDesktop(**QUICK)) as env:
        env.reset(editor_task())
        fault(env.machine.container.id)
        with pytest.raises(EnvError) as error:
            step_and_evaluate(env)
    assert error.value.kind == "guest"


def step_and_evaluate(env):
    env.step(TypeText("x"))
    return env.evaluate()


def test_the_pool_replaces_a_desktop_that_broke():
    built = []

    def make():
        built.append(DockerDesktop(**QUICK))
        return built[-1]

    async def scenario(pool):
        task = editor_task()
        async with pool.lease(task) as env:
            await env.reset(task)
            await asyncio.to_thread(kill, built[0].machine.container.id)
            with pytest.raises(EnvError):
                await env.step(TypeText("x"))
        return await solve(pool, task), pool.counters()

    pool = make_pool(make, reset_timeout_s=60)
    reward, counters = with_pool(pool, scenario)
    assert (reward, len(built)) == (1.0, 2)
    assert (counters["env/fault_guest"], counters["env/restarts"]) == (1, 1)


def test_a_program_of_a_foreign_agent_runs_as_the_user_and_whatever_it_does_is_its_own_doing(desktop, monkeypatch):
    desktop.reset(TYPING)
    assert desktop.execute("id -un; echo $0", shell=True).output.split()[0] == "user"
    assert desktop.execute(["python", "-c", "import pyautogui; print(pyautogui.size())"]).returncode == 0
    assert desktop.execute(["false"]).returncode == 1
    assert desktop.execute(["no-such-program"]).returncode != 0
    monkeypatch.setattr(client, "AGENT_S", 4.0)
    for command in ("sleep 60", "yes", "head -c 20000000 /dev/zero | tr '\\0' x", "kill -STOP $$"):
        done = desktop.execute(command, shell=True)
        assert (done.returncode, bool(done.error)) != (0, False)
    before = desktop.look()
    desktop.execute("xdotool key super+d; xsetroot -solid red", shell=True)
    assert (before.width, before.height) == (desktop.look().width, desktop.look().height)
    assert desktop.evaluate() == 0.0
