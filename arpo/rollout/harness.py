"""Foreign agents: programs and coroutines that play an episode over HTTP, recorded by the endpoint."""

import asyncio
import logging
import os
import pydoc
import shlex
import shutil
import tempfile
from abc import ABC, abstractmethod
from asyncio.subprocess import DEVNULL, STDOUT
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Any, cast

from typing_extensions import override

from arpo.bounds import AtLeastOne, Positive, checked
from arpo.endpoint.rendering import History, Renderer
from arpo.endpoint.server import Endpoint, Seat
from arpo.endpoint.session import ALIASES, Budgets, Session
from arpo.envs.pool.lease import LeasedEnv
from arpo.errors import ConfigError, HarnessError, quoted
from arpo.host.processes import LABEL_VARIABLE, end_processes
from arpo.rollout.desktop import Desktop
from arpo.rollout.episode import NOT_SEEN, EpisodeSpec, MayAsk, Meter, Responder, judge
from arpo.types import Outcome, Trajectory

log = logging.getLogger(__name__)

EPISODE_VARIABLE = "ARPO_EPISODE"
"""Marks the processes of one agent's program."""
LEAVING_S = 5.0
"""The time that an agent has to end by itself once its episode has ended."""
LAST_WORDS = 4096
"""Bytes that are kept of what a program prints."""
PAUSE_S = 0.01
"""Between two looks at what a program prints, so that one that prints without end waits, and no other one."""
SILENCE_S = 1.0
"""The time for what a program has printed to come through, once it and all that is known to be of it have ended."""
INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", LABEL_VARIABLE)
"""The variables of this process that a program gets, no credentials; by the label it is found if this is killed."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """All that an agent is given of an episode."""

    task_id: str
    instruction: str
    address: str
    """Of the endpoint, such as `http://127.0.0.1:41234`."""
    key: str = field(repr=False)
    """Of the model and the desktop, for this episode alone."""
    max_steps: int
    """Steps that the desktop performs."""
    seed: int
    folder: Path
    """An empty directory, which is removed with the episode."""
    devtools: str = field(default="", repr=False)
    """The address of the DevTools of the episode's browser, if it has one."""

    def variables(self) -> dict[str, str]:
        """Return it as environment variables, those of OpenAI's and Anthropic's own clients among them."""
        return {
            "OPENAI_BASE_URL": f"{self.address}/v1",
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.address,
            "ANTHROPIC_API_KEY": self.key,
            "ARPO_ENDPOINT": self.address,
            "ARPO_KEY": self.key,
            "ARPO_DESKTOP": f"{self.address}/desktop/{self.key}",
            "ARPO_MODEL": "policy",
            "ARPO_TASK": self.instruction,
            "ARPO_TASK_ID": self.task_id,
            "ARPO_MAX_STEPS": str(self.max_steps),
            "ARPO_SEED": str(self.seed),
            "ARPO_DEVTOOLS": self.devtools,
        }


@dataclass(frozen=True, kw_only=True)
class Harness(ABC):
    """An agent that is not our own loop.

    Args:
        history: Old thoughts, as the chat template keeps or drops them (`template`), or all as sampled (`verbatim`).
        aliases: The names of the model that there are; `policy` is always there, and any other name is that one.
        max_answers: Answers that an episode may have; another request is refused.
        max_pictures: Pictures that a request may have; one with more is refused. The engine takes no more either.
        limit_s: Seconds after which an episode is judged as it stands.
        devtools: Whether each episode has a browser of its own, which the agent drives by DevTools.
        strict: Whether options of a request that would have no effect are refused; otherwise they are counted.
    """

    history: History = "template"
    aliases: Sequence[str] = tuple(ALIASES)
    max_answers: AtLeastOne = 100
    max_pictures: AtLeastOne = 16
    limit_s: Positive = 600.0
    devtools: bool = False
    strict: bool = False

    def __post_init__(self) -> None:
        if unknown := [name for name in self.aliases if name not in ALIASES]:
            raise ConfigError(f"harness.aliases={list(self.aliases)}: there is no {unknown[0]}, choose {[*ALIASES]}")

    @property
    @abstractmethod
    def name(self) -> str:
        """The program or function, for people."""

    @abstractmethod
    async def play(self, assignment: Assignment) -> str:
        """Play an episode, and return the reason if it failed, else an empty text."""

    def settings(self) -> dict[str, Any]:
        """Return all that decides how it plays, in built-ins."""
        return {"harness": type(self).__name__, **asdict(self)}


