"""Sessions: real processes, really killed."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from arpo.errors import ConfigError
from arpo.host.files import take_lock
from arpo.host.processes import session_directory
from arpo.host.session import Session, reap
from tests.forks import ROOT
from tests.host.watchdogs import detached, end_watchdogs, kill, runs, wait_until, watchdogs

OWNER = """
import os, subprocess, sys, time
from pathlib import Path
from arpo.host.session import Session

session = Session.start(Path(sys.argv[1]))
children = {body}
print(session.directory, *children, flush=True)
{end}
"""
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)"
LABELLED_CHILD = "[subprocess.Popen(['sleep', '60']).pid]"


@pytest.fixture
def root(tmp_path):
    return tmp_path / "sessions"


@pytest.fixture
def session(root):
    with Session.start(root) as session:
        yield session


@pytest.fixture
def bystander():
    """A process of the same name outside of every session."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    kill(process)


@pytest.fixture
def start_owner(root):
    """Starts another process that opens a session, and returns it with its directory and its children."""
    owners = []

    def start(end="time.sleep(60)", body=LABELLED_CHILD):
        command = [sys.executable, "-c", OWNER.format(body=body, end=end), str(root)]
        owner = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        owners.append(owner)
        directory, *children = owner.stdout.readline().decode().split()
        return owner, Path(directory), [int(child) for child in children]

    yield start
    for owner in owners:
        kill(owner)
    reap(root)  # the children hold our pipes open
    for owner in owners:
        owner.communicate()


def test_a_session_leads_children_to_its_directory_and_after_close_nothing_is_left_and_the_environment_is_as_before(
    root,
):
    before, temporary_before = dict(os.environ), tempfile.gettempdir()
    session = Session.start(root)
    code = "import os, tempfile; print(os.environ['ARPO_SESSION'], tempfile.gettempdir())"
    label, temporary = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert label == session.label
    assert Path(temporary).is_relative_to(session.directory)
    assert Path(tempfile.mkdtemp()).is_relative_to(session.directory)
    assert session_directory() == session.directory
    assert session.directory.parent == root
    session.close()
    session.close()
    assert list(root.iterdir()) == []
    assert dict(os.environ) == before
    assert tempfile.gettempdir() == temporary_before


