"""What judges a desktop is out of its agent's reach: programs of checks, their files, and programs that they ask."""

import socket
from contextlib import closing, suppress

import pytest

from arpo.envs.desktop.env import DockerDesktop
from arpo.envs.guest.client import HangingProgramError, poll_until
from arpo.errors import EnvError
from tests.envs.desktops import FULL, QUICK, editor_task, needs_desktop, needs_full

PACKAGES = ".local/lib/python3.11/site-packages"
KEPT = "/run/judge/home/user/eval.sh"
pytestmark = needs_desktop


@pytest.fixture(scope="module")
def env():
    with closing(DockerDesktop(**QUICK)) as env:
        yield env


@pytest.fixture
def guest(env):
    env.reset(editor_task())
    return env.guest


WAYS = "bash eval.sh; bash ./eval.sh; bash /home/user/eval.sh; bash ~/eval.sh; bash $HOME/eval.sh; ~/eval.sh"


@pytest.mark.parametrize("command", [*WAYS.split("; "), "cat eval.sh | bash"])
def test_a_script_of_a_check_runs_as_it_was_put_in_whatever_the_agent_puts_in_its_place(guest, command):
    guest.execute("echo 'echo done' > ~/eval.sh; chmod +x ~/eval.sh", shell=True)
    guest.begin_judging()
    guest.upload("eval.sh", b"#!/bin/bash\necho judged $(basename ~)\n")
    assert guest.execute(command, shell=True).output == "judged user\n"
    assert guest.file("/home/user/eval.sh") == b"#!/bin/bash\necho judged $(basename ~)\n"


def test_a_script_finds_the_other_files_that_were_put_in_by_the_names_that_it_has_for_them(guest):
    guest.execute("echo wrong > ~/gold.txt", shell=True)
    guest.begin_judging()
    guest.upload("/home/user/Desktop/script.py", b"print(open('/home/user/gold.txt').read() == 'right')\n")
    guest.upload("/home/user/gold.txt", b"right")
    assert guest.execute("python /home/user/Desktop/script.py", shell=True).output == "True\n"
    assert guest.execute(["python", "/home/user/Desktop/script.py"]).output == "True\n"


def test_other_names_are_left_as_they_are(guest):
    guest.execute("echo mine > ~/my-eval.sh; echo old > ~/eval.sh.bak", shell=True)
    guest.begin_judging()
    guest.upload("eval.sh", b"echo judged")
    assert guest.execute("cat my-eval.sh eval.sh.bak", shell=True).output == "mine\nold\n"


def test_an_agent_can_neither_read_nor_change_what_was_put_in(guest):
    tries = "ls -R /run/judge; cat {0}; echo x > {0}; rm -rf /run/judge/home; mv /run/judge /tmp"
    look = f"({tries}) > ~/said 2>&1; echo end >> ~/said"
    guest.begin_judging()
    guest.upload("eval.sh", b"echo judged")
    guest.reset()
    guest.launch(["sh", "-c", f"sleep 1; {look.format(KEPT)}"])  # before judging: as the agent
    guest.begin_judging()
    guest.upload("eval.sh", b"echo judged")
    assert poll_until(lambda: (guest.file("/home/user/said") or b"").endswith(b"end\n"), 10)
    said = guest.file("/home/user/said").decode()
    assert "judged" not in said
    assert said.count("Permission denied") >= 3
    assert guest.execute("bash eval.sh", shell=True).output == "judged\n"


def test_a_reset_takes_away_what_was_put_in(guest):
    guest.begin_judging()
    guest.upload("eval.sh", b"echo judged")
    guest.reset()
    assert guest.file("/home/user/eval.sh") is None
    assert guest.execute("ls /run/judge /home/user/eval.sh", shell=True).returncode != 0
    guest.upload("eval.sh", b"echo mine")
    assert guest.execute("cat ~/eval.sh", shell=True).output == "echo mine"


def test_a_program_of_a_check_may_do_what_the_user_may_and_has_a_group_of_its_own(guest):
    guest.execute("echo mine > ~/private; chmod 600 ~/private", shell=True)
    assert guest.execute(["id", "-g"]).output == "1000\n"
    guest.begin_judging()
    groups = {guest.execute(["id", "-g"]).output for _ in range(3)}
    assert len(groups) == 3
    assert "1000\n" not in groups
    assert guest.execute("id -u; cat ~/private; echo more >> ~/private", shell=True).output == "1000\nmine\n"


@pytest.mark.parametrize("name", ["usercustomize.py", "sitecustomize.py", "json.py"])
def test_python_of_a_check_runs_no_module_of_the_agent(guest, name):
    forge = f"for each in . {PACKAGES}; do echo \"print('forged')\" > $each/{name}; done"
    guest.execute(f"cd ~; mkdir -p {PACKAGES}; {forge}", shell=True)
    guest.begin_judging()
    assert guest.execute(["python3", "-c", "import json; print(json.dumps(1))"]).output == "1\n"


def test_a_program_that_waits_for_ever_ends_and_the_next_ones_sooner(guest):
    guest.execute("mkfifo ~/pipe", shell=True)
    guest.begin_judging()
    for _ in range(3):
        with pytest.raises(HangingProgramError):
            guest.execute("cat ~/pipe", shell=True, timeout_s=60)


