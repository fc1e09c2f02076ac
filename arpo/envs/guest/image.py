"""The container of one of our own desktop images: what it may do, write to and answer."""

import secrets
from dataclasses import replace

from arpo.host.container_spec import ContainerSpec, Scratch

GUEST_PORT = 5000
CAPABILITIES = ("KILL", "NET_ADMIN", "SETGID", "SETPCAP", "SETUID", "SYS_NICE")
"""For the first process, which closes the network, and for the guest server, which it becomes: that starts and ends
the programs of other users, and has a core before them. They have none of these."""
USER, DISPLAY_USER, JUDGE_GROUP = 1000, 900, 901
"""Ids in the image: programs run as the first, the X server as the second; what programs of checks judge by is open to
the third alone."""
MOST_FILES = ",nr_inodes=100000"
"""More would take a reset as long as a broken one may take."""
SYSCTLS = {"kernel.shm_rmid_forced": "1", "kernel.shmall": "16384", "kernel.msgmni": "16"}
"""Memory that outlives the programs that share it could not be freed when memory runs out: 64 MiB in pages of 4096
bytes, gone with the last program that has it; 16 queues of 16 KiB."""


def container_of(
    image: str,
    screen: tuple[int, int],
    *,
    network: str,
    memory_mb: int,
    disk_mb: int,
    cpus: float,
    processes: int = 512,
    answers: tuple[int, ...] = (),
) -> ContainerSpec:
    """Return the container of a desktop, with the limits of `DockerDesktop`; some of its programs answer on ports."""
    return ContainerSpec(
        image,
        ports=(GUEST_PORT, *answers),
        environment={
            "ARPO_SCREEN": f"{screen[0]}x{screen[1]}x24",
            "ARPO_NETWORK": network,
            **({"ARPO_ANSWERS": ", ".join(map(str, answers))} if answers else {}),
        },
        capabilities=CAPABILITIES,
        memory_mb=memory_mb,
        cpus=cpus,
        processes=processes,
        scratch=scratch(disk_mb),
        sysctls=SYSCTLS,
    )


def with_secret(spec: ContainerSpec) -> tuple[ContainerSpec, str]:
    """Return a container, and a new secret that only its guest server and the caller know."""
    secret = secrets.token_hex(16)
    return replace(spec, environment={**spec.environment, "ARPO_SECRET": secret}), secret


def scratch(disk_mb: int) -> dict[str, Scratch]:
    """Return the directories that a guest may write to."""
    return {
        "/home/user": Scratch(disk_mb, USER, MOST_FILES),
        "/tmp": Scratch(disk_mb, options=MOST_FILES),
        "/run/arpo": Scratch(8, USER),
        "/run/display": Scratch(40, DISPLAY_USER),  # a framebuffer of 4K is 32 MiB
        "/run/judge": Scratch(disk_mb, options=f",mode=2750,gid={JUDGE_GROUP}"),
    }
