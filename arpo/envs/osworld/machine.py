"""OSWorld's machine: its own, qemu in `happysixd/osworld-docker` with its disk image, or a container of our image."""

from dataclasses import replace
from pathlib import Path

from arpo.bounds import AtLeastOne, checked
from arpo.envs.guest.image import USER, container_of
from arpo.errors import ConfigError
from arpo.host.container_spec import ContainerSpec, Scratch

SERVER_PORT, CHROMIUM_PORT, VNC_PORT, VLC_PORT = 5000, 9222, 8006, 8080
DISK_IN_CONTAINER = "/System.qcow2"
DISK_SIZE = "32G"
"""Of the overlay that takes what an episode writes; sparse, and gone with the container. OSWorld's own number."""
QEMU_MEMORY_MB = 512
"""MiB beside the memory of the machine: qemu itself, its web console and its network server."""
PROCESSES = 2048
SCREEN = (1920, 1080)
"""Of OSWorld's machine, in whose pixels some of its steps click."""
TUNNEL = "/dev/net/tun"
"""Makes the machine's network; runc 1.2.0 to 1.2.3 lets no container use it that was not given it."""
AS_ROOT = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID")
CAPABILITIES = ("NET_ADMIN", "NET_RAW", "NET_BIND_SERVICE", "MKNOD", *AS_ROOT)
"""To make a tap device and a bridge for the machine, and what a process that starts as root needs."""


@checked
def virtual_machine(
    disk: str | Path | None, *, image: str, memory_mb: AtLeastOne = 4096, cores: AtLeastOne = 4, kvm: bool = True
) -> ContainerSpec:
    """Return the container of OSWorld's machine. Its disk is mounted read-only: each container begins with the same.

    Args:
        disk: OSWorld's `Ubuntu.qcow2`, at this path on every node that has environments.
        memory_mb: MiB of the machine; this default, and that of the cores, are OSWorld's own.
        kvm: Use the virtualisation of the processor. Without it the machine is emulated, some ten times slower.
    """
    if disk is None:
        raise ConfigError("OSWorld's machine needs its disk: set ARPO_OSWORLD_DISK to the path of Ubuntu.qcow2")
    environment = {"DISK_SIZE": DISK_SIZE, "RAM_SIZE": f"{memory_mb}M", "CPU_CORES": str(cores)}
    return ContainerSpec(
        image=image,
        ports=(SERVER_PORT, CHROMIUM_PORT, VNC_PORT, VLC_PORT),
        environment=environment if kvm else {**environment, "KVM": "N"},
        capabilities=CAPABILITIES,
        memory_mb=memory_mb + QEMU_MEMORY_MB,
        cpus=float(cores),
        processes=PROCESSES,
        devices=(TUNNEL, "/dev/kvm") if kvm else (TUNNEL,),
        volumes=(f"{Path(disk).expanduser().absolute()}:{DISK_IN_CONTAINER}:ro",),
    )


@checked
def container(
    image: str, *, memory_mb: AtLeastOne = 3072, disk_mb: AtLeastOne = 512, cores: AtLeastOne = 2
) -> ContainerSpec:
    """Return a container of the image that `docker/build_image.sh full` builds, with the limits of `DockerDesktop`.

    It needs neither KVM nor OSWorld's disk.
    """
    spec = container_of(
        image,
        SCREEN,
        network="closed",
        memory_mb=memory_mb,
        disk_mb=disk_mb,
        cpus=float(cores),
        processes=PROCESSES,
        answers=(CHROMIUM_PORT, VLC_PORT),
    )
    return replace(spec, scratch={**spec.scratch, "/run/user/1000": Scratch(8, USER)})  # where tasks look for a bus
