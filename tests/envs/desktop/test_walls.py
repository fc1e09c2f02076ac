"""The guest server as an agent sees it from inside: nothing of it can be read, traced, signalled or reached."""

import json

import pytest

from arpo.envs.desktop.env import DockerDesktop
from tests.envs.desktops import QUICK, docker, editor_task, needs_desktop

pytestmark = needs_desktop


@pytest.fixture(scope="module", params=["closed", pytest.param("open", marks=pytest.mark.long)])
def desktop(request):
    env = DockerDesktop(**QUICK, network=request.param)
    env.reset(editor_task())
    yield env
    env.close()


def in_guest(env, program):
    done = env.machine.guest.execute(["python3", "-c", program], timeout_s=60)
    assert done.returncode == 0, done.error
    return json.loads(done.output)


SCAN = """
import json, os, re
wanted = bytes.fromhex("{mirrored}")[::-1]
read, found = {{}}, []
def look(kind, path, content):
    read[kind] = read.get(kind, 0) + len(content)
    if wanted in content:
        found.append(path)
for pid in filter(str.isdecimal, os.listdir("/proc")):
    if int(pid) == os.getpid():
        continue
    for name in ("environ", "cmdline", "stack", "auxv", "syscall", "io"):
        try:
            look(name, f"/proc/{{pid}}/{{name}}", open(f"/proc/{{pid}}/{{name}}", "rb").read())
        except OSError:
            pass
    try:
        maps = open(f"/proc/{{pid}}/maps").read()
        memory = open(f"/proc/{{pid}}/mem", "rb", 0)
    except OSError:
        continue
    for line in maps.splitlines():
        begin, end = (int(number, 16) for number in line.split()[0].split("-"))
        try:
            memory.seek(begin)
            look("mem", f"/proc/{{pid}}/mem", memory.read(end - begin))
        except (OSError, OverflowError, ValueError):
            pass
for top, folders, names in os.walk("/"):
    folders[:] = [each for each in folders if os.path.join(top, each) not in ("/proc", "/sys")]
    for name in names:
        path = os.path.join(top, name)
        try:
            if os.path.isfile(path):
                look("files", path, open(path, "rb").read())
        except OSError:
            pass
print(json.dumps([read, found]))
"""


def scan(env, wanted: str):
    return in_guest(env, SCAN.format(mirrored=wanted.encode()[::-1].hex()))


def test_the_secret_is_in_no_memory_and_no_file_that_the_agent_can_read(desktop):
    read, found = scan(desktop, desktop.machine.secret)
    assert found == []
    assert read["mem"] > 2**20
    assert read["files"] > 2**26


def test_the_scan_finds_what_is_there(desktop):
    shown = "export TOKEN=open-sesame-4711; printf sesame-open-1147 > ~/a; exec sleep 100"
    desktop.machine.guest.launch(["sh", "-c", shown])
    assert any("/environ" in path or "/mem" in path for path in scan(desktop, "open-sesame-4711")[1])
    assert any(path.endswith("/user/a") for path in scan(desktop, "sesame-open-1147")[1])


TOUCH = """
import ctypes, json, os, signal
libc = ctypes.CDLL(None, use_errno=True)
done = []
for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
    if os.stat(f"/proc/{pid}").st_uid == os.getuid():
        continue
    name = open(f"/proc/{pid}/comm").read().strip()
    for number in (0, signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(pid, number)
            done.append([name, "signal"])
        except PermissionError:
            pass
    for request in (16, 0x4206):  # PTRACE_ATTACH, PTRACE_SEIZE
        if libc.ptrace(request, pid, None, None) == 0:
            done.append([name, "trace"])
    for file in ("mem", "environ", "maps", "fd", "cwd", "root"):
        for mode in (os.O_RDONLY, os.O_RDWR):
            try:
                os.close(os.open(f"/proc/{pid}/{file}", mode))
                done.append([name, file])
            except OSError:
                pass
    for limit in ("oom_score_adj", "comm"):
        try:
            open(f"/proc/{pid}/{limit}", "w").write("1000")
            done.append([name, limit])
        except OSError:
            pass
    done.append([name, "seen"])
print(json.dumps(done))
"""


def test_an_agent_can_neither_signal_nor_trace_the_server_nor_the_x_server(desktop):
    done = in_guest(desktop, TOUCH)
    assert {name for name, deed in done if deed == "seen"} >= {"python3", "Xvfb"}
    assert [each for each in done if each[1] != "seen"] == []
    desktop.machine.guest.check_health()


def test_the_server_keeps_only_the_rights_to_start_and_end_programs(desktop):
    status = docker("exec", desktop.machine.container.id, "sh", "-c", "cat /proc/$(pgrep -f ^python3)/status")
    rights = int(dict(line.split(":\t") for line in status.splitlines())["CapBnd"], 16)
    kept = {number for number in range(64) if rights >> number & 1}
    assert kept == {5, 6, 7, 8, 23}  # kill, setgid, setuid, setpcap, nice


SOCKETS = """
import json, socket
made = []
for family in range(64):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        try:
            socket.socket(family, kind).close()
            made.append(family)
        except OSError:
            pass
print(json.dumps(sorted(set(made))))
"""
RING = "import ctypes, json; print(json.dumps(ctypes.CDLL(None).syscall(425, 4, ctypes.create_string_buffer(120))))"


def test_no_socket_leads_past_the_network(desktop):
    assert in_guest(desktop, SOCKETS) == [1, 2, 10, 16]  # Unix, IPv4, IPv6, netlink; VSOCK is 40
    assert in_guest(desktop, RING) == -1


def test_an_agent_does_not_reach_the_guest_server(desktop):
    program = """
import json, socket, urllib.request
said = []
for host in ("127.0.0.1", "127.0.0.5", socket.gethostbyname(socket.gethostname())):
    try:
        urllib.request.urlopen(f"http://{host}:5000/health", timeout=2)
    except Exception as error:
        said.append(str(getattr(error, "code", "hung up")))
print(json.dumps(said))
"""
    assert in_guest(desktop, program) == ["hung up"] * 3
