"""The OSWorld environment on a fake guest: set-up, steps, OSWorld's rules of grading, a machine for each episode."""

import sys

import pytest

from arpo.agent.actions import CallUser, Click, Fail, Finished, TypeText
from arpo.envs.contract import check_env
from arpo.envs.osworld.env import OSWorldEnv
from arpo.envs.osworld.machine import virtual_machine
from arpo.errors import ConfigError, DesktopDestroyedError, EnvError
from arpo.host.cell import Cells
from arpo.host.container_spec import ContainerSpec
from arpo.types import Task
from tests.envs.osworld.guest import NOTE
from tests.envs.osworld.support import PYTHON, needs_judging

SPEC = ContainerSpec("guest", ports=(5000, 9222, 8080))


class Judges:
    def __init__(self):
        self.left, self.files = 0, []

    def wait_until_ready(self):
        pass

    def judge(self, request, files, doors):
        read = {name: each if isinstance(each, bytes) else each.read_bytes() for name, each in files.items()}
        self.files.append(read)
        return {"reply": {"score": 0.75}}

    def leave(self):
        self.left += 1


@pytest.fixture
def judges():
    return Judges()


@pytest.fixture
def make(engine, tmp_path, judges):
    made = []

    def make(**settings):
        usual = {"cache": tmp_path / "cache", "grader_python": sys.executable, "cells": lambda program: judges}
        made.append(OSWorldEnv(SPEC, containers=lambda: engine, **{"pause_s": 0.0, **usual, **settings}))
        return made[-1]

    yield make
    for env in made:
        env.close()


def note_task(**config):
    evaluator = {
        "func": "compare_text_file",
        "result": {"type": "vm_file", "path": NOTE, "dest": "note.txt"},
        "expected": {"type": "cloud_file", "path": "the web/gold.txt", "dest": "gold.txt"},
    }
    return Task("note", "Type hello", "os", {"config": [], "evaluator": evaluator, **config})


def said_task(**evaluator):
    config = {"evaluator": {"func": "exact_match", "result": {"type": "rule"}, **evaluator}}
    return Task("said", "Say it", "os", config)


def test_it_is_a_desktop_like_any_other(make):
    check_env(make(), said_task())


def began(env, *actions, **evaluator):
    env.reset(said_task(**evaluator))
    for action in actions:
        env.step(action)
    return env


SAVES = [{"type": "execute", "parameters": {"command": ["echo", "save"], "stdout": "said.txt"}}]


def test_an_episode_begins_with_the_task_s_set_up_and_none_begins_where_that_fails(make, engine):
    env = make()
    observation = env.reset(note_task(config=[{"type": "launch", "parameters": {"command": ["gedit", NOTE]}}]))
    assert engine.guest.windows == ["gedit"]
    assert (observation.width, observation.height) == (160, 120)
    with pytest.raises(EnvError, match=r"task note, set-up step 0 \(open\)"):
        env.reset(note_task(config=[{"type": "open", "parameters": {"path": "/nowhere"}}]))
    with pytest.raises(EnvError, match="step was called before reset"):
        env.step(Finished())


def test_an_untouched_machine_is_used_and_every_later_episode_gets_a_new_one(make, engine):
    env = make()
    assert len(engine.machines) == 1
    began(env, TypeText("left over"))
    assert len(engine.machines) == 1
    assert NOTE in engine.guest.files
    env.reset(said_task())
    assert engine.removed == engine.machines[:1]  # by the engine, which remembers what it could not remove
    assert [machine.running for machine in engine.machines] == [False, True]
    assert NOTE not in engine.guest.files


def test_the_next_machine_boots_from_the_score_on_and_the_next_episode_takes_it(make, engine):
    env = began(make())
    engine.broken = True  # it shows no screen yet
    assert env.evaluate() == 0.75
    assert [machine.running for machine in engine.machines] == [False, True]
    with pytest.raises(EnvError, match="evaluate was called before reset"):
        env.evaluate()
    engine.guest.refused.clear()
    env.reset(said_task())
    assert len(engine.machines) == 2