@checked
@dataclass(frozen=True, kw_only=True)
class Command(Harness):
    """A program, started for each episode, with its assignment in environment variables.

    Args:
        argv: The program and its arguments.
        directory: Where it starts; None: in an empty directory of the episode.
        variables: Further variables of its environment.
    """

    argv: Sequence[str]
    directory: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.argv or shutil.which(self.argv[0]) is None:
            raise ConfigError(f"harness.argv={list(self.argv)}: there is no program of the first name; name one")
        if self.directory is not None and not Path(self.directory).is_dir():
            raise ConfigError(f"harness.directory={self.directory} is no directory: name one, or null")

    @property
    @override
    def name(self) -> str:
        return shlex.join(self.argv)

    @override
    async def play(self, assignment: Assignment) -> str:
        mark, folder, said = token_hex(8), assignment.folder, bytearray()
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        own = {"HOME": str(folder), "TMPDIR": str(folder)}
        # A pipe of our own: asyncio waits at one of its own until the last child has closed it.
        reading, writing = os.pipe()
        listening = asyncio.create_task(_listen(reading, said))
        try:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self.argv,
                    cwd=self.directory or folder,
                    env={**inherited, **own, **self.variables, **assignment.variables(), EPISODE_VARIABLE: mark},
                    stdin=DEVNULL,
                    stdout=writing,
                    stderr=STDOUT,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:  # no process is left, or the instruction is no variable
                raise HarnessError(f"the agent's program cannot be started: {error}") from error
            finally:
                os.close(writing)
            code = await process.wait()
        finally:  # its children too; what has got away from its mark may hold the pipe open for ever
            ending = asyncio.to_thread(end_processes, mark, None, EPISODE_VARIABLE, place=folder)
            try:
                await _end_of(asyncio.ensure_future(ending))
                await asyncio.wait((listening,), timeout=SILENCE_S)
            finally:
                listening.cancel()
        last = (said.decode(errors="replace").strip().splitlines() or ["it has printed nothing"])[-1]
        return f"it ended with {code}: {quoted(last, most=300)}" if code else ""


async def _listen(pipe: int, said: bytearray) -> None:
    """Keep the end of what comes out of a pipe, and close it."""
    printed = asyncio.StreamReader()
    protocol, loop = asyncio.StreamReaderProtocol(printed), asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(pipe, "rb"))
    try:
        while chunk := await printed.read(2**18):
            said[:] = (said + chunk)[-LAST_WORDS:]
            await asyncio.sleep(PAUSE_S)
    finally:
        transport.close()


async def _end_of(task: "asyncio.Future[Any]") -> None:
    """Wait for the end of a task, however often this one is cancelled meanwhile."""
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


@asynccontextmanager
async def _folder() -> AsyncIterator[Path]:
    """Make a directory, and remove it by a program: an agent may have filled it, or made it very deep."""
    try:
        folder = tempfile.mkdtemp(prefix="arpo-episode-")
    except OSError as error:
        raise HarnessError(f"there is no place for the agent's directory: {error}") from error
    try:
        yield Path(folder)
    finally:
        removal = await asyncio.create_subprocess_exec("rm", "-rf", folder, stdin=DEVNULL, stderr=DEVNULL)
        await _end_of(asyncio.ensure_future(removal.wait()))


@checked
@dataclass(frozen=True, kw_only=True)
class Function(Harness):
    """A coroutine of this process, `async def play(assignment)`: what blocks in it blocks all episodes.

    Args:
        function: Its name in full, such as `agents.mine.play`.
    """

    function: str

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            found = pydoc.locate(self.function)
        except pydoc.ErrorDuringImport as error:
            raise ConfigError(f"harness.function={self.function}: its module cannot be imported: {error}") from error
        if not asyncio.iscoroutinefunction(found):
            raise ConfigError(
                f"harness.function={self.function} is no `async def` that can be found: name one in full, and "
                "start in the folder of its module, or let PYTHONPATH name that"
            )

    @property
    @override
    def name(self) -> str:
        return self.function

    @override
    async def play(self, assignment: Assignment) -> str:
        playing = asyncio.create_task(self._played(assignment))
        try:
            await asyncio.wait((playing,))
        finally:
            playing.cancel()
            await asyncio.wait((playing,), timeout=LEAVING_S)
            if not playing.done():
                log.error("%s goes on after its episode: let asyncio.CancelledError pass in it", self.function)
                asyncio._unregister_task(playing)  # or the end of the event loop would wait for it
        return await playing

    async def _played(self, assignment: Assignment) -> str:
        function = cast(Callable[[Assignment], Awaitable[object]], pydoc.locate(self.function))
        try:
            await function(assignment)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is an agent's own, and no failure of ours
            return f"{type(error).__name__}: {quoted(error, most=500)}"
        return ""


