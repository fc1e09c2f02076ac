"""A container with a guest server in it, from its start to its removal."""

import socket
from collections.abc import Callable

from arpo.envs.guest.client import Deadlines, Guest
from arpo.envs.guest.transport import CONNECT_TIMEOUT_S
from arpo.errors import EnvError
from arpo.host.container_spec import LOOPBACK, ContainerSpec
from arpo.host.containers import Container, Containers


class Machine:
    """The one container that an environment has at a time, and the client of the guest server in it.

    The constructor and every method raise `EnvError` where there is no container, or it or its guest does not start.
    A plain OSWorld guest demands no secret; the `probe` of our own one, which fails until it is healthy, greets it.
    """

    def __init__(
        self,
        spec: ContainerSpec,
        secret: str = "",
        *,
        server_port: int,
        deadlines: Deadlines,
        probe: Callable[[Guest], object] = Guest.greet,
        containers: Callable[[], Containers] = Containers,
    ) -> None:
        self._server_port = server_port
        self._deadlines = deadlines
        self._probe = probe
        self._container: Container | None = None
        self._guest: Guest | None = None
        self._containers = containers()
        try:
            self.replace(spec, secret)
        except BaseException:
            self.close()
            raise

    @property
    def guest(self) -> Guest:
        """The client of the guest server."""
        if self._guest is None:
            raise self._absent()
        return self._guest

    @property
    def container(self) -> Container:
        """The container."""
        if self._container is None:
            raise self._absent()
        return self._container

    def address(self, guest_port: int) -> str:
        """Return the address of a server in the guest."""
        return f"http://{LOOPBACK}:{self.container.port(guest_port)}"

    def connect(self, guest_port: int) -> socket.socket:
        """Return a connection to a server in the guest."""
        return socket.create_connection((LOOPBACK, self.container.port(guest_port)), CONNECT_TIMEOUT_S)

    def ended_for_memory(self) -> bool:
        """Return whether the container has ended because its programs took all of its memory."""
        return self._container is not None and self._container.ended_for_memory()

    def runs(self) -> bool:
        """Return whether the container runs, and nothing from outside keeps it from answering."""
        return self._container is not None and self._container.is_untouched()

    def replace(self, spec: ContainerSpec, secret: str = "") -> None:
        """Remove the container, start another one and wait until its guest is healthy."""
        self.begin(spec, secret)
        self.wait_until_healthy()

    def begin(self, spec: ContainerSpec, secret: str = "") -> None:
        """Remove the container and start another one, whose guest is not healthy yet."""
        self._remove()
        self.secret = secret
        self._container = self._containers.start(spec)
        self._connect()

    def restart(self) -> None:
        """End everything in the container, start it again and wait until its guest is healthy."""
        self.container.restart()
        self._connect()
        self.wait_until_healthy()

    def close(self) -> None:
        """Remove the container and close the connection to the engine; idempotent, and never raises."""
        self._remove()
        self._containers.close()

    def wait_until_healthy(self) -> None:
        """Wait for the guest of a container that was begun; the error has what the container wrote last."""
        try:
            self.guest.wait_until_healthy(self.container.is_running, self._probe)
        except EnvError as error:
            raise EnvError("guest", f"{error}; {self.container.last_words()}") from error

    def _connect(self) -> None:
        if self._guest is not None:
            self._guest.close()
        self._guest = Guest(self.address(self._server_port), self.secret, self._deadlines)

    def _remove(self) -> None:
        if self._guest is not None:
            self._guest.close()
            self._guest = None
        container, self._container = self._container, None
        if container is not None:
            self._containers.remove(container)

    @staticmethod
    def _absent() -> EnvError:
        return EnvError("reset", "the environment is closed, or its machine did not start; build a new one")
