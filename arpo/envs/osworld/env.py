"""OSWorld's desktops: its machine, its set-up steps, its graders."""

import io
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from arpo.agent.actions import Action, TypeText
from arpo.agent.pyautogui import LONGEST_TYPING_S, to_pyautogui
from arpo.envs.guest.client import Guest
from arpo.envs.guest.setup import Screen
from arpo.envs.guest.tasks import score_of_giving_up
from arpo.envs.osworld.chrome import ChromeTabs
from arpo.envs.osworld.files import FileCache
from arpo.envs.osworld.grader import Grader, GuestAddress
from arpo.envs.osworld.machine import CHROMIUM_PORT, SERVER_PORT, VLC_PORT
from arpo.envs.osworld.setup import OSWorldSetup
from arpo.envs.protocol import StepResult
from arpo.errors import ConfigError, EnvError
from arpo.host.container_spec import ContainerSpec
from arpo.host.containers import Containers
from arpo.types import Observation, Task

HOST = "127.0.0.1"
CALL_TIMEOUT_S = 60.0
"""Of one request to the guest; its files travel within it, and its applications open within `Guest.patience_s`."""
TYPING_TIMEOUT_S = CALL_TIMEOUT_S + LONGEST_TYPING_S


class RunningMachine(Protocol):
    """A container as this environment needs it; `EnvError` when the engine fails."""

    def port(self, guest_port: int) -> int:
        """Return the port of this machine that leads to a port of the guest."""
        ...

    def is_running(self) -> bool:
        """Say whether it has not ended."""
        ...

    def last_words(self) -> str:
        """Return how it ended and what it wrote last."""
        ...


class Starter(Protocol):
    """Starts containers."""

    def start(self, spec: ContainerSpec) -> RunningMachine:
        """Start a container; it is not ready yet."""
        ...

    def remove(self, container: Any) -> None:
        """Remove a container that it has started, now or before the next start; never raises."""
        ...

    def close(self) -> None:
        """Close the connection to the engine."""
        ...


