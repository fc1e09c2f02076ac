"""A cell: what is judged in it reaches nothing of this machine, leaves nothing behind, and costs what a cell may."""

import socket
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import pytest

from arpo.envs.guest.blame import score_of
from arpo.errors import BlamedError, EnvError
from arpo.host.cell import Cell, CellDiedError, Cells, of_this_package
from tests.envs.desktops import docker, needs_cells

JUDGE = """
import ctypes, json, os, socket, subprocess, sys, time
from pathlib import Path

def prepare(request):
    return __file__.replace("judge.py", "foreign.py") if request.get("foreign") else None

def judge(request, directory, foreign):
    return {"said": eval(request["program"], {**globals(), "directory": Path(directory), "foreign": foreign})}
"""


FOREIGN = """
import json, os, socket, sys
connection, directory = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
connection.recv(1)
places = ("/scratch", "/scratch/files", "/dev/shm", "/own", "/tmp")
found = [place for place in places if os.access(place, os.W_OK)]
read = [name for name in os.listdir(directory) if os.access(os.path.join(directory, name), os.R_OK)]
descriptors = [name for name in os.listdir("/proc/self/fd") if int(name) > 2]
connection.sendall(json.dumps([os.getuid(), found, read, len(descriptors)]).encode())
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    judge = tmp_path_factory.mktemp("judge") / "judge.py"
    judge.write_text(JUDGE, encoding="utf-8")
    judge.parent.chmod(0o755)
    judge.with_name("foreign.py").write_text(FOREIGN, encoding="utf-8")
    return of_this_package(judge, memory_mb=256, cpu_s=3.0, wall_s=6.0)


@pytest.fixture(scope="module")
def cell(program):
    with closing(Cell(program)) as cell:
        yield cell


def ask(cell, program, files=None, doors=None, **more):
    outcome = cell.judge({"program": program, **more}, files or {}, doors or {})
    return outcome["reply"]["said"] if "reply" in outcome else outcome


pytestmark = needs_cells


def test_a_judgement_has_no_rights_and_sees_its_files_alone(cell, tmp_path):
    (tmp_path / "gold").write_bytes(b"b" * 3_000_000)
    files = {"saved.txt": b"a", "folder/gold": tmp_path / "gold"}
    read = "[(directory / 'saved.txt').read_text(), (directory / 'folder/gold').stat().st_size]"
    assert ask(cell, read, files) == ["a", 3_000_000]
    status = "dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines())"
    found = ask(cell, f"[os.getuid(), os.getgroups(), {status}['CapEff'], {status}['CapBnd'], {status}['NoNewPrivs']]")
    assert found[:2] == [65533, []]
    assert int(found[2], 16) == 0
    assert found[4] == "1"


def test_nothing_of_this_machine_can_be_read_that_is_no_program_and_nothing_but_the_scratch_folder_written(cell):
    secrets = ["/etc/passwd", f"{Path.home()}/.bashrc", "/var/run/docker.sock", "/home", "/proc/1/environ"]
    secrets.append(str(Path.cwd() / "README.md"))
    assert ask(cell, f"[path for path in {secrets} if os.access(path, os.R_OK)]") == []
    places = [str(Path(__file__).parents[2] / "arpo"), "/usr", "/cell", "/", "/tmp", "/dev/shm", "/scratch"]
    assert ask(cell, f"[path for path in {places} if os.access(path, os.W_OK)]") == ["/dev/shm", "/scratch"]


def test_there_is_no_network(cell):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        addresses = [("127.0.0.1", port), ("172.17.0.1", port), ("1.1.1.1", 53)]
        assert ask(cell, f"[socket.socket().connect_ex(tuple(each)) != 0 for each in {addresses}]") == [True] * 3
    assert ask(cell, "os.listdir('/sys/class/net')") == ["lo"]


def test_a_judgement_leaves_nothing_to_the_next(cell):
    left = "[Path('/scratch/left').write_text('a'), Path('/dev/shm/left').write_text('a'), "
    ask(cell, left + "subprocess.Popen(['/usr/bin/sleep', '99']).pid]")
    assert ask(cell, "[os.listdir('/scratch'), os.listdir('/dev/shm')]") == [["files"], []]
    sleeps = "each.isdigit() and 'sleep' in open(f'/proc/{each}/comm').read()"
    assert ask(cell, f"[each for each in os.listdir('/proc') if {sleeps}]") == []


def test_an_agent_s_code_is_another_user_s_and_cannot_touch_its_judge(cell):
    found = ask(cell, "[foreign.send(b'?'), json.loads(foreign.recv(1000))][1]", {"gold.py": b""}, foreign=True)
    assert found == [65532, [], [], 2]  # the connection, and the folder that it lists


def test_a_cell_in_which_code_of_an_agent_has_run_is_used_no_more(program):
    cells = Cells.of(program)
    try:
        cells.wait_until_ready()
        (first,) = cells._idle
        assert "reply" in cells.judge({"program": "1", "foreign": True}, {}, {})
        assert cells._idle == []
        assert first._container is None
    finally:
        cells.leave()


@pytest.mark.parametrize(
    "code",
    [
        "next(iter(int, 1) for _ in iter(int, 1))",
        "bytearray(2**30)",
        "[os.fork() or time.sleep(9) for _ in range(300)]",
        "os.kill(os.getpid(), 9)",
        "os._exit(0)",
        "sys.exit(0)",
        "1 / 0",
        "ctypes.string_at(0)",
        "Path('/scratch/big').write_bytes(bytes(200 * 2**20))",
        "time.sleep(60)",
    ],
    ids=["a core", "memory", "processes", "kill", "exit", "leave", "an error", "a crash", "a disk", "a wait"],
)
def test_what_takes_more_than_a_cell_has_is_blamed_and_the_next_judgement_goes_well(cell, code):
    with pytest.raises(BlamedError, match="status -9" if "sleep(60)" in code else None) as error:
        score_of(cell.judge({"program": code}, {}, {}))
    assert error.value.kind == "excess"
    assert ask(cell, "1") == 1


def test_a_door_leads_to_one_server_and_only_while_something_is_judged(cell):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.sendall(connection.recv(100).upper())

        threading.Thread(target=answer, daemon=True).start()
        doors = {"server": (5000, lambda: socket.create_connection(server.getsockname()))}
        say = "(lambda it: [it.sendall(b'hello'), it.recv(100).decode()][1])"
        say += "(socket.create_connection(('127.0.0.1', 5000)))"
        assert ask(cell, say, doors=doors) == "HELLO"
        # without doors, the socket of the way out is there, and leads nowhere
        way_out = "(lambda it: [it.connect('/cell/door'), it.sendall(b'server\\n'), it.recv(10).decode()][2])"
        way_out += "(socket.socket(socket.AF_UNIX))"
        assert ask(cell, way_out) == ""


def test_a_cell_that_is_killed_says_so_and_is_replaced_and_the_judgement_made_again(program):
    with closing(Cell(program)) as cell:
        docker("kill", cell._container.id)
        with pytest.raises(CellDiedError):
            cell.judge({"program": "1"}, {}, {})
    cells = Cells.of(program)
    try:
        cells.wait_until_ready()
        (first,) = cells._idle
        docker("kill", first._container.id)
        assert cells.judge({"program": "1"}, {}, {})["reply"] == {"said": 1}
    finally:
        cells.leave()


def test_environments_share_cells_and_the_last_one_removes_them(program):
    first, second = Cells.of(program), Cells.of(program)
    assert first is second
    first.wait_until_ready()
    (cell,) = first._idle
    first.leave()
    assert docker("inspect", cell._container.id)
    container, home = cell._container.id, cell._home
    second.leave()
    assert container[:12] not in docker("ps", "-aq")
    assert not home.exists()


def test_a_cell_starts_below_a_long_path_and_a_program_that_does_not_is_said_with_its_own_words(
    program, tmp_path, monkeypatch
):
    bad = tmp_path / "bad.py"
    bad.write_text("raise ValueError('no numpy here')", encoding="utf-8")
    with pytest.raises(EnvError, match=r"no cell to judge in has come up: .*no numpy here"):
        Cell(of_this_package(bad))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 30)))
    Path(tempfile.gettempdir()).mkdir()
    with closing(Cell(program)) as cell:
        assert ask(cell, "1") == 1
