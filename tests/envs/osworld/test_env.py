"""The OSWorld environment on a fake guest: set-up, steps, OSWorld's rules of grading, a machine for each episode."""

import pytest

from arpo.agent.actions import CallUser, Click, Fail, Finished, TypeText
from arpo.envs.contract import check_env
from arpo.envs.osworld.env import OSWorldEnv
from arpo.envs.osworld.machine import virtual_machine
from arpo.envs.protocol import DesktopEnv
from arpo.errors import ConfigError, DesktopDestroyedError, EnvError
from arpo.host.cell import Cells
from arpo.host.container_spec import ContainerSpec
from arpo.types import Task
from tests.envs.desktops import needs_cells
from tests.envs.osworld.guest import NOTE
from tests.envs.osworld.test_grader import PYTHON, needs_graders

SPEC = ContainerSpec("guest", ports=(5000, 9222, 8080))


class Judges:
    """Cells in which everything gets 0.75, or what `outcome` says."""

    def __init__(self, outcome=None):
        self.outcome = outcome or {"reply": {"score": 0.75}}
        self.left, self.files = 0, []

    def wait_until_ready(self):
        pass

    def judge(self, request, files, doors):
        self.files.append(
            {name: each if isinstance(each, bytes) else each.read_bytes() for name, each in files.items()}
        )
        return self.outcome

    def leave(self):
        self.left += 1


@pytest.fixture
def python(tmp_path):
    path = tmp_path / "python"
    path.touch()
    return path


@pytest.fixture
def judges():
    return Judges()


@pytest.fixture
def make(engine, tmp_path, python, judges):
    made = []

    def make(**settings):
        settings = {"cache": tmp_path / "cache", "grader_python": python, "pause_s": 0.0, **settings}
        settings = {"cells": lambda program: judges, **settings}
        made.append(OSWorldEnv(SPEC, containers=lambda: engine, **settings))
        return made[-1]

    yield make
    for env in made:
        env.close()


def note_task(func="compare_text_file", **config):
    evaluator = {
        "func": func,
        "result": {"type": "vm_file", "path": NOTE, "dest": "note.txt"},
        "expected": {"type": "cloud_file", "path": "the web/gold.txt", "dest": "gold.txt"},
    }
    return Task("note", "Type hello", "os", {"config": [], "evaluator": evaluator, **config})


def infeasible_task():
    return Task("never", "Fly", "os", {"config": [], "evaluator": {"func": "infeasible"}}, infeasible=True)


def said_task(**evaluator):
    return Task(
        "said", "Say it", "os", {"evaluator": {"func": "exact_match", "result": {"type": "rule"}, **evaluator}}
    )


def test_it_is_a_desktop_like_any_other(make):
    env: DesktopEnv = make()
    check_env(env, said_task())


def test_an_episode_begins_with_the_task_s_set_up(make, engine):
    task = note_task(config=[{"type": "launch", "parameters": {"command": ["gedit", NOTE]}}])
    observation = make().reset(task)
    assert engine.guest.windows == ["gedit"]
    assert (observation.width, observation.height) == (160, 120)


def test_a_set_up_that_fails_is_no_episode(make, engine):
    env = make()
    with pytest.raises(EnvError, match=r"task note, set-up step 0 \(open\)"):
        env.reset(note_task(config=[{"type": "open", "parameters": {"path": "/nowhere"}}]))
    with pytest.raises(EnvError, match="step was called before reset"):
        env.step(Finished())


def test_an_untouched_machine_is_used_and_every_later_episode_gets_a_new_one(make, engine):
    env = make()
    assert len(engine.machines) == 1
    env.reset(said_task())
    assert len(engine.machines) == 1
    env.step(TypeText("left over"))
    assert NOTE in engine.guest.files
    env.reset(said_task())
    assert engine.removed == engine.machines[:1]  # by the engine, which remembers what it could not remove
    assert [machine.running for machine in engine.machines] == [False, True]
    assert NOTE not in engine.guest.files


def test_the_next_machine_boots_from_the_score_on_and_the_next_episode_takes_it(make, engine):
    env = make()
    env.reset(said_task())
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
    env = make()
    env.reset(said_task())

    def start(spec):
        raise error

    monkeypatch.setattr(engine, "start", start)
    assert env.evaluate() == 0.75
    with pytest.raises(EnvError, match="its machine did not start; build a new one"):
        env.reset(said_task())


def test_a_next_machine_that_does_not_boot_is_an_error_of_the_reset(make, engine):
    env = make(boot_timeout_s=0.2)
    env.reset(said_task())
    engine.broken = True
    assert env.evaluate() == 0.75
    with pytest.raises(EnvError, match=r"no healthy guest within 0\.2 s.*qemu: no memory"):
        env.reset(said_task())


def test_actions_travel_as_pyautogui(make, engine):
    env = make()
    env.reset(said_task())
    env.step(Click(3, 4))
    env.step(TypeText("hello"))
    assert "pyautogui.click(3, 4, button='left')" in engine.guest.executed[0][2]
    assert engine.guest.files[NOTE] == b"hello"


def test_a_first_action_that_the_guest_cannot_perform_is_an_environment_error(make, engine):
    env = make()
    env.reset(said_task())
    engine.guest.run = lambda words: ("", "Xlib: cannot open display", 1)
    with pytest.raises(EnvError, match=r"cannot perform .*: Xlib: cannot open display"):
        env.step(Click(3, 4))