class OSWorldEnv:
    """A `DesktopEnv`: one machine an episode, set up as the task file says and graded by OSWorld's own code.

    Args:
        machine: What to start.
        cache: Directory of what tasks download; shared by the environments of a node.
        grader_python: Interpreter of the environment that `make osworld` made.
        password: Of the user in the machine.
        pause_s: Seconds from an action to the screenshot. The official code: 0.5 in training, 1 in evaluation.
        boot_timeout_s: How long a machine may take to its first screenshot.
        grading_timeout_s: How long OSWorld's graders may take for one task.
        containers: Connects to the engine.

    Raises:
        ConfigError: If a value is impossible, or something of the machine is not there.
        EnvError: If the machine does not start.
    """

    def __init__(
        self,
        machine: ContainerSpec,
        *,
        cache: str | Path,
        grader_python: str | Path,
        password: str = "password",
        pause_s: float = 1.0,
        boot_timeout_s: float = 300.0,
        grading_timeout_s: float = 240.0,
        containers: Callable[[], Starter] = Containers,
    ) -> None:
        if pause_s < 0:
            raise ConfigError(f"pause_s must not be negative, got {pause_s}")
        for volume in machine.volumes:
            if not Path(volume.partition(":")[0]).exists():  # or the engine makes an empty directory of it
                raise ConfigError(
                    f"there is no {volume.partition(':')[0]} on this node: put OSWorld's disk image there"
                )
        self._machine = machine
        self._files = FileCache(cache)
        self._grader = Grader(grader_python, timeout_s=grading_timeout_s)
        self._password, self._pause_s = password, pause_s
        self._boot_timeout_s = boot_timeout_s
        self._directory = Path(tempfile.mkdtemp(prefix="osworld-"))
        self._container: RunningMachine | None = None
        self._guest: Guest | None = None
        self._task: Task | None = None
        self._setup: OSWorldSetup | None = None
        self._last: Action | None = None
        self._used = self._closed = False
        self._containers = containers()
        try:
            self._boot()
        except BaseException:
            self.close()
            raise

    def reset(self, task: Task) -> Observation:
        """Start a new machine, unless this one is untouched, and set the task up."""
        if self._closed:
            raise EnvError("reset", "the environment is closed; build a new one")
        self._task = None
        if self._used:
            self._boot()
        guest = self._booted()
        self._used, self._last = True, None
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(mode=0o700)
        first = self._observe(guest)
        self._setup = self._task_setup(guest, task, first)
        self._setup.prepare(task.config.get("config", []))
        self._task = task
        return self._observe(guest)

    def step(self, action: Action) -> StepResult:
        """Perform an action as pyautogui in the machine, wait, and look."""
        guest, _ = self._playing("step")
        self._last = action
        limit_s = TYPING_TIMEOUT_S if isinstance(action, TypeText) else CALL_TIMEOUT_S
        done = guest.execute(["python", "-c", to_pyautogui(action)], timeout_s=limit_s)
        if done.returncode != 0:
            raise EnvError("step", f"the guest cannot perform {action}: {done.error.strip()[-500:]}")
        time.sleep(self._pause_s)
        return StepResult(self._observe(guest))

    def evaluate(self) -> float:
        """Return OSWorld's score: giving up is judged here, everything else by OSWorld's own code."""
        _, task = self._playing("evaluate")
        assert self._setup is not None
        evaluator = task.config["evaluator"]
        self._setup.conclude(evaluator.get("postconfig", []))
        score = score_of_giving_up(self._last, infeasible=evaluator["func"] == "infeasible")
        if score is not None:
            return score
        self._files.place_gold_files(evaluator, task.id, self._directory)
        return self._grader.grade(evaluator, self._address(), self._directory)

    def close(self) -> None:
        """Remove the machine and everything fetched from it."""
        if self._closed:
            return
        self._closed, self._task = True, None
        self._stop()
        self._containers.close()
        self._grader.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _boot(self) -> None:
        self._stop()
        self._container = self._containers.start(self._machine)
        self._guest = guest = Guest(f"http://{HOST}:{self._container.port(SERVER_PORT)}", timeout_s=CALL_TIMEOUT_S)
        try:
            guest.wait_until_healthy(self._boot_timeout_s, self._container.is_running, guest.screenshot)
        except EnvError as error:
            raise EnvError("reset", f"{error}; {self._container.last_words()}") from error
        self._used = False

    def _stop(self) -> None:
        if self._guest is not None:
            self._guest.close()
            self._guest = None
        container, self._container = self._container, None
        if container is not None:
            self._containers.remove(container)

    def _task_setup(self, guest: Guest, task: Task, first: Observation) -> OSWorldSetup:
        return OSWorldSetup(
            guest,
            task.id,
            Screen(first.width, first.height, self._password),
            chrome=ChromeTabs(f"http://{HOST}:{self._port(CHROMIUM_PORT)}"),
            files=self._files,
            directory=self._directory,
        )

    def _address(self) -> GuestAddress:
        return GuestAddress(HOST, self._port(SERVER_PORT), self._port(CHROMIUM_PORT), self._port(VLC_PORT))

    def _port(self, guest_port: int) -> int:
        assert self._container is not None
        return self._container.port(guest_port)

    def _observe(self, guest: Guest) -> Observation:
        png = guest.screenshot()
        with Image.open(io.BytesIO(png)) as image:
            return Observation(png, *image.size)

    def _booted(self) -> Guest:
        if self._guest is None:
            raise EnvError("reset", "the machine did not start; build a new environment")
        return self._guest

    def _playing(self, call: str) -> tuple[Guest, Task]:
        if self._task is None:
            raise EnvError(call, f"{call} was called before reset, or after close")
        return self._booted(), self._task