class HarnessPlayer:
    """A player of episodes by a foreign agent, which stands where `run_episode` does."""

    def __init__(self, harness: Harness, endpoint: Endpoint, responder: Responder) -> None:
        self.harness, self._endpoint = harness, endpoint
        self._renderer = Renderer(responder.chat, harness.history)

    async def __call__(
        self, spec: EpisodeSpec, env: LeasedEnv, responder: Responder, meter: Meter, may_ask: MayAsk
    ) -> Trajectory:
        """Return the trajectory of one episode.

        Raises:
            EnvError: If the desktop failed; the episode says nothing about the policy then.
            EngineError: If the engine or the endpoint failed; likewise.
            HarnessError: If the agent has asked the model for nothing.
        """
        first = await meter.of_env(env.reset(spec.task))
        harness, chat, settings = self.harness, responder.chat, spec.settings
        devtools = await meter.of_env(env.devtools()) if harness.devtools else ""
        least_version = await may_ask()
        began = asyncio.get_running_loop().time()
        session = Session(
            spec.id,
            self._renderer,
            chat,
            seed=spec.seed,
            sampling=spec.sampling,
            max_context=settings.max_context,
            budgets=Budgets(harness.max_answers, harness.max_answers * settings.max_tokens, harness.max_pictures),
            aliases={name: ALIASES[name] for name in harness.aliases},
        )
        seat = Seat(session, lambda request: meter.of_engine(responder.respond(request)), least_version)
        desktop = Desktop(env, spec, first, chat=chat, prompt=responder.prompt, meter=meter, over=seat.over)
        seat.handlers, seat.strict = desktop.handlers(self._endpoint), harness.strict
        instruction = first.instruction or spec.task.instruction
        async with self._endpoint.admit(seat) as key, _folder() as folder:
            address = f"http://127.0.0.1:{self._endpoint.port}"
            given = Assignment(spec.task.id, instruction, address, key, spec.max_steps, spec.seed, folder, devtools)
            reason = await self._play(given, seat.over)
            await desktop.rest()
        if (failure := desktop.failure or seat.failure) is not None:
            raise failure
        exchanges = session.close()
        if not exchanges and not session.counters().get("forwarded"):
            raise HarnessError(f"the agent has asked the model for nothing: {reason or 'it ended by itself'}")
        if reason:
            log.info("the agent of episode %s: %s", spec.id, reason)
        outcome = desktop.outcome or (Outcome.MAX_STEPS if reason == _TIME_IS_UP else Outcome.FINISHED)
        outcome, reward = await judge(outcome, spec, env, meter)
        said = [chat.decode(each.response_ids) for each in exchanges]
        steps = tuple(
            step if step.exchange is None else replace(step, response=step.response or said[step.exchange])
            for step in desktop.steps
        )
        return Trajectory(
            *spec.identity(instruction),
            steps=steps,
            exchanges=exchanges,
            outcome=outcome,
            task_reward=reward,
            format_reward=desktop.format_reward,
            screenshots=desktop.screenshots | session.screenshots,
            last_screenshot="" if outcome in NOT_SEEN or devtools else desktop.screen,  # which DevTools pass by
            duration_s=asyncio.get_running_loop().time() - began,
        )

    async def _play(self, given: Assignment, over: asyncio.Event) -> str:
        """Let the agent play until it or its episode ends, or its time is up; return what went wrong."""
        playing, ended = asyncio.create_task(self.harness.play(given)), asyncio.create_task(over.wait())
        try:
            await asyncio.wait((playing, ended), timeout=self.harness.limit_s, return_when=asyncio.FIRST_COMPLETED)
            if over.is_set():
                await asyncio.wait((playing,), timeout=LEAVING_S)
            ended_it = not playing.done()
        finally:
            ended.cancel()
            playing.cancel()
            await _end_of(playing)
        if ended_it:
            return "" if over.is_set() else _TIME_IS_UP
        return "it has cancelled itself" if playing.cancelled() else playing.result()


_TIME_IS_UP = "its time is up (harness.limit_s)"