@pytest.mark.parametrize("error", [EnvError("crash", "the engine is full"), ConfigError("there is no image guest")])
def test_a_score_counts_though_no_next_machine_starts(error, make, engine, monkeypatch):
    env = began(make())

    def start(spec):
        raise error

    monkeypatch.setattr(engine, "start", start)
    assert env.evaluate() == 0.75
    with pytest.raises(EnvError, match="its machine did not start; build a new one"):
        env.reset(said_task())


def test_a_next_machine_that_does_not_boot_is_an_error_of_the_reset(make, engine):
    env = began(make(boot_timeout_s=0.2))
    engine.broken = True
    assert env.evaluate() == 0.75
    with pytest.raises(EnvError, match=r"no healthy guest within 0\.2 s.*qemu: no memory"):
        env.reset(said_task())


def test_actions_travel_as_pyautogui(make, engine):
    began(make(), Click(3, 4), TypeText("hello"))
    assert "pyautogui.click(3, 4, button='left')" in engine.guest.executed[0][2]
    assert engine.guest.files[NOTE] == b"hello"


def test_an_action_that_the_guest_cannot_perform_is_an_error_at_first_and_later_has_no_effect(make, engine, caplog):
    """The agent can have done that: `chmod 0 ~`, or a program that grabs the X server."""
    caplog.set_level("INFO")
    env = began(make())
    cannot = lambda words: ("", "Xlib: cannot open display", 1)  # noqa: E731
    engine.guest.run = cannot
    with pytest.raises(EnvError, match=r"cannot perform .*: Xlib: cannot open display"):
        env.step(Click(3, 4))
    env = began(make())
    env.step(Click(3, 4))
    engine.guest.run = cannot
    env.step(Click(3, 4))
    assert "did not perform" in caplog.text
    assert env.evaluate() == 0.75


@pytest.mark.parametrize(
    ("guarded", "acts", "way", "machine", "error", "message"),
    [
        (False, True, "step", {}, DesktopDestroyedError, "the machine runs, and its server does not answer"),
        (False, True, "evaluate", {}, DesktopDestroyedError, "the machine runs, and its server does not answer"),
        (True, True, "step", {"running": False, "out_of_memory": True}, DesktopDestroyedError, "took all memory"),
        (True, True, "step", {}, EnvError, None),
        (False, False, "step", {}, EnvError, None),
        (False, True, "step", {"running": False}, EnvError, None),
    ],
    ids=["a step", "a check", "no memory", "our own server", "before the first action", "a machine that has ended"],
)
def test_the_silence_of_a_server_is_its_agent_s_doing_where_that_can_have_caused_it(
    make, engine, guarded, acts, way, machine, error, message
):
    """OSWorld's server is a program of the agent's own user."""
    env = began(make(guarded=guarded), *[Click(3, 4)] * acts, postconfig=SAVES)
    engine.guest.lies["/setup/execute"] = lambda connection: connection.close()
    for name, value in machine.items():
        setattr(engine.machines[-1], name, value)
    with pytest.raises(error, match=message):
        env.step(Click(3, 4)) if way == "step" else env.evaluate()


def test_a_script_that_the_set_up_uploaded_and_a_check_runs_is_uploaded_again(make, engine, guest):
    guest.web["/web/eval.sh"] = b"echo judged"
    file = {"url": f"{guest.address}/web/eval.sh", "path": "eval.sh"}
    env = make(guarded=True)
    task = said_task(result={"type": "vm_command_line", "command": "bash eval.sh", "shell": True})
    task.config["config"] = [{"type": "download", "parameters": {"files": [file]}}]
    env.reset(task)
    engine.guest.files["eval.sh"] = b"echo forged"
    env.evaluate()
    assert engine.machines[0].guest.files["eval.sh"] == b"echo judged"


