"""The desktop of an episode, as the key of a foreign agent opens it over HTTP; a list of what was done on it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from arpo.agent.actions import Action, CoordinateFrame, Terminal, TypeText
from arpo.agent.prompt import GRAMMARS, Prompt
from arpo.agent.ui_tars import parse_actions
from arpo.endpoint.server import Endpoint, Handler, Seat
from arpo.endpoint.wire.common import invalid
from arpo.envs.pool.lease import LeasedEnv
from arpo.envs.protocol import Execution
from arpo.errors import ActionParseError, DesktopDestroyedError, EnvError, RefusedError
from arpo.models.tokenization import ChatTokenizer
from arpo.rollout.episode import EpisodeSpec, Meter, outcome_of
from arpo.types import Observation, Outcome, Step, screenshot_key

MOST_BYTES = 2**18
"""Of a request: the longest argument of a program has half of it."""
MOST_TYPED = 4096
"""Characters that one request may type: a desktop takes milliseconds for each, and has a deadline."""


class _Act(msgspec.Struct):
    action: str | None = None
    response: str | None = None


class _Execute(msgspec.Struct):
    command: str | list[str]
    shell: bool = False


class Desktop:
    """The desktop of one episode. Each request that acts is a step, and they are performed one after the other."""

    def __init__(
        self,
        env: LeasedEnv,
        spec: EpisodeSpec,
        first: Observation,
        *,
        chat: ChatTokenizer,
        prompt: Prompt,
        meter: Meter,
        over: asyncio.Event,
    ) -> None:
        self.steps: list[Step] = []
        self.screenshots: dict[str, bytes] = {}
        self.screen = ""
        """Key of what is on the screen, as far as it is known."""
        self.outcome: Outcome | None = None
        self.failure: EnvError | None = None
        self.format_reward = 0.0
        """-1 where the last response that was to be performed is no action."""
        self._env, self._spec, self._chat, self._prompt, self._meter = env, spec, chat, prompt, meter
        self._instruction = first.instruction or spec.task.instruction
        self._over, self._lock = over, asyncio.Lock()
        self._pointer: tuple[float, float] | None = None
        self._show(first)

    def handlers(self, endpoint: Endpoint) -> Mapping[str, Handler]:
        """Return the handler of each path: ours, and the two of OSWorld's server that its agents call."""

        def reading(kind: type[Any], work: Callable[[Seat, Any], Awaitable[Response]]) -> Handler:
            async def handle(request: Request, seat: Seat) -> Response:
                try:
                    given = msgspec.json.decode(await endpoint.body(request, MOST_BYTES), type=kind)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    raise invalid(f"the body must be an object in JSON with fields of their types: {error}") from error
                async with self._lock:
                    return await work(seat, given)

            return handle

        async def task(_: Request, __: Seat) -> Response:
            return self._state()

        async def screen(_: Request, __: Seat) -> Response:
            return Response(self._observation.screenshot, media_type="image/png")

        async def screenshot(request: Request, seat: Seat) -> Response:
            async with self._lock:
                try:
                    if not self._over.is_set() and (looked := await self._asked(self._env.look())) is not None:
                        self._show(looked)
                except DesktopDestroyedError:
                    self.outcome = Outcome.DESTROYED
                    self._over.set()
            return await screen(request, seat)

        acting = {"act": reading(_Act, self._act), "execute": reading(_Execute, self._execute)}
        return {"task": task, "screen": screen, "screenshot": screenshot, **acting}

    async def rest(self) -> None:
        """End the agent's part: wait for what is being done, of which nothing more begins."""
        self._over.set()
        async with self._lock:
            pass

    # --- requests ---------------------------------------------------------------------------------------------------

    async def _act(self, seat: Seat, given: _Act) -> Response:
        """Perform an action, in pixels of the screen, or what a response of the model says, in its picture's."""
        self._check_goes_on()
        if (given.action is None) == (given.response is None):
            raise invalid("give either action, such as click(start_box='(12,34)'), or response, a text of the model")
        size, most = (self._observation.width, self._observation.height), self._spec.settings.max_actions
        try:
            if given.action is not None:
                read, frame = parse_actions(given.action), CoordinateFrame(*size, *size)
            else:
                grammar, functions = GRAMMARS[self._prompt.grammar], self._prompt.functions
                read, frame = grammar.read(given.response or "", functions, max_actions=most), self._chat.frame(*size)
                self.format_reward = 0.0
        except ActionParseError as error:
            self.format_reward = self.format_reward if given.response is None else -1.0
            raise invalid(f"this is no action ({error.kind}): {error}") from error
        if len(read) > most or sum(len(each.text) for each in read if isinstance(each, TypeText)) > MOST_TYPED:
            raise invalid(f"do at most {most} actions at once, and type at most {MOST_TYPED} characters")
        actions = [frame.to_screen(action) for action in read]
        await self._perform(actions, given.response or "", self._unused_exchange(seat))
        return self._state()

    async def _perform(self, actions: Sequence[Action], response: str, exchange: int | None) -> None:
        performed, reward, shown = list[Action](), 0.0, self._observation
        try:
            for action in actions:
                performed.append(action.begun_at(self._pointer))
                self._pointer = performed[-1].pointer_after(self._pointer)
                result = await self._asked(self._env.step(performed[-1]))
                reward, shown = reward + result.reward, result.observation
                self.outcome = outcome_of(performed[-1], result)
                if self.outcome is not None or isinstance(performed[-1], Terminal) or self._over.is_set():
                    break
        except DesktopDestroyedError:
            self.outcome = Outcome.DESTROYED
        finally:
            self._close_step("\n".join(each.describe() for each in performed), response, exchange, reward)
        self._show(shown)

    async def _execute(self, seat: Seat, given: _Execute) -> Response:
        """Run a program on the desktop as its user, as OSWorld's server does."""
        self._check_goes_on()
        exchange = self._unused_exchange(seat)
        try:
            done = await self._asked(self._env.execute(given.command, shell=given.shell))
        except DesktopDestroyedError as error:
            self.outcome, done = Outcome.DESTROYED, Execution("", str(error), 1)
        if done is None:
            raise RefusedError("not_found", "this environment runs no programs: act on its screen")
        self._close_step(f"execute({str(given.command)!r})", "", exchange, 0.0)
        return JSONResponse({"status": "success", **asdict(done)})

    # --- the record -------------------------------------------------------------------------------------------------

    def _check_goes_on(self) -> None:
        if self._over.is_set():
            raise RefusedError("closed", f"the episode has ended ({self.outcome or 'without an action'}): stop")

    async def _asked(self, call: Awaitable[Any]) -> Any:
        """Return the result of an environment call; its failure is that of the episode."""
        try:
            return await self._meter.of_env(call)
        except EnvError as error:
            self.failure = error
            self._over.set()
            raise RefusedError("unavailable", "the desktop has failed, and this episode with it: stop") from error

    def _unused_exchange(self, seat: Seat) -> int | None:
        """Return the number of the newest exchange, if no step is of it: the step's own, as far as can be known."""
        newest = seat.session.counters()["exchanges"] - 1
        return newest if newest >= 0 and all(step.exchange != newest for step in self.steps) else None

    def _close_step(self, action: str, response: str, exchange: int | None, reward: float) -> None:
        size = self._observation.width, self._observation.height
        self.steps.append(Step(self.screen, *size, response, action, "", reward, exchange=exchange))
        if self.outcome is None and len(self.steps) == self._spec.max_steps:
            self.outcome = Outcome.MAX_STEPS
        if self.outcome is not None:
            self._over.set()

    def _show(self, observation: Observation) -> None:
        self._observation, self.screen = observation, screenshot_key(observation.screenshot)
        self.screenshots[self.screen] = observation.screenshot

    def _state(self) -> Response:
        frame = self._chat.frame(self._observation.width, self._observation.height)
        size = {"width": frame.screen_width, "height": frame.screen_height}
        size |= {"model_width": frame.model_width, "model_height": frame.model_height}
        left = {"steps_left": self._spec.max_steps - len(self.steps), "ended": self._over.is_set()}
        return JSONResponse({"instruction": self._instruction, **size, **left})
