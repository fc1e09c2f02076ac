"""Our own desktop in Docker: a Debian with real applications that boots in about a second and needs no KVM."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from arpo.agent.actions import Action, Call, Drag, Finished, Terminal, TypeText, Wait
from arpo.bounds import AtLeastOne, NotNegative, Positive, checked
from arpo.envs.desktop.functions import FUNCTIONS, check_functions, perform
from arpo.envs.desktop.tasks import DesktopTask, place, read_task
from arpo.envs.guest.blame import blaming, score_of
from arpo.envs.guest.certificate import Window
from arpo.envs.guest.client import OURS, Guest, poll_until, run_of_agent
from arpo.envs.guest.image import GUEST_PORT, container_of, with_secret
from arpo.envs.guest.input import to_events
from arpo.envs.guest.machine import Machine
from arpo.envs.guest.setup import Screen, TaskSetup
from arpo.envs.guest.tasks import score_of_giving_up
from arpo.envs.protocol import Execution, KnownDesktop, StepResult
from arpo.envs.screenshot import most_bytes
from arpo.errors import ConfigError, EnvError
from arpo.host.cell import Cells, of_this_package
from arpo.host.trial import before_start
from arpo.types import Observation, Task

ResetMode = Literal["in_place", "restart", "fresh"]
Network = Literal["closed", "open"]

IMAGE = "arpo/desktop:plain"
JUDGE = Path(__file__).with_name("judge_main.py")
DRAG_S = 0.5
CHARACTER_S = 0.005
"""For each character of a text: the guest teaches its keyboard what it has not, some of it at a time."""


@checked
class DockerDesktop(KnownDesktop):
    """A `DesktopEnv` and `SolvableEnv`: one container with a desktop in it.

    Args:
        image: What `docker/build_image.sh` has built.
        screen: Width and height in pixels.
        reset: What an episode starts with. `in_place`: all processes are ended, all files of the user renewed and the
            desktop compared with a new one, fastest; `restart`: the same container, started again; `fresh`: a new one.
        network: `closed`: the guest reaches neither the network nor this machine. `open`: both.
        pause: Freeze the desktop between steps, so that it does not live on while the policy thinks.
        quiet_s: An observation waits until the screen has not changed and no program has computed for so long,
        settle_limit_s: but no longer than this; both in seconds. GTK presses a button 0.25 s after its key.
        wait_s: How long `Wait` sleeps.
        memory_mb: MiB that the desktop may use, its files included.
        disk_mb: MiB of files that the user may have, in the home directory and in /tmp each.
        cpus: Cores that the desktop may use.
        start_timeout_s: How long a container may take until it is healthy,
        window_timeout_s: and the applications of a task until their windows are there.
        functions: Whether the agent may call `arpo.envs.desktop.functions.FUNCTIONS` beside mouse and keyboard.
    """

    example_tasks = "desktop32"

    def __init__(  # noqa: PLR0913 - one argument a YAML key
        self,
        *,
        image: str = IMAGE,
        screen: tuple[int, int] = (1280, 720),
        reset: ResetMode = "in_place",
        network: Network = "closed",
        pause: bool = False,
        quiet_s: NotNegative = 0.3,
        settle_limit_s: NotNegative = 3.0,
        wait_s: NotNegative = 1.0,
        memory_mb: AtLeastOne = 768,
        disk_mb: AtLeastOne = 64,
        cpus: Positive = 2.0,
        start_timeout_s: Positive = OURS.start_s,
        window_timeout_s: NotNegative = OURS.window_s,
        functions: bool = False,
    ) -> None:
        self._screen = (int(screen[0]), int(screen[1]))
        self._reset_mode, self._pause = reset, pause
        self._quiet_s, self._settle_limit_s, self._wait_s = quiet_s, settle_limit_s, wait_s
        self._spec = container_of(
            image, self._screen, network=network, memory_mb=memory_mb, disk_mb=disk_mb, cpus=cpus
        )
        self._episode: tuple[Task, DesktopTask, TaskSetup] | None = None
        self._last: Action | None = None
        self._used = False
        self._functions = FUNCTIONS if functions else ()
        deadlines = replace(OURS, start_s=start_timeout_s, window_s=window_timeout_s)
        before_start()
        self._cells: Cells | None = Cells.of(of_this_package(JUDGE, memory_mb=512, wall_s=25.0))
        with ExitStack() as on_failure:
            on_failure.callback(self._cells.leave)
            self.machine = Machine(*with_secret(self._spec), server_port=GUEST_PORT, deadlines=deadlines)
            on_failure.callback(self.machine.close)
            self._cells.wait_until_ready()
            if functions:
                check_functions(self.machine.guest, self._spec.image)
            on_failure.pop_all()

    @property
    def guest(self) -> Guest:
        """The client of the guest server."""
        return self.machine.guest

    def reset(self, task: Task) -> Observation:
        """Renew the desktop, set the task up and wait for its windows."""
        wanted = read_task(task)
        self._renew()
        guest = self.machine.guest
        setup = TaskSetup(guest, task.id, Screen(*self._screen))
        self._used, self._last = True, None
        place(guest, wanted.files)
        setup.prepare(wanted.config)

        def has_windows() -> bool:
            titles = guest.titles()
            return all(any(window in title for title in titles) for window in wanted.windows)

        guest.wait_for(has_windows, f"the windows {wanted.windows}")
        guest.check_health()  # what is used up from here on, the policy has used up
        self._episode = task, wanted, setup
        return self._observe()

    def step(self, action: Action) -> StepResult:
        """Perform an action and look at the screen when it has come to rest."""
        self._playing("step")
        self.machine.container.resume()
        acted, self._last = self._last is not None, action
        with blaming(self.machine, agent_has_acted=acted):
            if isinstance(action, Call):
                perform(action, self._functions, self.machine.guest)
            else:
                self.machine.guest.play(to_events(action, wait_s=self._wait_s), duration_s=self._duration_s(action))
            return StepResult(self._observe())

    def execute(self, command: str | Sequence[str], *, shell: bool = False) -> Execution:
        """Run a program as the user of the desktop."""
        self._playing("execute")
        self.machine.container.resume()
        acted, self._last = self._last is not None, Wait()
        with blaming(self.machine, agent_has_acted=acted):
            return run_of_agent(self.machine.guest, command, shell=shell)

    def look(self) -> Observation:
        """Return the screen as it is once it has come to rest."""
        self._playing("look")
        self.machine.container.resume()
        with blaming(self.machine, agent_has_acted=self._last is not None):
            return self._observe()

    def evaluate(self) -> float:
        """Return 1.0 when the task is done, else 0.0; a desktop that the policy has destroyed is not judged."""
        with blaming(self.machine, agent_has_acted=self._last is not None):
            task, wanted, setup = self._playing("evaluate")
            self.machine.container.resume()
            self.machine.guest.check_health()
            self.machine.guest.begin_judging()
            setup.conclude(wanted.postconfig)
            score = score_of_giving_up(self._last, infeasible=wanted.infeasible)
            if score is not None:
                return score
            assert self._cells is not None
            request = {"id": task.id, "config": task.config, "secret": self.machine.secret}
            doors = {"server": (GUEST_PORT, partial(self.machine.connect, GUEST_PORT))}
            return score_of(self._cells.judge(request, {}, doors))

    def close(self) -> None:
        """Remove the container."""
        self._episode = None
        self.machine.close()
        cells, self._cells = self._cells, None
        if cells is not None:
            cells.leave()

    def solve(self) -> Iterator[Action]:
        """Yield the solution that the task file has."""
        _, task, _ = self._playing("solve")
        if not task.solution:
            raise ConfigError("the task has no scripted solution")
        for line in task.solution:
            if isinstance(line, Window):  # which may never come, where a demonstrator has erred
                poll_until(partial(line.is_active, self.guest), self._settle_limit_s)
            else:
                yield line
        if not isinstance(task.solution[-1], Terminal):
            yield Finished()

    def _duration_s(self, action: Action) -> float:
        if isinstance(action, TypeText):
            return len(action.text) * CHARACTER_S
        return {Wait: self._wait_s, Drag: DRAG_S}.get(type(action), 0.0)

    def _renew(self) -> None:
        """Make the desktop as good as new, after the first episode."""
        self.machine.container.resume()
        self._episode = None
        if self._used and self._reset_mode == "in_place":
            self.machine.guest.reset()
        elif self._used and self._reset_mode == "restart":
            self.machine.restart()
        elif self._used:
            self.machine.replace(*with_secret(self._spec))
        self._used = False

    def _observe(self) -> Observation:
        png = self.machine.guest.screenshot(
            quiet_s=self._quiet_s, limit_s=self._settle_limit_s, most_bytes=most_bytes(*self._screen)
        )
        if self._pause:
            self.machine.container.pause()
        return Observation(png, *self._screen)

    def _playing(self, call: str) -> tuple[Task, DesktopTask, TaskSetup]:
        if self._episode is None:
            raise EnvError(call, f"{call} was called before reset, or after close")
        return self._episode
