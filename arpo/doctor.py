"""Say whether this machine can run real desktops, how fast they are, and how to mend what is missing.

    python -m arpo.doctor

Looks at the Docker engine, the image, disk, memory and loopback ports, boots one desktop and times it, and boots a
small virtual machine, because /dev/kvm may be there and yet not boot any kernel.
"""

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil
from rich.console import Console
from rich.table import Table

from arpo.envs.containers import engine_facts, has_image
from arpo.envs.desktop import IMAGE, DockerDesktop
from arpo.errors import ArpoError
from arpo.session import Session
from arpo.types import Task

T = TypeVar("T")

DESKTOP_MB = 160
"""MiB of a desktop with two applications, measured; LibreOffice and a browser take 500."""
DISK_GB = 4.0
KVM_TIMEOUT_S = 20.0

_PROBE = """
    fa 31c0 8ed8 8ec0                          cli; ds = es = 0
    66bf00100000 0f22df                        cr3 = 0x1000
    b9000c 6631c0 fc 66f3ab                    three empty pages
    c70600100320 c70600200330 c70600308300     a table each, and 2 MiB of memory at its own address
    0f20e0 0c20 0f22e0                         cr4: physical address extension
    66b9800000c0 0f32 80cc01 0f30              efer: long mode
    0f01166c7c 0f20c0 660d01000080 0f22c0      descriptors; cr0: protection and paging
    ea577c0800                                 jump to 64-bit code
    b021 e6f4 f4                               out 0xf4, 0x21; halt
    0000000000000000 00000000009a2000          descriptors: none, 64-bit code
    0f00 5c7c0000                              their length and place
"""
BOOT_SECTOR = bytes.fromhex("".join(line[:47] for line in _PROBE.splitlines())).ljust(510, b"\0") + b"\x55\xaa"
"""Goes all the way to 64-bit code with paging, as every kernel does, and tells QEMU's debug-exit port from there.
Less proves nothing: there are KVMs that run firmware, in real mode, and none of today's guests."""
BOOTED = (0x21 << 1) | 1
"""The exit status that QEMU makes of what the boot sector writes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    good: bool
    said: str
    remedy: str = ""
    needed: bool = True
    """Whether the desktops of `env=desktop` need it."""


def examine() -> Iterator[Finding]:
    """Yield the findings, cheap ones first; what rests on something missing is left out."""
    engine = look_at_engine()
    yield engine
    yield look_at_memory()
    yield look_at_disk()
    yield look_at_ports()
    if engine.good:
        image = look_at_image()
        yield image
        if image.good:
            yield from boot_desktop()
    yield boot_with_kvm()


def look_at_engine() -> Finding:
    """Ask the Docker engine who it is."""
    try:
        said = engine_facts()
    except ArpoError as error:
        remedy = 'start one: eval "$(bash docker/start_engine.sh)" as root on Debian; elsewhere install Docker Engine'
        return Finding("engine", False, str(error), remedy)
    return Finding("engine", True, said)


def look_at_image() -> Finding:
    """Look for the desktop image."""
    if has_image(IMAGE):
        return Finding("image", True, IMAGE)
    return Finding("image", False, f"there is no {IMAGE}", "bash docker/build_image.sh")


def look_at_memory() -> Finding:
    """Say how many desktops fit into what is free."""
    available_mb = psutil.virtual_memory().available // 2**20
    fit = int(available_mb // DESKTOP_MB)
    said = f"{available_mb / 1024:.1f} GiB free, {fit} small desktops; {os.cpu_count()} cores are the nearer limit"
    return Finding("memory", fit >= 1, said, "end other programs, or use a machine with more memory")


def look_at_disk() -> Finding:
    """Look for room for images."""
    free_gb = shutil.disk_usage("/").free / 2**30
    return Finding("disk", free_gb >= DISK_GB, f"{free_gb:.0f} GiB free", f"make room: images take {DISK_GB:.0f} GiB")


def look_at_ports() -> Finding:
    """Connect to ourselves: desktops are reached through ports of the loopback interface."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=2).close()
    except OSError as error:
        return Finding("ports", False, str(error), "bring the loopback interface up: ip link set lo up")
    return Finding("ports", True, "loopback connects")


def boot_desktop() -> Iterator[Finding]:
    """Boot one desktop and time what a run does all the time."""
    task = Task(
        "doctor",
        "",
        config={
            "config": [{"type": "launch", "parameters": {"command": ["mousepad"]}}],
            "windows": ["Mousepad"],
            "evaluator": {"func": "infeasible"},
        },
    )
    try:
        booted_s, env = timed(DockerDesktop)
        try:
            first_s, observation = timed(lambda: env.reset(task))
            reset_s, _ = timed(lambda: env.reset(task))
        finally:
            env.close()
    except ArpoError as error:
        yield Finding(
            "desktop", False, str(error), "read what the container said; `docker logs` of a second one may help"
        )
        return
    size = f"{observation.width}x{observation.height}"
    said = f"healthy in {booted_s:.2f} s, an editor {first_s:.2f} s later, reset in {reset_s:.2f} s, {size}"
    yield Finding("desktop", True, said)


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Return how long a call took, in seconds, and what it gave."""
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def boot_with_kvm() -> Finding:
    """Run a boot sector in a virtual machine: only OSWorld's desktops need KVM."""
    name, needed = "kvm", False
    if not Path("/dev/kvm").exists():
        return Finding(name, False, "there is no /dev/kvm", "enable virtualisation, or pass it in", needed)
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return Finding(name, False, "/dev/kvm is not ours to open", "join the group that owns it", needed)
    qemu = shutil.which("qemu-system-x86_64")
    if qemu is None:
        said = "/dev/kvm is there, but without QEMU nobody can tell whether it boots anything"
        return Finding(name, False, said, "apt-get install qemu-system-x86", needed)
    status, trouble = run_boot_sector(qemu)
    if status == BOOTED:
        return Finding(name, True, "a virtual machine ran", needed=needed)
    said = f"/dev/kvm is there and boots nothing: {trouble}"
    return Finding(
        name, False, said, "use a machine with VMX or SVM; OSWorld's desktops run slowly with KVM=N", needed
    )


def run_boot_sector(qemu: str, accelerator: str = "kvm") -> tuple[int, str]:
    """Return QEMU's exit status, and what it said if it failed."""
    with tempfile.TemporaryDirectory() as directory:
        disk = Path(directory) / "disk"
        disk.write_bytes(BOOT_SECTOR)
        command = [qemu, "-accel", accelerator, "-cpu", "host" if accelerator == "kvm" else "max"]
        command += [
            "-m",
            "16",
            "-display",
            "none",
            "-monitor",
            "none",
            "-serial",
            "none",
            "-nic",
            "none",
            "-no-reboot",
        ]
        command += ["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04", "-drive", f"file={disk},format=raw"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=KVM_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return -1, f"it hung for {KVM_TIMEOUT_S:.0f} s"
    lines = done.stderr.strip().splitlines()
    return done.returncode, lines[-1] if lines else f"QEMU ended with status {done.returncode}"


def main() -> int:
    """Examine this machine and print the findings; 0 when `env=desktop` can run."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    table = Table("", "what", "found", "what to do", title="Real desktops on this machine")
    good = True
    with Session.start():
        for finding in examine():
            mark = "[green]ok[/]" if finding.good else "[red]missing[/]" if finding.needed else "[yellow]absent[/]"
            table.add_row(mark, finding.name, finding.said, "" if finding.good else finding.remedy)
            good &= finding.good or not finding.needed
    Console().print(table)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
