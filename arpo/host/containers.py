"""Docker containers that belong to a run: started with limits, found again by labels, removed when the run is gone.

The one file that knows the Docker SDK. What an engine does not do, or none answers, is an `EnvError` of kind `guest`.
"""

import logging
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import tenacity

from arpo.errors import ConfigError, EnvError, env_boundary
from arpo.host.container_spec import ContainerSpec, engine_options
from arpo.host.processes import LABEL_VARIABLE, is_owner_alive, process_tag, session_directory

if TYPE_CHECKING:
    from docker import DockerClient

log = logging.getLogger(__name__)

CONTAINERS_MARKER = "containers"
"""A file in the directory of a session that has started containers: without it, no engine is asked."""
SESSION_LABEL = "arpo.session"
OWNER_LABEL = "arpo.owner"
HOST_LABEL = "arpo.host"
"""Machine and process namespace of the owner: only there its process id means something."""

OWN_ENGINE = Path("/var/lib/arpo-engine/docker.sock")
"""Place of the engine that `make desktop` starts (`docker/start_engine.sh`); asked when the usual one is silent."""
API_TIMEOUT_S = 30.0

ENGINE_PATIENCE_S = 20.0
"""How long a start waits for an engine that has answered before: a restart of it takes seconds."""
ENGINE_POLL_S = 0.1
FREEZE_ATTEMPTS = 10


class Container:
    """A running container."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._paused = False
        self._look()

    @property
    def id(self) -> str:
        """The engine's name of it."""
        return str(self._handle.id)

    def port(self, guest_port: int) -> int:
        """Return the port of this machine that leads to a port of the guest."""
        bindings = self._handle.ports.get(f"{guest_port}/tcp")
        if not bindings:
            raise EnvError("guest", f"container {self.id[:12]} has lost its port {guest_port}; it may have ended")
        return int(bindings[0]["HostPort"])

    def restart(self) -> None:
        """End everything in it and start it again, with empty scratch directories; its ports change."""
        with env_boundary("guest", f"restarting container {self.id[:12]}"):
            self._handle.restart(timeout=0)
        self._paused = False
        self._look()

    @tenacity.retry(
        retry=tenacity.retry_if_exception_message(match=".*unable to freeze"),  # version 1 of cgroups, a busy desktop
        stop=tenacity.stop_after_attempt(FREEZE_ATTEMPTS),
        wait=tenacity.wait_fixed(ENGINE_POLL_S),
        reraise=True,
    )
    def pause(self) -> None:
        """Freeze every process in it."""
        if not self._paused:
            with env_boundary("guest", f"pausing container {self.id[:12]}"):
                self._handle.pause()
            self._paused = True

    def resume(self) -> None:
        """Let it go on, if it is paused."""
        if self._paused:
            with env_boundary("guest", f"resuming container {self.id[:12]}"):
                self._handle.unpause()
            self._paused = False

    def is_running(self) -> bool:
        """Return whether it has not ended."""
        self._look()
        return str(self._handle.status) in ("created", "running", "restarting", "paused")

    def ended_for_memory(self) -> bool:
        """Return whether it has ended, and the kernel had killed a process of it because memory ran out."""
        self._look()
        state = self._handle.attrs["State"]
        return not state["Running"] and bool(state["OOMKilled"])

    def is_untouched(self) -> bool:
        """Return whether it runs, is not paused, and is on its network."""
        self._look()
        networks = self._handle.attrs["NetworkSettings"]["Networks"]
        return str(self._handle.status) == "running" and bool(networks)

    def last_words(self) -> str:
        """Return its end, or the programs that run in it, and its last output, for an error message."""
        self._look()
        state = self._handle.attrs["State"]
        with env_boundary("guest", f"reading the log of container {self.id[:12]}"):
            written = self._handle.logs(tail=5).decode(errors="replace").strip()
            how = f"ended with exit status {state['ExitCode']}"
            if state["Running"]:
                programs = self._handle.top(ps_args="-eo pid,comm")["Processes"]
                how = f"runs {', '.join(name for _, name in programs)}"
        return f"container {self.id[:12]} {how}: {written or 'silent'}"

    def _look(self) -> None:
        """Ask the engine what has become of it."""
        with env_boundary("guest", f"looking at container {self.id[:12]}"):
            self._handle.reload()


