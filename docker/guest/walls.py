"""The walls between this server and the programs of the desktop: other users, no rights, and fewer system calls."""

import ctypes
import grp
import os
import platform
import pwd
import signal
import struct
import threading
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

USER = pwd.getpwnam("user")
"""Owns the home directory; programs, and the window manager that starts some of them, run as this user."""
DISPLAY = pwd.getpwnam("display")
"""Owns the X server, so that no program can stop it or write to its framebuffer."""

_X_FIRST, _PROGRAMS_FIRST = "800", "900"
"""Where memory runs out, programs go before the X server, and the X server before this server. A program may lower its
own number to 0, and then the X server goes first: that ends the session, and with it all programs."""
_POWERLESS = ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
_ALONE = ("--clear-groups", *_POWERLESS)
AS_DISPLAY = ("choom", "-n", _X_FIRST, "--", "setpriv", "--reuid=display", "--regid=display", *_ALONE)
AS_USER = ("choom", "-n", _PROGRAMS_FIRST, "--", "setpriv", "--reuid=user", "--regid=user", *_ALONE)
"""Before the command of a process: whose it is, with which rights, and when it goes where memory runs out."""
JUDGE_GROUPS = (grp.getgrnam("judge").gr_gid, USER.pw_gid)
"""Of programs of checks, beside the group of each: the first one may enter the folder of what they judge by."""

END_LIMIT_S = 10.0

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 4, 22, 24
_SECCOMP_MODE_FILTER = 2
_LAST_CAPABILITY = 40
_EAFNOSUPPORT, _ENOSYS = 97, 38
_FAMILIES = (1, 2, 10, 16)
"""Of sockets that may be made: Unix, IPv4, IPv6 and netlink. VSOCK would lead past the network's filter."""
_CALLS = {"x86_64": (0xC000003E, 41, (101, 310, 311)), "aarch64": (0xC00000B7, 198, (117, 270, 271))}
"""Machines, with the kernel's number of their system calls, that of `socket` among these, and those by which a process
takes another one over: `ptrace`, `process_vm_readv`, `process_vm_writev`."""
_IO_URING_SETUP, _PIDFD_GETFD = 425, 438
"""The first one makes sockets without `socket`, the other one takes them from other processes."""
_X32_CALLS = 0x40000000


class ProcessesLeftError(Exception):
    """Raised when a process does not end."""


def close_memory() -> None:
    """Let no process look into this one, write to it or trace it, whatever its owner."""
    _call(_LIBC.prctl, _PR_SET_DUMPABLE, 0, 0, 0, 0)


def close_calls() -> None:
    """Refuse the families of sockets that no desktop needs, and to trace, here and in every process that starts later.

    A filter beside the one of the container engine, which could be extended only by a copy of the whole of it.
    """
    machine, socket, tracing = _CALLS[platform.machine()]
    refused = (_IO_URING_SETUP, _PIDFD_GETFD, *tracing)
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    number, architecture, first_argument = 0, 4, 16  # places in `struct seccomp_data`
    allow, refuse = 0x7FFF0000, 0x00050000
    families = [(equal, len(_FAMILIES) - at, 0, family) for at, family in enumerate(_FAMILIES)]
    program = [
        (load, 0, 0, architecture),
        (equal, 0, len(refused) + 2, machine),  # another one has other numbers, by which everything could be had
        (load, 0, 0, number),
        (at_least, len(refused), 0, _X32_CALLS),
        *((equal, len(refused) - 1 - at, int(each == refused[-1]), each) for at, each in enumerate(refused)),
        (answer, 0, 0, refuse | _ENOSYS),
        (equal, 0, len(_FAMILIES) + 2, socket),
        (load, 0, 0, first_argument),
        *families,
        (answer, 0, 0, refuse | _EAFNOSUPPORT),
        (answer, 0, 0, allow),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    described = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))
    _call(_LIBC.prctl, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(described), 0, 0)


@contextmanager
def files_of(owner: pwd.struct_passwd) -> Iterator[None]:
    """Touch files as another user does, in this thread alone: links of that user lead nowhere else, and new files are
    that user's."""
    with _touching_as(owner.pw_uid, owner.pw_gid):
        yield