def test_a_later_action_that_the_guest_cannot_perform_has_no_effect_and_is_judged_as_ever(make, engine, caplog):
    """The agent can have done that: `chmod 0 ~`, or a program that grabs the X server."""
    caplog.set_level("INFO")
    env = make()
    env.reset(said_task())
    env.step(Click(3, 4))
    engine.guest.run = lambda words: ("", "Xlib: cannot open display", 1)
    env.step(Click(3, 4))
    assert "did not perform" in caplog.text
    assert env.evaluate() == 0.75


@pytest.mark.parametrize("way", ["step", "evaluate"])
def test_a_machine_that_runs_without_its_server_was_made_useless_by_its_agent(make, engine, way):
    """OSWorld's server is a program of the agent's own user."""
    env = make()
    env.reset(said_task(postconfig=[{"type": "execute", "parameters": {"command": ["echo", "save"]}}]))
    env.step(Click(3, 4))
    engine.guest.lies["/setup/execute"] = lambda connection: connection.close()
    with pytest.raises(DesktopDestroyedError, match="the machine runs, and its server does not answer"):
        env.step(Click(3, 4)) if way == "step" else env.evaluate()


@pytest.mark.parametrize("settings", [{"guarded": True}, {}], ids=["ours", "before the first action"])
def test_a_silent_server_that_no_agent_can_have_ended_is_an_environment_error(make, engine, settings):
    env = make(**settings)
    env.reset(said_task())
    if settings:
        env.step(Click(3, 4))
    engine.guest.lies["/setup/execute"] = lambda connection: connection.close()
    with pytest.raises(EnvError):
        env.step(Click(3, 4))


def test_a_machine_that_has_ended_for_want_of_memory_was_made_useless_by_its_agent(make, engine):
    env = make(guarded=True)
    env.reset(said_task())
    env.step(Click(3, 4))
    engine.guest.lies["/setup/execute"] = lambda connection: connection.close()
    engine.machines[-1].running, engine.machines[-1].out_of_memory = False, True
    with pytest.raises(DesktopDestroyedError, match="took all memory"):
        env.step(Click(3, 4))


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


def test_a_machine_that_has_ended_is_an_environment_error(make, engine):
    env = make()
    env.reset(said_task())
    env.step(Click(3, 4))
    engine.guest.lies["/setup/execute"] = lambda connection: connection.close()
    engine.machines[-1].running = False
    with pytest.raises(EnvError):
        env.step(Click(3, 4))


@pytest.mark.parametrize(
    ("task", "last", "reward"),
    [(infeasible_task(), Fail(), 1.0), (said_task(), CallUser(), 0.0), (said_task(), Finished(), 0.75)],
    ids=lambda value: getattr(value, "id", type(value).__name__),
)
def test_giving_up_is_right_exactly_where_a_task_is_infeasible(make, task, last, reward):
    env = make()
    env.reset(task)
    env.step(last)
    assert env.evaluate() == reward


def test_only_the_last_action_counts_as_giving_up(make):
    env = make()
    env.reset(infeasible_task())
    env.step(Fail())
    env.step(Click(1, 1))
    assert env.evaluate() == 0.0
    env.reset(infeasible_task())
    assert env.evaluate() == 0.0


def test_postconfig_runs_before_the_rules_as_in_osworld(make, engine):
    env = make()
    env.reset(said_task(postconfig=[{"type": "execute", "parameters": {"command": ["echo", "save"]}}]))
    env.step(Fail())
    guest = engine.guest
    env.evaluate()
    assert guest.executed[-1] == ["echo", "save"]


def test_closing_removes_the_machine_and_lets_go_of_the_cells(make, engine, judges):
    env = make()
    env.reset(said_task())
    env.close()
    env.close()
    assert not engine.machines[0].running
    assert judges.left == 1


def test_what_steps_save_reaches_the_graders_and_no_file_of_this_machine(make, engine, judges):
    env = make()
    save = {"type": "execute", "parameters": {"command": ["echo", "said"], "stdout": "said.txt"}}
    env.reset(said_task(postconfig=[save]))
    env.evaluate()
    assert judges.files == [{"said.txt": b"said\n"}]


def test_no_machine_is_left_where_no_cell_starts(make, engine, judges, monkeypatch):
    def none():
        raise EnvError("evaluate", "no cell to judge in has come up")

    monkeypatch.setattr(judges, "wait_until_ready", none)
    with pytest.raises(EnvError, match="no cell"):
        make()
    assert not engine.machines[0].running


@needs_graders
@pytest.mark.parametrize(
    ("text", "reward"),
    [pytest.param("hello", 1.0, marks=needs_cells), pytest.param("goodbye", 0.0, marks=needs_cells)],
)
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


def test_a_disk_that_is_not_there_is_refused_before_anything_starts(tmp_path, python, engine):
    spec = virtual_machine(tmp_path / "Ubuntu.qcow2", image="osworld")
    with pytest.raises(ConfigError, match=r"there is no .*Ubuntu\.qcow2 on this node"):
        OSWorldEnv(spec, cache=tmp_path, grader_python=python, containers=lambda: engine)
    assert engine.machines == []


def test_a_guarded_machine_has_a_secret_of_its_own_each_time(engine, make):
    env = make(guarded=True)
    for _ in range(2):
        env.reset(said_task())
        env.step(Finished())
        assert env.evaluate() == 0.75
    secrets = [spec.environment["ARPO_SECRET"] for spec in engine.specs]
    assert len(set(secrets)) == len(secrets) == 3  # the next episode's machine boots after a score


def test_windows_are_waited_for_where_the_guest_server_says_which_there_are(make):
    assert make(guarded=True).guest.deadlines.window_s > 0
    assert make().guest.deadlines.window_s == 0