class Containers:
    """Starter of containers on the engine that `connect` finds; the first of a process removes what dead ones left."""

    _lock = threading.Lock()
    reaped = False
    """Whether this process has removed what dead ones left behind."""
    left_over: ClassVar[set[str]] = set()
    """Containers of this process that the engine has not removed when it should. They survive a restart of it, so that
    a second set of desktops would run beside the new ones until the run ends."""

    def __init__(self) -> None:
        patient = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(EnvError),
            stop=tenacity.stop_after_delay(ENGINE_PATIENCE_S),
            wait=tenacity.wait_fixed(ENGINE_POLL_S),
            reraise=True,
        )
        self._client = patient(connect) if Containers.reaped else connect()
        with Containers._lock:
            if not Containers.reaped:
                reap(self._client)
                Containers.reaped = True

    def start(self, spec: ContainerSpec) -> Container:
        """Start a container; it is not ready yet."""
        from docker.errors import ImageNotFound

        directory = session_directory()
        if directory is not None and directory.is_dir():  # on another node of a cluster it is not there
            (directory / CONTAINERS_MARKER).touch()
        try:
            with env_boundary("guest", f"starting a container of {spec.image}"):
                cores = int(self._client.info()["NCPU"])  # the engine starts nothing that may use more
                session = os.environ.get(LABEL_VARIABLE, "")
                labels = {SESSION_LABEL: session, OWNER_LABEL: process_tag(), HOST_LABEL: host_name()}
                options = engine_options(replace(spec, cpus=min(spec.cpus, cores)))
                handle = self._client.containers.create(spec.image, labels=labels, **options)
                try:
                    handle.start()
                    return Container(handle)
                except BaseException:
                    self.remove(handle)
                    raise
        except EnvError as error:
            if isinstance(error.__cause__, ImageNotFound):
                raise ConfigError(f"there is no image {spec.image} here; docker/build_image.sh makes ours") from error
            raise
        finally:
            with Containers._lock:  # not before: after a restart of the engine, a run waits for the new ones
                Containers.left_over.difference_update(_remove_each(self._client, Containers.left_over))

    def make_empty_image(self, name: str) -> None:
        """Make an image without a file, unless there is one of this name."""
        from docker.errors import ImageNotFound

        with env_boundary("guest", f"making the image {name}"):
            try:
                self._client.images.get(name)
            except ImageNotFound:
                repository, _, tag = name.rpartition(":")
                self._client.api.import_image_from_data(bytes(1024), repository=repository, tag=tag)

    def remove(self, container: Container) -> None:
        """Remove a container now, or, where the engine does not do it, after a later start; never raises."""
        if not _remove_each(self._client, [container.id]):
            with Containers._lock:
                Containers.left_over.add(container.id)

    def close(self) -> None:
        """Close the connection to the engine; containers stay."""
        self._client.close()


def connect(timeout_s: float = API_TIMEOUT_S) -> "DockerClient":
    """Return a connection to the engine that `DOCKER_HOST` names; without it, to the local one or else to ours."""
    from docker.errors import DockerException

    import docker

    with env_boundary("guest", "no Docker engine answers; `make desktop` starts one on Debian, as root"):
        try:
            return docker.from_env(timeout=timeout_s)
        except DockerException:
            if "DOCKER_HOST" in os.environ or not OWN_ENGINE.is_socket():
                raise
            return docker.DockerClient(f"unix://{OWN_ENGINE}", timeout=timeout_s)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """An engine's description of itself."""

    summary: str
    directory: Path
    labels: Mapping[str, str] | None
    """Those of the image that was asked for; None where the engine does not have it."""


def ask_engine(image: str = "", timeout_s: float = API_TIMEOUT_S) -> EngineFacts:
    """Return an engine's description of itself, and the labels of an image."""
    from docker.errors import ImageNotFound

    labels = None
    with connect(timeout_s).api as engine, env_boundary("guest", "asking the engine what it has"):
        facts = engine.info()
        with suppress(ImageNotFound):
            labels = (engine.inspect_image(image)["Config"]["Labels"] or {}) if image else None
    summary = f"Docker {facts['ServerVersion']}, {facts['Driver']}, {facts['NCPU']} cores"
    return EngineFacts(summary, Path(facts["DockerRootDir"]), labels)


def reap(client: "DockerClient") -> int:
    """Remove the containers that dead processes of this machine left; return how many there were."""
    orphans = [each.id for each in _listed(client) if not is_owner_alive(each.labels.get(OWNER_LABEL, ""))]
    removed = len(_remove_each(client, orphans))
    if removed:
        log.info("removed %d containers of dead runs", removed)
    return removed


def remove_session(label: str) -> int:
    """Remove every container of a session; return how many there were."""
    with closing(connect()) as client:
        return len(_remove_each(client, [each.id for each in _listed(client, f"{SESSION_LABEL}={label}")]))


def _listed(client: "DockerClient", *labels: str) -> list[Any]:
    """Return the containers of this machine with these labels, whether they run or not."""
    wanted = {"label": [f"{HOST_LABEL}={host_name()}", *labels]}
    with env_boundary("guest", "looking for containers of earlier runs"):
        return list(client.containers.list(all=True, ignore_removed=True, filters=wanted))


def _remove_each(client: "DockerClient", names: Iterable[str]) -> list[str]:
    """Remove containers, and return those that are gone: one that the engine cannot remove must not stop a run."""
    from docker.errors import APIError, NotFound

    gone = []
    for name in names:
        try:
            with env_boundary("guest", f"removing container {name[:12]}"), suppress(NotFound):
                client.api.remove_container(name, force=True, v=True)
        except EnvError as error:
            if not isinstance(error.__cause__, APIError) or error.__cause__.status_code != 409:  # it is being removed
                log.warning("%s", error)
                continue
        gone.append(name)
    return gone


def host_name() -> str:
    """Return a name of this machine and its process namespace, as containers are labelled with it."""
    namespace = os.readlink("/proc/self/ns/pid") if Path("/proc/self/ns/pid").is_symlink() else "pid"
    return f"{os.uname().nodename} {namespace}"
