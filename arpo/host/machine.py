"""The needs of desktops and what this machine has of them: KVM, memory, cores and disk."""

import fcntl
import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from arpo.bounds import AtLeastOne, NotNegativeInt, Positive, checked

log = logging.getLogger(__name__)

CREATE_VM = 0xAE01
"""A request of <linux/kvm.h>."""
SLOW = (
    "without it env.make_env.machine.kvm=false emulates the machines, some ten times slower: "
    "raise env.make_env.boot_timeout_s and env.reset_timeout_s with it"
)


def kvm_trouble(device: Path = Path("/dev/kvm"), cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return why OSWorld's machines do not run here, or nothing: KVM may open and answer, and a whole system hangs."""
    if not device.exists():
        return f"there is no {device}: enable virtualisation, or pass {device} into this container"
    if not os.access(device, os.R_OK | os.W_OK):
        return f"{device} is there, but not ours to open: join the group that owns it"
    if not re.search(r"^flags\b.*\b(vmx|svm)\b", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE):
        why = "the processor shows neither vmx nor svm, so this KVM does not boot the systems that OSWorld's disk has"
        return f"{device} is there, but {why}: use a machine with VMX or SVM"
    try:
        with device.open("rb+", buffering=0) as kvm:
            os.close(fcntl.ioctl(kvm, CREATE_VM, 0))
    except OSError as error:
        return f"{device} is there, but the kernel refuses a virtual machine: {error}: use a machine with VMX or SVM"
    return ""


@checked
@dataclass(frozen=True, slots=True)
class Budget:
    """The needs of a number of desktops, virtual machines or containers, all on one machine."""

    desktops: AtLeastOne
    memory_mb: AtLeastOne
    """MiB of each."""
    cores: AtLeastOne
    disk_mb: NotNegativeInt
    """MiB that each may write to the disk while an episode lasts; 0 where that stays in its memory."""
    cores_shared: Positive = 4.0
    """How many virtual cores may share one of this machine: they mostly wait."""
    overhead_mb: NotNegativeInt = 0
    """MiB beside the memory of each, for the program that runs it."""

    @property
    def each_mb(self) -> int:
        """MiB of memory that one takes."""
        return self.memory_mb + self.overhead_mb

    def trouble(self, has: "Resources") -> list[str]:
        """Return a line for each thing that cannot fit, with how many desktops would."""
        shared = f"({has.cores} shared by {self.cores_shared:g} each)"
        wanted = (
            ("GiB of memory", self.each_mb / 1024, has.memory_mb / 1024, "free"),
            ("virtual cores", self.cores, has.cores * self.cores_shared, shared),
            ("GiB of disk", self.disk_mb / 1024, has.disk_mb / 1024, "free"),
        )
        return [
            f"{self.desktops} desktops need {self.desktops * each:g} {name}, and there are {there:.0f} "
            f"{unit}: {int(there // each)} fit; set env.size, or spread them over nodes (docs/osworld.md)"
            for name, each, there, unit in wanted
            if self.desktops * each > there
        ]

    def needs(self) -> str:
        """Return the sum in one line."""
        cores = round(self.desktops * self.cores / self.cores_shared)
        return (
            f"{self.desktops} desktops: {Resources(self.desktops * self.each_mb, cores, self.desktops * self.disk_mb)}"
        )


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that a machine has to give."""

    memory_mb: int
    cores: int
    disk_mb: int
    """MiB free where the engine keeps containers."""

    def __str__(self) -> str:
        return f"{self.memory_mb / 1024:.0f} GiB of memory, {self.cores} cores, {self.disk_mb / 1024:.0f} GiB of disk"

    @classmethod
    def here(cls, engine_directory: Path) -> "Resources":
        """Look at this machine, and at the disk of the engine's containers, `/` if it is not to be seen from here."""
        directory = engine_directory if os.access(engine_directory, os.F_OK) else Path("/")
        free_mb = shutil.disk_usage(directory).free // 2**20
        return cls(psutil.virtual_memory().available // 2**20, len(os.sched_getaffinity(0)), free_mb)