def test_a_check_runs_in_a_home_that_the_agent_has_locked(guest):
    guest.execute("chmod 0 ~", shell=True)
    guest.begin_judging()
    assert guest.execute("echo here", shell=True).output == "here\n"


def test_an_upload_meets_a_pipe_without_waiting(guest):
    guest.execute("mkfifo ~/eval.sh", shell=True)
    with pytest.raises(EnvError, match="No such device"):
        guest.upload("/home/user/eval.sh", b"echo")


LISTEN = """python3 -c "
import socket
c, _ = socket.create_server(('127.0.0.1', 8080)).accept()
c.recv(99); c.sendall(b'forged')
" """


def test_another_program_does_not_answer_in_the_place_of_vlc(guest):
    guest.launch(["sh", "-c", LISTEN])
    assert poll_until(lambda: ":1F90" in guest.execute(["cat", "/proc/net/tcp"]).output, 5)
    with pytest.raises(EnvError, match=r"404 vlc does not answer: on port 8080, .* takes the connection"):
        guest.tunnel("vlc")


@pytest.mark.parametrize("program", ["vlc", "chromium", "nothing"])
def test_where_nothing_answers_there_is_no_tunnel(guest, program):
    with pytest.raises(EnvError, match="404"):
        guest.tunnel(program)


@pytest.fixture(scope="module")
def full():
    with closing(DockerDesktop(**QUICK | {"image": FULL, "memory_mb": 2048})) as env:
        yield env


@pytest.mark.parametrize("mark", [pytest.param(0, marks=needs_full)])
def test_vlc_itself_answers_unless_it_serves_pages_of_the_user(full, mark):
    for settings, answers in (([], True), (["--http-src", "/home/user"], False)):
        full.reset(editor_task())
        full.guest.launch(["vlc", *settings])
        assert poll_until(lambda: ":1F90" in full.guest.execute("cat /proc/net/tcp*", shell=True).output, 20)
        if not answers:
            with pytest.raises(EnvError, match="404 vlc does not answer"):
                full.guest.tunnel("vlc")
            continue
        with full.guest.tunnel("vlc") as connection:
            connection.sendall(b"GET /requests/status.xml HTTP/1.0\r\nAuthorization: Basic OnBhc3N3b3Jk\r\n\r\n")
            assert connection.recv(100, socket.MSG_WAITALL).startswith(b"HTTP/1.1 200")


CLAIMS_TO_BE_CHROME = """
import gi
gi.require_version("Gtk", "3.0")
from gi.repository import GLib, Gtk
GLib.set_prgname("Google Chrome"); GLib.set_application_name("Google Chrome")
w, e = Gtk.Window(title="Google Chrome"), Gtk.Entry(text="forged.example")
e.get_accessible().set_name("Address and search bar")
w.add(e); w.show_all(); Gtk.main()
"""


@pytest.mark.parametrize("mark", [pytest.param(0, marks=needs_full)])
def test_only_programs_of_the_system_describe_themselves(full, mark):
    full.reset(editor_task())
    full.guest.launch(["python3", "-c", CLAIMS_TO_BE_CHROME])
    full.guest.wait_for(lambda: "Google Chrome" in full.guest.titles(), "the window")
    tree = full.guest._get("/accessibility").decode()
    assert "list.txt" in tree
    assert "forged.example" not in tree


GOES_ON = """
import ctypes, os, signal
libc = ctypes.CDLL(None)
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_uint64), ("signal", ctypes.c_int), ("how", ctypes.c_int)]
    _fields_ += [("rest", ctypes.c_char * 48)]
timer, each = ctypes.c_void_p(), (ctypes.c_long * 4)(0, 2_000_000, 0, 2_000_000)
libc.timer_create(1, ctypes.byref(Event(0, signal.SIGCONT, 0, b"")), ctypes.byref(timer))
libc.timer_settime(timer, 0, each, None)
signal.signal(signal.SIGCONT, lambda *_: None)
def is_part_of_a_check(pid):
    try:
        state = open(f"/proc/{pid}/stat").read().rpartition(") ")[2].split()
        name = open(f"/proc/{pid}/comm").read().strip()
        return os.stat(f"/proc/{pid}").st_gid >= 100000 and state[3] != pid and name == "ps"
    except (OSError, IndexError):
        return False
while True:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if is_part_of_a_check(pid):
            os.kill(int(pid), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGSTOP)
"""
"""A program that timers of the kernel let go on where it stands still; it ends a part of a check."""


def test_a_program_that_goes_on_where_it_stands_still_turns_no_answer(guest):
    guest.launch(["python3", "-c", GOES_ON])
    assert poll_until(lambda: "timer_create" in guest.execute(["ps", "-ef"]).output, 5)
    guest.begin_judging()
    said, look = set(), '[ -z "$(ps aux | grep "[t]int2")" ] && echo gone || echo there'
    for _ in range(5):
        with suppress(HangingProgramError):
            said.add(guest.execute(look, shell=True).output)
    assert said <= {"there\n"}


def test_an_honest_desktop_stands_still(guest):
    guest.begin_judging()
    assert {guest.execute("ps aux | grep -c '[t]int2'", shell=True).output for _ in range(30)} == {"1\n"}