def test_the_default_directory_is_short_enough_for_the_sockets_of_ray_and_one_of_another_user_is_refused(
    monkeypatch, tmp_path, root
):
    if os.getuid() == 0:
        root.mkdir()
        os.chown(root, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to user"):
        Session.start(root if os.getuid() == 0 else Path("/"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "with" / "a" / "long" / "name" / "indeed"))
    monkeypatch.delenv("ARPO_SESSION_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 10)))
    with Session.start() as session:
        assert len(str(session.directory)) <= 38


def test_close_ends_labelled_children_and_theirs_also_one_that_ignores_sigterm_and_nobody_else(root, bystander):
    session = Session.start(root)
    child = subprocess.Popen(["sleep", "60"])
    stubborn = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    stubborn.stdout.readline()
    code = "import subprocess; print(subprocess.Popen(['env', '-i', 'sleep', '60']).pid, flush=True); input()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    grandchild = int(parent.stdout.readline())  # without the label
    session.close()
    assert child.wait(timeout=5) == -signal.SIGTERM
    assert stubborn.wait(timeout=5) == -signal.SIGKILL
    assert runs(bystander.pid)
    assert not runs(grandchild)
    stubborn.stdout.close()
    parent.communicate()


def test_close_finds_a_child_without_the_label_by_the_file_it_writes_and_spares_who_reads(root):
    session, sleep = Session.start(root), ["env", "-i", "sleep", "60"]
    with (session.directory / "log").open("w") as log:
        writer = subprocess.Popen(sleep, stdout=log)
    with (session.directory / "log").open() as log:
        reader = subprocess.Popen(sleep, stdin=log)
    wait_until(lambda: all(psutil.Process(each.pid).environ() == {} for each in (writer, reader)))
    session.close()
    assert writer.wait(timeout=5) == -signal.SIGTERM
    assert runs(reader.pid)
    kill(reader)


def test_only_one_session_can_be_open_in_a_process_and_a_forked_child_does_not_close_it(session, root):
    with pytest.raises(ConfigError, match="already has an open session"):
        Session.start(root)
    child = os.fork()
    if child == 0:
        session.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert session.directory.exists()


def test_a_session_in_a_session_lies_beside_it(session):
    code = "from arpo.host.session import Session\nwith Session.start() as inner: print(inner.directory)"
    inner = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip()
    assert Path(inner).parent == session.directory.parent
    assert not Path(inner).exists()
    assert session.directory.exists()


@pytest.mark.parametrize("end", ["raise RuntimeError('a crash')", "os.kill(os.getpid(), 2)"], ids=["crash", "Ctrl-C"])
def test_nothing_is_left_when_the_owner_ends(start_owner, root, end):
    owner, _, children = start_owner(end)
    owner.wait(timeout=60)
    assert list(root.iterdir()) == []
    assert not any(runs(child) for child in children)


FORKED_CHILD = "[os.fork() or (time.sleep(60), os._exit(0))]"


@pytest.mark.parametrize("body", [LABELLED_CHILD, FORKED_CHILD], ids=["executed", "forked"])
def test_after_kill_9_the_run_ends_without_another_start(start_owner, root, bystander, body):
    owner, directory, children = start_owner(body=body)
    _, living, others = start_owner()
    kill(owner)
    wait_until(lambda: not any(runs(child) for child in children) and not directory.exists())
    wait_until(lambda: len(watchdogs(root)) == 1)
    wait_until(lambda: {path.name for path in root.iterdir()} == {living.name, f"{living.name}.lock"})
    assert all(runs(other) for other in others)
    assert runs(bystander.pid)


def test_a_watchdog_ends_with_the_session_also_with_one_that_ends_at_once(root):
    Session.start(root).close()
    wait_until(lambda: not watchdogs(root))
    assert list(root.iterdir()) == []
    with Session.start(root):
        wait_until(lambda: detached(root))
    wait_until(lambda: not watchdogs(root))


def test_the_watchdog_of_an_inner_session_outlives_the_outer_one(session, start_owner, root):
    owner, directory, children = start_owner(STUBBORN)
    owner.stdout.readline()
    wait_until(lambda: len(detached(root)) == 2)
    session.close()  # kills the inner driver, which carries its mark
    owner.wait()
    wait_until(lambda: not directory.exists())
    assert not any(runs(child) for child in children)


def test_a_signal_to_the_whole_run_does_not_reach_the_watchdog(start_owner, root):
    owner, directory, children = start_owner()
    wait_until(lambda: detached(root))
    (watchdog,) = detached(root)
    assert os.getpgid(watchdog.pid) != os.getpgid(owner.pid)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        watchdog.send_signal(number)
    kill(owner)
    wait_until(lambda: not directory.exists() and not runs(children[0]))


@pytest.mark.parametrize("obstacle", ["held", "no file"])
def test_a_watchdog_waits_for_a_driver_that_is_slow_to_die_and_looks_again_after_an_error(start_owner, root, obstacle):
    owner, directory, children = start_owner()
    wait_until(lambda: detached(root))
    (watchdog,) = detached(root)
    watchdog.suspend()
    lock = root / f"{directory.name}.lock"
    if obstacle == "no file":
        lock.unlink()
        lock.mkdir()  # nobody can open it
    kill(owner)
    held = take_lock(lock) if obstacle == "held" else None  # as the last threads of the driver would hold it
    watchdog.resume()
    time.sleep(1)
    assert runs(children[0])
    lock.rmdir() if held is None else os.close(held)
    wait_until(lambda: not directory.exists() and not runs(children[0]))


INNER_RUN = """
import subprocess, time
from arpo.host.session import Session

session = Session.start()
print(session.directory, subprocess.Popen(['sleep', '60']).pid, flush=True)
time.sleep(60)
"""
INNER = f"""subprocess.Popen([sys.executable, '-c', {INNER_RUN!r}], stdout=subprocess.PIPE)
children = children.stdout.readline().decode().split()[1:]"""


def test_a_run_inside_the_killed_one_whose_watchdog_was_ended_too_leaves_nothing(start_owner, root):
    """A warm start is a run with a session of its own. Its watchdog is a child of it until it has detached itself."""
    owner, directory, children = start_owner(body=INNER)
    wait_until(lambda: len(detached(root)) == 2)
    (inner,) = [watchdog for watchdog in detached(root) if watchdog.cmdline()[-1] != str(directory)]
    inner.kill()
    kill(owner)
    wait_until(lambda: list(root.iterdir()) == [])
    assert not runs(children[0])


STUBBORN_CHILD = f"""[subprocess.Popen([sys.executable, '-c', {STUBBORN!r}], stdout=subprocess.PIPE)]
children[0].stdout.readline()
children = [children[0].pid]"""


def test_a_start_waits_for_the_end_of_a_killed_run_that_is_under_way(start_owner, root):
    owner, directory, children = start_owner(body=STUBBORN_CHILD)
    kill(owner)
    wait_until((directory / "reaping").exists)
    assert runs(children[0])
    with Session.start(root):
        assert not runs(children[0])


def test_after_kill_9_of_the_watchdog_too_the_next_start_cleans_up(start_owner, root, bystander):
    owner, directory, children = start_owner(body=FORKED_CHILD)
    end_watchdogs(root)
    kill(owner)
    assert directory.exists()
    assert all(runs(child) for child in children)
    with Session.start(root) as session:
        assert not any(runs(child) for child in children)
        assert {path.name for path in root.iterdir()} == {session.label, f"{session.label}.lock"}
    assert runs(bystander.pid)


def test_a_living_session_and_other_files_in_the_root_are_left_alone(start_owner, root):
    _, directory, children = start_owner()
    (root / "notes.lock").write_text("mine")
    with Session.start(root):
        assert directory.exists()
        assert all(runs(child) for child in children)
    assert {path.name for path in root.iterdir()} == {"notes.lock", directory.name, f"{directory.name}.lock"}


def test_a_session_whose_owner_cannot_be_seen_is_left_alone_while_its_lock_is_held(start_owner, root):
    owner, directory, children = start_owner()
    end_watchdogs(root)
    hidden = root / "999999999-1"  # as another container would see it: an id that means nobody here
    directory.rename(hidden)
    (root / f"{directory.name}.lock").rename(root / f"{hidden.name}.lock")
    assert reap(root) == 0
    assert hidden.exists()
    kill(owner)
    assert reap(root) == 1
    os.kill(children[0], signal.SIGKILL)  # renamed, the session has lost the label of its children
