"""OSWorld's desktops: its machine, its set-up steps, its graders."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from arpo.agent.actions import Action, TypeText, Wait
from arpo.agent.pyautogui import LONGEST_TYPING_S, to_pyautogui
from arpo.bounds import NotNegative, Positive, checked
from arpo.envs.guest.blame import blaming
from arpo.envs.guest.client import OURS, Deadlines, Guest, HangingProgramError, run_of_agent
from arpo.envs.guest.image import with_secret
from arpo.envs.guest.machine import Machine
from arpo.envs.guest.setup import Screen
from arpo.envs.guest.tasks import score_of_giving_up
from arpo.envs.osworld.chrome import ChromeTabs
from arpo.envs.osworld.files import FileCache
from arpo.envs.osworld.grader import Grader, GuestDoors
from arpo.envs.osworld.machine import CHROMIUM_PORT, SERVER_PORT, VLC_PORT
from arpo.envs.osworld.setup import OSWorldSetup
from arpo.envs.protocol import Execution, KnownDesktop, StepResult
from arpo.envs.screenshot import measured
from arpo.errors import ArpoError, ConfigError, EnvError, quoted
from arpo.host.cell import Cells, Files, Program
from arpo.host.container_spec import ContainerSpec
from arpo.host.containers import Containers
from arpo.host.trial import before_start
from arpo.types import Observation, Task

log = logging.getLogger(__name__)

DEADLINES = Deadlines(start_s=300.0, call_s=60.0, program_s=90.0, open_s=180.0, window_s=0.0)
"""Files travel within a call. A program ends before the 120 s after which OSWorld's server ends it and calls that an
answer. That server does not say which windows there are; the one of our image does."""
ACTION_S = 15.0
"""For an action in our own image; an agent that keeps the X server from it can wait no longer."""
QUIET_S, SETTLE_LIMIT_S = 0.3, 3.0
"""An observation of our own image waits until the desktop has rested so long, but no longer than this."""


@checked
class OSWorldEnv(KnownDesktop):
    """A `DesktopEnv`: one machine an episode, set up as the task file says and graded by OSWorld's own code.

    Args:
        cache: Directory of what tasks download; shared by the environments of a node.
        grader_python: Interpreter of the environment that `make osworld` made.
        guarded: Whether the guest server of the machine asks for a secret: OSWorld's does not, that of our image does.
        password: Of the user in the machine.
        pause_s: Seconds from an action to the screenshot of a machine whose guest server cannot wait until the desktop
            rests, as ours does. The official code: 0.5 in training, 1 in evaluation.
        boot_timeout_s: How long a machine may take to its first screenshot.
        grading_timeout_s: How long OSWorld's graders may take for one task.
    """

    example_tasks = "osworld_subset32"

    def __init__(  # noqa: PLR0913 - one argument a YAML key
        self,
        machine: ContainerSpec,
        *,
        cache: str | Path,
        grader_python: str | Path,
        guarded: bool = False,
        password: str = "password",
        pause_s: NotNegative = 1.0,
        boot_timeout_s: Positive = DEADLINES.start_s,
        grading_timeout_s: Positive = 60.0,
        containers: Callable[[], Containers] = Containers,
        cells: Callable[[Program], Cells] = Cells.of,
    ) -> None:
        for volume in machine.volumes:
            if not Path(volume.partition(":")[0]).exists():  # or the engine makes an empty directory of it
                raise ConfigError(
                    f"there is no {volume.partition(':')[0]} on this node: put OSWorld's disk image there"
                )
        window_s = OURS.window_s if guarded else DEADLINES.window_s
        deadlines = replace(DEADLINES, start_s=boot_timeout_s, window_s=window_s)
        before_start()
        self._spec, self._guarded = machine, guarded
        self._files = FileCache(cache)
        self._grader = Grader(grader_python, timeout_s=grading_timeout_s, cells=cells)
        self._password, self._pause_s = password, pause_s
        self._episode: tuple[Task, OSWorldSetup] | None = None
        self._last: Action | None = None
        self._used = self._boots = False
        with ExitStack() as on_failure:
            on_failure.callback(self._grader.close)
            self._machine = Machine(
                *self._new_guest(),
                server_port=SERVER_PORT,
                deadlines=deadlines,
                probe=Guest.screenshot,
                containers=containers,
            )
            on_failure.callback(self._machine.close)
            self._grader.wait_until_ready()
            on_failure.pop_all()

    @property
    def guest(self) -> Guest:
        """The client of the machine's server."""
        return self._machine.guest

    def reset(self, task: Task) -> Observation:
        """Take a new machine, unless this one is untouched, and set the task up."""
        self._episode = None
        guest = self._machine.guest  # a closed environment starts no machine
        if self._boots:
            self._machine.wait_until_healthy()
        elif self._used:
            self._machine.replace(*self._new_guest())
            guest = self._machine.guest
        self._used, self._boots, self._last = True, False, None
        first = self._observe()
        setup = OSWorldSetup(
            guest,
            task.id,
            Screen(first.width, first.height, self._password),
            chrome=ChromeTabs(self._machine.address(CHROMIUM_PORT)),
            files=self._files,
        )
        setup.prepare(task.config.get("config", []))
        self._episode = task, setup
        return self._observe()

    def step(self, action: Action) -> StepResult:
        """Perform an action as pyautogui in the machine, wait, and look.

        An action that does not succeed has no effect: the agent can have done something by which none succeeds.
        """
        self._playing("step")
        first, self._last = self._last is None, action
        with self._blame(agent_has_acted=not first):
            if trouble := self._perform(action):
                if first:
                    raise EnvError("step", f"the guest cannot perform {action}: {trouble}")
                log.info("the guest did not perform %s: %s", action, quoted(trouble))
            if not self._guarded:
                time.sleep(self._pause_s)
            return StepResult(self._observe())

    def _perform(self, action: Action) -> str:
        """Perform an action; return the reason if it did not succeed, else an empty text."""
        limit_s = ACTION_S if self._guarded else DEADLINES.call_s
        limit_s += LONGEST_TYPING_S if isinstance(action, TypeText) else 0.0
        try:
            done = self._machine.guest.execute(["python", "-c", to_pyautogui(action)], timeout_s=limit_s)
        except HangingProgramError as error:
            return str(error)
        return done.error.strip()[-500:] or "it says nothing" if done.returncode != 0 else ""

    def execute(self, command: str | Sequence[str], *, shell: bool = False) -> Execution:
        """Run a program as the user of the machine."""
        self._playing("execute")
        first, self._last = self._last is None, Wait()
        with self._blame(agent_has_acted=not first):
            return run_of_agent(self._machine.guest, command, shell=shell)

    def look(self) -> Observation:
        """Return the screen as it is now."""
        self._playing("look")
        with self._blame(agent_has_acted=self._last is not None):
            return self._observe()

    def evaluate(self) -> float:
        """Return OSWorld's score, and let the next episode's machine boot while the trainer works.

        Giving up is judged here, everything else by OSWorld's own code.
        """
        with self._blame(agent_has_acted=self._last is not None):
            score = self._score()
        self._episode = None
        with suppress(ArpoError):  # the score counts; without a machine the next reset fails, and a new one is built
            self._machine.begin(*self._new_guest())
            self._boots = True
        return score

    def _score(self) -> float:
        task, setup = self._playing("evaluate")
        evaluator = task.config["evaluator"]
        guest = self._machine.guest
        if self._guarded:
            guest.begin_judging()
            setup.put_scripts_in_again(evaluator)
        setup.conclude(evaluator.get("postconfig", []))
        score = score_of_giving_up(self._last, infeasible=evaluator["func"] == "infeasible")
        if score is not None:
            return score
        chromium, vlc = partial(self._machine.connect, CHROMIUM_PORT), partial(self._machine.connect, VLC_PORT)
        if self._guarded:
            chromium, vlc = partial(guest.tunnel, "chromium"), partial(guest.tunnel, "vlc")
        doors = GuestDoors(partial(self._machine.connect, SERVER_PORT), chromium, vlc, self._machine.secret)
        files: Files = {**self._files.gold_files(evaluator, task.id), **setup.saved}
        return self._grader.grade(evaluator, doors, files)

    def _blame(self, *, agent_has_acted: bool) -> AbstractContextManager[None]:
        return blaming(self._machine, agent_has_acted=agent_has_acted, ends_server=not self._guarded)

    def close(self) -> None:
        """Remove the machine."""
        self._episode = None
        self._machine.close()
        self._grader.close()

    def _new_guest(self) -> tuple[ContainerSpec, str]:
        """Return the container to start, and the secret of its guest server."""
        return with_secret(self._spec) if self._guarded else (self._spec, "")

    def _observe(self) -> Observation:
        quiet_s, limit_s = (QUIET_S, SETTLE_LIMIT_S) if self._guarded else (0.0, 0.0)
        png = self._machine.guest.screenshot(quiet_s=quiet_s, limit_s=limit_s)
        return Observation(png, *measured(png))

    def _playing(self, call: str) -> tuple[Task, OSWorldSetup]:
        if self._episode is None:
            raise EnvError(call, f"{call} was called before reset, or after close")
        return self._episode