@contextmanager
def owner_of(pid: int) -> Iterator[None]:
    """Look at a process as its owner does, in this thread alone: at its program, its memory map and its open files.

    Raises:
        OSError: If it has ended.
    """
    found = os.stat(f"/proc/{pid}")
    with _touching_as(found.st_uid, found.st_gid):
        yield


@contextmanager
def _touching_as(user: int, group: int) -> Iterator[None]:
    _LIBC.setfsgid(group)
    _LIBC.setfsuid(user)
    try:
        yield
    finally:
        _LIBC.setfsuid(os.geteuid())
        _LIBC.setfsgid(os.getegid())


def as_judge(group: int) -> tuple[str, ...]:
    """Return the start of a process of the user that no other process of the user can trace."""
    groups = ",".join(map(str, JUDGE_GROUPS))
    own = ("setpriv", "--reuid=user", f"--regid={group}", f"--groups={groups}", *_POWERLESS)
    return (
        "choom",
        "-n",
        _PROGRAMS_FIRST,
        "--",
        *own,
        "env",
        "PYTHONNOUSERSITE=1",
        "PYTHONSAFEPATH=1",
        "PIP_CONFIG_FILE=/dev/null",
    )


def become_user(group: int | None) -> None:
    """Make this process one of the user's, as `AS_USER` does for a new one, or as `as_judge` does, in a group.

    It stays closed to all others: nothing is executed in its place.
    """
    Path("/proc/self/oom_score_adj").write_text(_PROGRAMS_FIRST)
    for capability in range(_LAST_CAPABILITY + 1):
        _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # a kernel may know fewer
    os.setgroups([] if group is None else JUDGE_GROUPS)
    os.setresgid(*[USER.pw_gid if group is None else group] * 3)
    os.setresuid(*[USER.pw_uid] * 3)
    close_memory()


def end_everything() -> None:
    """Kill all processes at once, but for this one and the first: not even one that forks for ever escapes that.

    Raises:
        ProcessesLeftError: If one does not end.
    """
    deadline = time.monotonic() + END_LIMIT_S
    while True:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        if not (left := [pid for pid, _, state in processes() if pid not in (1, os.getpid()) and state not in "ZX"]):
            return
        if time.monotonic() > deadline:
            raise ProcessesLeftError(f"processes do not end: {left[:10]}")
        time.sleep(0.002)


def processes(owners: Container[int] = ()) -> Iterator[tuple[int, int, str]]:
    """Yield id, user and state of every process, or of those of some users."""
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with suppress(OSError):  # it ended while we looked
                if (owner := entry.stat().st_uid) in owners or not owners:
                    yield int(entry.name), owner, status(entry.path)[0]


def anything_runs() -> bool:
    """Say whether a program, the window manager or the X server computes, waits for a core, or for a disk."""
    return any(state in "RD" for _, _, state in processes((USER.pw_uid, DISPLAY.pw_uid)))


def go_first() -> None:
    """Let this thread have a core before every other one of the container, where the engine allows it."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -20)


def at_least_run(number: int) -> bool:
    """Say whether so many threads of the user compute or wait for a core."""
    if int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) < number:  # of the whole machine
        return False
    running = 0
    for pid, _, _ in processes((USER.pw_uid,)):
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                running += status(f"/proc/{pid}/task/{thread}")[0] == "R"
                if running >= number:
                    return True
    return False


def worked_s(process: str) -> float:
    """Return the seconds for which a process, or a thread, had a core."""
    return sum(map(int, status(process)[11:13])) / os.sysconf("SC_CLK_TCK")


def status(process: str) -> list[str]:
    """Return the kernel's fields of a process or a thread at a place below /proc, from its state on.

    Its name stands before that, and the process chooses it: bytes that are no text, and any number of brackets.
    """
    return Path(process, "stat").read_bytes().rpartition(b") ")[2].decode().split()


def _call(function, *arguments: object) -> None:
    if function(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
