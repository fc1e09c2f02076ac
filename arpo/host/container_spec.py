"""The specification of a container, and its form for the Docker engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from arpo.bounds import AtLeastOne, Positive, checked

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Scratch:
    """A directory in memory."""

    size_mb: int
    user: int = 0
    options: str = ""
    """More options of the mount, each behind a comma, such as `,mode=0750,gid=901`."""


@checked
@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """An image to start, and the limits of its container."""

    image: str
    ports: tuple[int, ...]
    """TCP ports of the guest that get a port of this machine each, on the loopback interface."""
    environment: Mapping[str, str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    """Everything else is dropped."""
    memory_mb: AtLeastOne = 1024
    """MiB, swap included; files in `scratch` count."""
    cpus: Positive = 2.0
    processes: AtLeastOne = 512
    scratch: Mapping[str, Scratch] = field(default_factory=dict)
    """Directories in memory, by path; with any of them, the rest of the file system is read-only."""
    sysctls: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    """`host path:guest path:ro`."""
    command: tuple[str, ...] = ()
    """In the place of the image's own."""
    network: bool = True
    """Whether it is on the engine's network; without it, there is nothing but itself."""


def engine_options(spec: ContainerSpec) -> dict[str, Any]:
    """Return a specification as the arguments of the Docker SDK."""
    return {
        "environment": dict(spec.environment),
        "ports": {f"{port}/tcp": (LOOPBACK, None) for port in spec.ports},
        "hostname": "desktop",  # in titles and prompts: screens must not differ by it
        "init": True,  # collects the children of applications that were killed
        "mem_limit": f"{spec.memory_mb}m",
        "memswap_limit": f"{spec.memory_mb}m",
        "nano_cpus": round(spec.cpus * 1e9),
        "pids_limit": spec.processes,
        "cap_drop": ["ALL"],
        "cap_add": list(spec.capabilities),
        "security_opt": ["no-new-privileges"],
        "read_only": bool(spec.scratch),
        "tmpfs": {
            path: f"rw,exec,nosuid,nodev,uid={each.user},gid={each.user},size={each.size_mb}m{each.options}"
            for path, each in spec.scratch.items()
        },
        "sysctls": dict(spec.sysctls),
        "devices": list(spec.devices),
        "volumes": list(spec.volumes),
        "command": list(spec.command) or None,
        "network_mode": "default" if spec.network else "none",
        "log_config": {"type": "json-file", "config": {"max-size": "1m", "max-file": "1"}},
    }
