"""Our own desktop in Docker: a Debian with real applications that boots in about a second and needs no KVM."""

import secrets
from collections.abc import Iterator
from typing import Literal, get_args

from arpo.agent.actions import Action, CallUser, Drag, Fail, Finished, TypeText, Wait
from arpo.envs.desktop.task import DesktopTask, read_task, run_checks, run_steps
from arpo.envs.guest.client import Guest
from arpo.envs.guest.input import to_events
from arpo.envs.protocol import StepResult
from arpo.errors import ConfigError, EnvError
from arpo.host.container_spec import ContainerSpec
from arpo.host.containers import Container, Containers
from arpo.types import Observation, Task

ResetMode = Literal["in_place", "restart", "fresh"]
Network = Literal["closed", "open"]

IMAGE = "arpo/desktop:plain"
GUEST_PORT = 5000
CAPABILITIES = ("NET_ADMIN", "SETGID", "SETPCAP", "SETUID")
"""For the first process alone, which closes the network and then becomes a user without any."""
WINDOWS_TIMEOUT_S = 20.0
DRAG_S = 0.5
CHARACTER_S = 0.005
"""For each character of a text: the guest teaches its keyboard what it has not, some of it at a time."""


class DockerDesktop:
    """A `DesktopEnv` and `SolvableEnv`: one container with a desktop in it.

    Args:
        image: What `docker/build_image.sh` has built.
        screen: Width and height in pixels.
        reset: What an episode starts with. `in_place`: all programs are ended and all files of the user renewed,
            fastest; `restart`: the same container, with a new X server; `fresh`: a new container.
        network: `closed`: the guest reaches neither the network nor this machine. `open`: both.
        pause: Freeze the desktop between steps, so that it does not live on while the policy thinks.
        quiet_s: An observation waits until the screen has not changed and no program has computed for so long,
        settle_limit_s: but no longer than this; both in seconds. GTK presses a button 0.25 s after its key.
        wait_s: How long `Wait` sleeps.
        memory_mb: MiB that the desktop may use, its files included.
        disk_mb: MiB of files that the user may have, in the home directory and in /tmp each.
        cpus: Cores that the desktop may use.
        start_timeout_s: How long a container may take until it is healthy.

    Raises:
        ConfigError: If a value is impossible, or the image is missing.
        EnvError: If the desktop does not start.
    """

    def __init__(  # noqa: PLR0913 - one argument a YAML key
        self,
        *,
        image: str = IMAGE,
        screen: tuple[int, int] = (1280, 720),
        reset: ResetMode = "in_place",
        network: Network = "closed",
        pause: bool = False,
        quiet_s: float = 0.3,
        settle_limit_s: float = 3.0,
        wait_s: float = 1.0,
        memory_mb: int = 768,
        disk_mb: int = 64,
        cpus: float = 2.0,
        start_timeout_s: float = 30.0,
    ) -> None:
        if reset not in get_args(ResetMode) or network not in get_args(Network):
            raise ConfigError(
                f"reset must be one of {get_args(ResetMode)} and network one of {get_args(Network)}, "
                f"got {reset!r} and {network!r}"
            )
        self._screen = (int(screen[0]), int(screen[1]))
        self._reset_mode, self._pause = reset, pause
        self._quiet_s, self._settle_limit_s, self._wait_s = quiet_s, settle_limit_s, wait_s
        self._start_timeout_s = start_timeout_s
        self._environment = {"ARPO_SCREEN": f"{screen[0]}x{screen[1]}x24", "ARPO_NETWORK": network}
        self._limits = {"memory_mb": memory_mb, "cpus": cpus, "scratch_mb": scratch(disk_mb)}
        self._image = image
        self._container: Container | None = None
        self._guest: Guest | None = None
        self._task: DesktopTask | None = None
        self._last: Action | None = None
        self._used = False
        self._containers = Containers()
        try:
            self._boot()
        except BaseException:
            self.close()
            raise

    def reset(self, task: Task) -> Observation:
        """Renew the desktop, set the task up and wait for its windows."""
        wanted = read_task(task)
        self._renew()
        guest = self._running()
        self._used, self._task, self._last = True, wanted, None
        run_steps(wanted.config, guest)
        guest.wait_for(lambda: _has_windows(guest, wanted), f"the windows {wanted.windows}", WINDOWS_TIMEOUT_S)
        return self._observe(guest)

    def step(self, action: Action) -> StepResult:
        """Perform an action and look at the screen when it has come to rest."""
        guest = self._playing("step")
        self._resume()
        self._last = action
        guest.play(to_events(action, wait_s=self._wait_s), duration_s=self._duration_s(action))
        return StepResult(self._observe(guest))

    def evaluate(self) -> float:
        """Return 1.0 when the task is done, else 0.0; a desktop that was broken meanwhile is not judged."""
        guest, task = self._playing("evaluate"), self._task
        assert task is not None
        self._resume()
        guest.check_health()
        gave_up = isinstance(self._last, Fail | CallUser)  # as the official code, which has no word of its own for it
        if task.infeasible or gave_up:
            return float(task.infeasible and gave_up)
        return run_checks(task, guest)

    def close(self) -> None:
        """Remove the container."""
        self._task = None
        if self._guest is not None:
            self._guest.close()
            self._guest = None
        container, self._container = self._container, None
        if container is not None:
            self._containers.remove(container)
        self._containers.close()

    def solve(self) -> Iterator[Action]:
        """Yield the solution that the task file has.

        Raises:
            ConfigError: If it has none.
        """
        self._playing("solve")
        assert self._task is not None
        if not self._task.solution:
            raise ConfigError("the task has no scripted solution")
        yield from self._task.solution
        if not isinstance(self._task.solution[-1], Finished | Fail | CallUser):
            yield Finished()

    def _duration_s(self, action: Action) -> float:
        match action:
            case Wait():
                return self._wait_s
            case Drag():
                return DRAG_S
            case TypeText(text):
                return len(text) * CHARACTER_S
            case _:
                return 0.0

    def _renew(self) -> None:
        """Make the desktop as good as new; nothing to do before the first episode."""
        guest = self._running()
        self._resume()
        self._task = None
        if not self._used:
            return
        match self._reset_mode:
            case "in_place":
                guest.reset()
            case "restart":
                assert self._container is not None
                self._container.restart()
                self._connect()
            case "fresh":
                assert self._container is not None
                self._containers.remove(self._container)
                self._boot()
        self._used = False

    def _boot(self) -> None:
        self._secret = secrets.token_hex(16)
        environment = {**self._environment, "ARPO_SECRET": self._secret}
        spec = ContainerSpec(
            self._image,
            (GUEST_PORT,),
            environment,
            CAPABILITIES,
            **self._limits,  # type: ignore[arg-type]
        )
        self._container = self._containers.start(spec)
        self._connect()

    def _connect(self) -> None:
        assert self._container is not None
        if self._guest is not None:
            self._guest.close()
        self._guest = Guest(f"http://127.0.0.1:{self._container.port(GUEST_PORT)}", self._secret)
        try:
            self._guest.wait_until_healthy(self._start_timeout_s, self._container.is_running)
        except EnvError as error:
            raise EnvError("guest", f"{error}; {self._container.last_words()}") from error

    def _observe(self, guest: Guest) -> Observation:
        png = guest.screenshot(quiet_s=self._quiet_s, limit_s=self._settle_limit_s)
        if self._pause and self._container is not None:
            self._container.pause()
        return Observation(png, *self._screen)

    def _resume(self) -> None:
        if self._container is not None:
            self._container.resume()

    def _running(self) -> Guest:
        if self._guest is None:
            raise EnvError("reset", "the environment is closed; build a new one")
        return self._guest

    def _playing(self, call: str) -> Guest:
        if self._task is None:
            raise EnvError(call, f"{call} was called before reset, or after close")
        return self._running()


def scratch(disk_mb: int) -> dict[str, int]:
    """Return the directories that a guest may write to, and their sizes in MiB."""
    return {"/home/user": disk_mb, "/tmp": disk_mb, "/run/arpo": 40}  # a framebuffer of 4K is 32 MiB


def _has_windows(guest: Guest, task: DesktopTask) -> bool:
    titles = [window.title for window in guest.windows()]
    return all(any(wanted in title for title in titles) for wanted in task.windows)
