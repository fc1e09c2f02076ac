"""The examination of this machine: whether it can run real desktops, how fast, and how to mend what is missing.

    python -m arpo doctor
    python -m arpo doctor --look        # a picture of a desktop instead

Looks at the Docker engine, the image, disk, memory and loopback ports, boots one desktop and times it, and boots a
small virtual machine, because /dev/kvm may be there and yet not boot any kernel.
"""

import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from arpo.envs.desktop.env import IMAGE, DockerDesktop
from arpo.errors import ArpoError, quoted
from arpo.host.containers import OWN_ENGINE, ask_engine
from arpo.host.log_lines import log_to_terminal
from arpo.host.machine import SLOW, Resources, kvm_trouble
from arpo.host.session import Session
from arpo.types import Task

DESKTOP_MB = 160
"""MiB of a desktop with two applications, measured; LibreOffice and a browser take 500."""
DISK_GB = 4.0
OTHER_IMAGES = ("arpo/desktop:office", "arpo/desktop:full", "arpo/desktop:vscode")
PICTURE = Path("outputs/desktop.png")

log = logging.getLogger(__name__)


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
    engine = None
    try:
        engine = ask_engine().summary
        yield Finding("engine", True, engine)
    except ArpoError as error:
        yield Finding("engine", False, str(error), "make desktop; elsewhere than on Debian install Docker Engine")
    has = Resources.here(Path("/"))
    fit, free_gb = has.memory_mb // DESKTOP_MB, has.disk_mb / 1024
    memory = f"{has.memory_mb / 1024:.1f} GiB free, {fit} small desktops; {has.cores} cores are the nearer limit"
    yield Finding("memory", fit >= 1, memory, "end other programs, or use a machine with more memory")
    yield Finding("disk", free_gb >= DISK_GB, f"{free_gb:.0f} GiB free", f"make room: images take {DISK_GB:.0f} GiB")
    try:  # desktops are reached through ports of the loopback interface
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=2).close()
        yield Finding("ports", True, "loopback connects")
    except OSError as error:
        yield Finding("ports", False, str(error), "bring the loopback interface up: ip link set lo up")
    if engine:
        image = look_at_image()
        yield image
        if image.good:
            yield boot_desktop()
    trouble = kvm_trouble()  # of which only OSWorld's desktops have need
    remedy = f"for OSWorld use a machine with VMX or SVM, or {SLOW}"
    yield Finding("kvm", not trouble, trouble or "a virtual machine ran", remedy, needed=False)


def look_at_image() -> Finding:
    """Look for the desktop image, and for those with more applications, which some environments need."""
    if ask_engine(IMAGE).labels is None:
        return Finding("image", False, f"there is no {IMAGE}", "bash docker/build_image.sh")
    others = (image for image in OTHER_IMAGES if ask_engine(image).labels is not None)
    return Finding("image", True, ", ".join([IMAGE, *others]))


def boot_desktop() -> Finding:
    """Boot one desktop and time what a run does all the time."""
    task = with_windows("mousepad")
    times = [time.perf_counter()]
    try:
        with closing(DockerDesktop()) as env:
            times.append(time.perf_counter())
            for _ in range(2):
                screen = env.reset(task)
                times.append(time.perf_counter())
    except ArpoError as error:
        remedy = "read what the container said; `docker logs` of a second one may help"
        return Finding("desktop", False, str(error), remedy)
    booted_s, first_s, reset_s = (end - start for start, end in pairwise(times))
    said = f"healthy in {booted_s:.2f} s, an editor {first_s:.2f} s later, reset in {reset_s:.2f} s"
    return Finding("desktop", True, f"{said}, {screen.width}x{screen.height}")


def with_windows(*programs: str) -> Task:
    """Return a task that begins when each of these programs shows a window with its name."""
    launches = [{"type": "launch", "parameters": {"command": [program]}} for program in programs]
    windows = [{"mousepad": "Mousepad"}.get(program, program) for program in programs]
    return Task("doctor", "", config={"config": launches, "windows": windows, "evaluator": {"func": "infeasible"}})


def look() -> int:
    """Start a desktop, write a picture of it, and return the exit status."""
    log_to_terminal()
    try:
        with Session.start(), closing(DockerDesktop()) as env:
            screen = env.reset(with_windows("mousepad", "galculator"))
    except ArpoError as error:
        log.error("%s", error)  # noqa: TRY400 - the sentence is for a person, the traceback is not
        return 1
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_bytes(screen.screenshot)
    log.info("wrote %s: a desktop of %s, %dx%d", PICTURE, IMAGE, screen.width, screen.height)
    log.info("`python -m arpo view RUN --serve` follows a run; to start a desktop of your own:")
    if "DOCKER_HOST" not in os.environ and OWN_ENGINE.is_socket():
        log.info("export DOCKER_HOST=unix://%s", OWN_ENGINE)  # which ARPO finds by itself, and `docker` does not
    log.info("docker run --detach --init --publish 127.0.0.1::5000 %s", IMAGE)
    return 0


def main() -> int:
    """Examine this machine and print the findings; 0 when `env=desktop` can run."""
    log_to_terminal(logging.WARNING)
    table = Table("", "what", Column("found", overflow="fold"), title="Real desktops on this machine")
    good = True
    remedies: list[str] = []
    with Session.start():
        for finding in examine():
            mark = "[green]ok[/]" if finding.good else "[red]missing[/]" if finding.needed else "[yellow]absent[/]"
            table.add_row(mark, finding.name, Text(quoted(finding.said)))
            if not finding.good:
                remedies.append(f"{finding.name}: {quoted(finding.remedy)}")
            good &= finding.good or not finding.needed
    console = Console()
    console.print(table)
    for remedy in remedies:  # not in the table, which would cut what is to be copied
        console.print(Text(remedy), soft_wrap=True)
    return 0 if good else 1
