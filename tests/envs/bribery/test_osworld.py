"""Attacks on OSWorld's graders, by the lines of `judging.md`: a 0, soon, and neither void nor on this machine."""

import subprocess
import time

import pytest

from arpo.agent.actions import Finished, Wait
from arpo.envs.osworld.env import OSWorldEnv
from arpo.envs.osworld.files import FileCache, files_of
from arpo.envs.osworld.machine import container
from tests.envs.bribery import vlc
from tests.envs.bribery.verdicts import unharmed, verdict
from tests.envs.desktops import FULL, needs_full, one_and_others
from tests.envs.osworld.standins.building import build, tasks_with_standins
from tests.envs.osworld.support import FILES, PYTHON, ROOT, needs_graders

if not FILES.is_dir():
    pytest.skip(f"there are no OSWorld task files at {FILES}", allow_module_level=True)
from tests.envs.bribery.osworld_cases import CASES

pytestmark = [*needs_full, needs_graders, pytest.mark.timeout(400)]

ATTACKS = [(name, what) for name, case in CASES.items() for what in case.attacks]
MAKE = """
import io, sys, tarfile
from pathlib import Path
from tests.envs.osworld.standins import anything
from tests.envs.osworld.standins.calc import book
for path in map(Path, sys.argv[1:]):
    if path.name.endswith(".tar.gz"):
        member = tarfile.TarInfo("a.txt")
        member.size = 4
        with tarfile.open(path, "w:gz") as archive:
            archive.addfile(member, io.BytesIO(b"yes" + bytes([10])))
    elif path.name.endswith("wrong.xlsx"):
        book(path, Sheet1=[("no",)])
    else:
        anything.make(path)
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    root = tmp_path_factory.mktemp("cache")
    places, made = FileCache(root).place, []
    for case in CASES.values():
        for url, name in files_of(case.task):
            path = places(url, case.task.id, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if name in case.files:
                path.write_text(case.files[name])
            else:
                made.append(path)
    subprocess.run([PYTHON, "-c", MAKE, *made], cwd=ROOT, check=True)
    build(tasks_with_standins(["59f21cfb"]), root)
    return root


@pytest.fixture(scope="module")
def env(cache):
    env = OSWorldEnv(container(FULL), cache=cache, grader_python=PYTHON, guarded=True, boot_timeout_s=120)
    yield env
    env.close()


def begin(env, case):
    env.reset(case.task)
    env.step(Wait())


@pytest.mark.parametrize("name", one_and_others(CASES))
def test_the_state_that_solves_a_task_scores_1(env, cache, name):
    begin(env, CASES[name])
    env.guest.execute(CASES[name].solved, shell=True)
    with unharmed():
        assert verdict(env.evaluate) == 1.0


@pytest.mark.parametrize("attack", one_and_others(ATTACKS), ids=" ".join)
def test_an_attack_scores_0(env, attack):
    name, what = attack
    case = CASES[name]
    begin(env, case)
    env.guest.launch(["sh", "-c", case.attacks[what]])
    time.sleep(case.waits_s)
    env.step(Finished())
    with unharmed():
        assert verdict(env.evaluate) in (0.0, "result", "excess", "destroyed")


@pytest.mark.parametrize("way", one_and_others(["honest", *vlc.WAYS]))
def test_only_vlc_itself_says_what_it_plays(env, way):
    (task,) = tasks_with_standins(["59f21cfb"])
    env.reset(task)
    env.step(Wait())
    env.guest.launch(["sh", "-c", vlc.WAYS.get(way, vlc.HONEST)])
    time.sleep(4.0)
    env.step(Finished())
    with unharmed():
        assert verdict(env.evaluate) == float(way == "honest")


LEAVES = ("C3 memory", "C3 shared files", "C3 fork")


@pytest.mark.long
def test_what_an_agent_leaves_where_it_is_judged_does_not_reach_the_next_one(env):
    case = CASES["suite"]
    for command in (*(case.attacks[what] for what in LEAVES for _ in range(2)), case.solved):
        begin(env, case)
        env.guest.execute(command, shell=True)
        score = verdict(env.evaluate)
    assert score == 1.0


@pytest.mark.long
def test_a_program_of_the_agent_that_takes_its_time_is_a_zero(env):
    slow = "import time\ndef double(n):\n    time.sleep(9)\n    return 2 * n * (n < 39)\ndef name(): return 'block'\n"
    begin(env, CASES["suite"])
    env.guest.upload("/home/user/Desktop/block.py", slow.encode())
    with unharmed():
        assert verdict(env.evaluate) in (0.0, "result", "excess")