def test_the_last_action_alone_counts_as_giving_up_which_is_right_exactly_where_a_task_is_infeasible(make):
    env = make()
    impossible = Task("never", "Fly", "os", {"config": [], "evaluator": {"func": "infeasible"}}, infeasible=True)
    for actions, score in (([Fail()], 1.0), ([Fail(), Click(1, 1)], 0.0), ([], 0.0)):
        env.reset(impossible)
        for action in actions:
            env.step(action)
        assert env.evaluate() == score
    assert began(env, CallUser()).evaluate() == 0.0
    assert began(env, Finished()).evaluate() == 0.75


def test_postconfig_runs_before_the_rules_and_what_it_saves_and_no_file_of_this_machine_reaches_the_graders(
    make, engine, judges
):
    env = began(make(), Fail(), postconfig=SAVES)
    guest = engine.guest
    env.evaluate()
    assert guest.executed[-1] == ["echo", "save"]
    began(env, postconfig=SAVES).evaluate()
    assert judges.files == [{"said.txt": b"save\n"}]


def test_closing_removes_the_machine_and_lets_go_of_the_cells(make, engine, judges):
    env = began(make())
    env.close()
    env.close()
    assert not engine.machines[0].running
    assert judges.left == 1


def test_no_machine_is_left_where_no_cell_starts(make, engine, judges, monkeypatch):
    def none():
        raise EnvError("evaluate", "no cell to judge in has come up")

    monkeypatch.setattr(judges, "wait_until_ready", none)
    with pytest.raises(EnvError, match="no cell"):
        make()
    assert not engine.machines[0].running
    assert judges.left == 1


@needs_judging
@pytest.mark.parametrize(("text", "reward"), [("hello", 1.0), ("goodbye", 0.0)])
def test_a_whole_episode_is_graded_by_osworld_s_own_code(make, guest, text, reward):
    env = make(grader_python=PYTHON, cells=Cells.of)
    guest.web["/web/gold.txt"] = b"hello"
    task = note_task()
    task.config["evaluator"]["expected"]["path"] = f"{guest.address}/web/gold.txt"
    env.reset(task)
    env.step(TypeText(text))
    env.step(Finished())
    assert env.evaluate() == reward


def test_the_machine_is_osworld_s_with_a_read_only_disk_and_its_numbers(tmp_path):
    spec = virtual_machine(tmp_path / "Ubuntu.qcow2", image="happysixd/osworld-docker")
    assert spec.volumes == (f"{tmp_path}/Ubuntu.qcow2:/System.qcow2:ro",)
    assert spec.environment == {"DISK_SIZE": "32G", "RAM_SIZE": "4096M", "CPU_CORES": "4"}
    assert (spec.memory_mb, spec.cpus) == (4096 + 512, 4.0)
    assert spec.devices == ("/dev/net/tun", "/dev/kvm")
    assert spec.ports == (5000, 9222, 8006, 8080)
    assert "NET_ADMIN" in spec.capabilities
    emulated = virtual_machine(tmp_path / "Ubuntu.qcow2", image="happysixd/osworld-docker", kvm=False)
    assert (emulated.devices, emulated.environment["KVM"]) == (("/dev/net/tun",), "N")


def test_a_disk_that_is_not_there_is_refused_before_anything_starts(tmp_path, engine):
    spec = virtual_machine(tmp_path / "Ubuntu.qcow2", image="osworld")
    with pytest.raises(ConfigError, match=r"there is no .*Ubuntu\.qcow2 on this node"):
        OSWorldEnv(spec, cache=tmp_path, grader_python=sys.executable, containers=lambda: engine)
    assert engine.machines == []


def test_a_guarded_machine_has_a_secret_of_its_own_each_time_and_windows_that_are_waited_for(engine, make):
    env = make(guarded=True)
    for _ in range(2):
        assert began(env, Finished()).evaluate() == 0.75
    secrets = [spec.environment["ARPO_SECRET"] for spec in engine.specs]
    assert len(set(secrets)) == len(secrets) == 3  # the next episode's machine boots after a score
    assert env.guest.deadlines.window_s > 0  # it says which windows there are
    assert make().guest.deadlines.window_s == 0
