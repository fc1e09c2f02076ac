"""One episode: a task, a desktop and a policy make a trajectory; meters count what it costs."""

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from operator import attrgetter
from typing import Literal, TypeVar

from arpo.agent.actions import Action, Fail, Finished, Terminal
from arpo.agent.prompt import GRAMMARS, Prompt
from arpo.envs.pool.lease import LeasedEnv
from arpo.envs.protocol import StepResult
from arpo.errors import ActionParseError, BlamedError, ConfigError, DesktopDestroyedError, EngineError, EnvError
from arpo.inference.engine import GenerateRequest, InferenceEngine, Response, Sampling
from arpo.models.tokenization import ChatTokenizer
from arpo.rollout.conversation import Conversation
from arpo.rollout.sampler import derive_seed
from arpo.rollout.settings import RolloutSettings
from arpo.types import Exchange, Observation, Outcome, Picture, Step, Task, Trajectory, screenshot_key

log = logging.getLogger(__name__)

_T = TypeVar("_T")

EpisodeProtocol = Literal["hard", "standard"]
"""The rule at the step limit. `hard`: the desktop is judged as it is. `standard`, OSWorld's own: a last response
that does not end the episode is replaced by `Fail`, so that an infeasible task counts as solved there."""


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """Everything that decides how an episode goes, besides the policy and the desktop."""

    id: str
    task: Task
    seed: int
    settings: RolloutSettings
    """Of the run: the numbers that are not below."""
    step_limit: int | None = None
    """Responses of this episode; None: the limit of the task, or of the settings."""
    temperature: float | None = None
    """None: that of the settings."""
    protocol: EpisodeProtocol = "hard"

    def identity(self, instruction: str) -> tuple[str, str, str, str, int]:
        """Return the first fields of the trajectory, with the instruction, which the desktop alone may know."""
        return self.id, self.task.id, self.task.domain, instruction, self.seed

    @property
    def max_steps(self) -> int:
        """Responses, not actions: one response may hold several actions."""
        return self.step_limit or self.task.max_steps or self.settings.max_steps

    @property
    def sampling(self) -> Sampling:
        """The sampling of responses, but for their seeds."""
        temperature = self.settings.temperature if self.temperature is None else self.temperature
        return Sampling(temperature, self.settings.max_tokens)


@dataclass(frozen=True, slots=True)
class Responder:
    """An engine, with the tokenizer and the prompt by which a task is put to it."""

    engine: InferenceEngine
    chat: ChatTokenizer
    prompt: Prompt
    newest_version: Callable[[], float] = lambda: inf
    """Returns the newest policy version that the engine was given."""

    async def respond(self, request: GenerateRequest) -> Response:
        """Return the engine's response; `EngineError` where it stamps a version on it that was never sent."""
        response = await self.engine.generate(request)
        newest = self.newest_version()
        if response.policy_version > newest:
            raise EngineError(
                f"a response carries policy version {response.policy_version}, and the newest that the engine was "
                f"given is {newest:.0f}"
            )
        return response


@dataclass(slots=True)
class Activity:
    """The doings of all episodes together. Only the event loop's thread writes; any thread may read a number."""

    env_calls: int = 0
    """Calls that have not returned."""
    requests: int = 0
    """To the engine, and not answered."""
    held: int = 0
    """Episodes that wait, in a desktop that is ready, for the engine's next policy version."""
    updates: int = 0
    """Updates of the engine's weights that have not ended."""
    last: float = field(default_factory=time.monotonic)
    """The moment at which something happened last: a call returned, an episode ended, weights were served."""

    def beat(self) -> None:
        """Note that something has happened."""
        self.last = time.monotonic()


@dataclass(slots=True)
class Meter:
    """Running counts of one job. Only the event loop's thread writes; any thread may read a number."""

    name: str = ""
    """`train` or the name of the evaluation; empty when nothing ran yet."""
    total: int = 0
    """Episodes asked for."""
    done: int = 0
    """Episodes that gave a trajectory."""
    resumed: int = 0
    """Those of them that were taken from the store."""
    retried: int = 0
    """Attempts that the infrastructure lost and that were made again."""
    dropped: int = 0
    """Episodes given up after the last attempt."""
    successes: int = 0
    steps: int = 0
    tokens: int = 0
    """Sampled tokens, those of lost attempts among them."""
    generate_s: float = 0.0
    """Seconds of requests, summed over episodes that wait at the same time."""
    env_s: float = 0.0
    """Seconds of environment calls, summed over environments."""
    causes: deque[str] = field(default_factory=lambda: deque(maxlen=5))
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    """The end of the last episode; None while one runs."""
    activity: Activity = field(default_factory=Activity)

    @property
    def elapsed_s(self) -> float:
        """Seconds from the beginning to the end of the last episode, or to now."""
        return (self.ended if self.ended is not None else time.monotonic()) - self.started

    @property
    def episodes_ended(self) -> int:
        """Episodes that ended either way: with a trajectory or dropped."""
        return self.done + self.dropped

    @property
    def last_causes(self) -> str:
        """The last infrastructure failures, for a message."""
        return "; ".join(self.causes) or "none"

    async def of_env(self, call: Awaitable[_T]) -> _T:
        """Return the result of an environment call, and count its time."""
        started = time.perf_counter()
        self.activity.env_calls += 1
        try:
            return await call
        finally:
            self.activity.env_calls -= 1
            self.activity.beat()
            self.env_s += time.perf_counter() - started

    async def of_engine(self, call: Awaitable[Response]) -> Response:
        """Return the response that an engine call gives, and count its time, and it as a step."""
        started = time.perf_counter()
        self.activity.requests += 1
        try:
            response = await call
        finally:
            self.activity.requests -= 1
            self.activity.beat()
            self.generate_s += time.perf_counter() - started
        self.steps += 1
        self.tokens += len(response.token_ids)
        return response


def sum_meters(meters: Sequence[Meter]) -> Meter:
    """Return the sum of some meters, from the first begin to the last end; None has ended where one runs."""
    ends = [meter.ended for meter in meters]
    summed = ("total", "done", "resumed", "retried", "dropped", "successes", "steps", "tokens", "generate_s", "env_s")
    return Meter(
        meters[0].name if meters else "",
        **{name: sum(attrgetter(name)(meter) for meter in meters) for name in summed},
        causes=deque((cause for meter in meters for cause in meter.causes), maxlen=5),
        started=min((meter.started for meter in meters), default=time.monotonic()),
        ended=None if None in ends else max((end for end in ends if end is not None), default=None),
    )


NOT_SEEN = (Outcome.PARSE_ERROR, Outcome.DESTROYED)
"""Endings after which the screen is not looked at."""

MayAsk = Callable[[], Awaitable[int]]
"""Returns when an episode whose desktop is ready may ask the engine for its first response, with the oldest policy
version that may answer any of its requests."""


async def at_once() -> int:
    """Wait for nothing, and let every version answer."""
    return 0


async def run_episode(
    spec: EpisodeSpec, env: LeasedEnv, responder: Responder, meter: Meter, may_ask: MayAsk = at_once
) -> Trajectory:
    """Return the trajectory of one episode; the same spec, weights and desktop give the same trajectory.

    Raises:
        EnvError: If the desktop failed; the episode says nothing about the policy then.
        EngineError: If the engine failed; likewise.
    """
    started = time.perf_counter()
    observation = await meter.of_env(env.reset(spec.task))
    instruction = observation.instruction or spec.task.instruction
    play = _Play(spec, responder.chat)
    play.show(observation)
    play.ask(responder.chat.first_prompt(responder.prompt.messages(instruction)))
    play.check_room(len(responder.chat.first_prompt(responder.prompt.messages(""))))
    held_from = time.perf_counter()
    least_version = await may_ask()
    started += time.perf_counter() - held_from  # what it waits for another version is not time of the episode
    outcome = None
    while outcome is None:
        response = await meter.of_engine(responder.respond(play.request(least_version)))
        outcome = await _follow(response, spec, responder.prompt, play, env, meter) or play.next_turn()
    parsed = outcome is not Outcome.PARSE_ERROR
    outcome, reward = await judge(outcome, spec, env, meter)
    return Trajectory(
        *spec.identity(instruction),
        steps=tuple(play.steps),
        exchanges=tuple(play.exchanges),
        outcome=outcome,
        task_reward=reward,
        format_reward=0.0 if parsed else -1.0,
        screenshots=play.screenshots,
        last_screenshot="" if outcome in NOT_SEEN else play.screen,
        image_window=spec.settings.image_window,
        duration_s=time.perf_counter() - started,
    )


async def judge(outcome: Outcome, spec: EpisodeSpec, env: LeasedEnv, meter: Meter) -> tuple[Outcome, float]:
    """Return the outcome of the episode and its task reward: 0 where the policy can have kept it from being judged."""
    if outcome is not Outcome.DESTROYED:
        try:
            return outcome, await meter.of_env(env.evaluate())
        except BlamedError as error:
            log.info("episode %s cannot be judged and is worth 0 (%s): %s", spec.id, error.kind, error)
            if not isinstance(error, DesktopDestroyedError):
                return outcome, 0.0
    return Outcome.DESTROYED, 0.0


async def _follow(
    response: Response, spec: EpisodeSpec, prompt: Prompt, play: "_Play", env: LeasedEnv, meter: Meter
) -> Outcome | None:
    """Do what a response says and close its step; return the outcome if that ended the episode."""
    text, grammar = play.chat.decode(response.token_ids), GRAMMARS[prompt.grammar]
    try:
        actions = grammar.read(text, prompt.functions, max_actions=spec.settings.max_actions)
    except ActionParseError as error:
        play.answer(response, text, parse_error=error.kind)
        return Outcome.PARSE_ERROR
    ends = any(isinstance(action, Terminal) for action in actions)
    forced_to_fail = spec.protocol == "standard" and len(play.steps) + 1 == spec.max_steps and not ends
    frame = play.chat.frame(play.observation.width, play.observation.height)
    performed: list[Action] = []
    reward, patch = 0.0, ""
    for number, action in enumerate((Fail(),) if forced_to_fail else actions):
        performed.append(play.placed(frame.to_screen(action)))
        try:
            result = await meter.of_env(env.step(performed[-1]))
        except DesktopDestroyedError as error:
            log.info("%s destroyed the desktop: %s", performed[-1], error)
            play.answer(response, text, action=_text(performed), reward=reward)
            return Outcome.DESTROYED
        reward += result.reward
        if result.patch is not None:
            first, *others = [*actions[:number], frame.to_model(result.patch.action)]
            patch = play.chat.scripted(grammar.answer(first, result.patch.thought, *others))
            play.placed(result.patch.action)
            break
        if isinstance(action, Terminal) or result.terminated or result.truncated:
            break
    play.answer(response, text, action=_text(performed), reward=reward, patch=patch)
    play.show(result.observation)
    return None if forced_to_fail else outcome_of(performed[-1], result)


def _text(actions: Sequence[Action]) -> str:
    return "\n".join(action.describe() for action in actions)


def outcome_of(action: Action, result: StepResult) -> Outcome | None:
    """Return the outcome of an episode by its last action and the result; None where it goes on."""
    if isinstance(action, Terminal) and result.patch is None:
        return Outcome.FINISHED if isinstance(action, Finished) else Outcome.GAVE_UP
    if result.terminated:
        return Outcome.TERMINATED
    return Outcome.MAX_STEPS if result.truncated else None


class _Play:
    """The episode so far: what was done, the screens, and the conversation with the engine about them."""

    def __init__(self, spec: EpisodeSpec, chat: ChatTokenizer) -> None:
        self.chat = chat
        self.steps: list[Step] = []
        self.exchanges: list[Exchange] = []
        self.screenshots: dict[str, bytes] = {}
        self.screen = ""
        """Key of what is on the screen now."""
        self.settings = spec.settings
        self._pointer: tuple[float, float] | None = None
        self._spec = spec
        self.observation: Observation
        self._conversation = Conversation(spec.settings.image_window, chat.without_screenshot)

    def show(self, observation: Observation) -> None:
        self.observation = observation
        self.screen = screenshot_key(observation.screenshot)
        self.screenshots[self.screen] = observation.screenshot

    def ask(self, prompt_ids: tuple[int, ...]) -> None:
        """Append a prompt that holds the screen."""
        self._conversation.ask(prompt_ids, Picture(self.screen, self.observation.width, self.observation.height))

    def request(self, least_version: int) -> GenerateRequest:
        sampling = replace(self._spec.sampling, seed=derive_seed(self._spec.seed, len(self.steps)))
        images = tuple(self.screenshots[picture.key] for picture in self._conversation.pictures)
        return GenerateRequest(self._conversation.ids, images, sampling, self._spec.id, least_version)

    def answer(
        self,
        response: Response,
        text: str,
        *,
        action: str = "",
        parse_error: str = "",
        reward: float = 0.0,
        patch: str = "",
    ) -> None:
        """Append a response and close its step; the screen must still be the one that it answers."""
        said = (response.token_ids, response.logprobs, response.policy_version, response.finish_reason)
        try:
            self.chat.check_response(response.token_ids)
            sampled = Exchange(None, (), (), *said)
        except ValueError as error:
            raise EngineError(str(error)) from error
        size, number = (self.observation.width, self.observation.height), len(self.exchanges)
        self.steps.append(Step(self.screen, *size, text, action, parse_error, reward, patch, number))
        self.exchanges.append(self._conversation.answer(sampled, self.chat.encode_response(patch) if patch else ()))

    def next_turn(self) -> Outcome | None:
        """Append the next prompt; return instead which limit was reached."""
        if len(self.steps) == self._spec.max_steps:
            return Outcome.MAX_STEPS
        self.ask(self.chat.next_prompt(self._conversation.said_ids))
        return None if self.has_room() else Outcome.CONTEXT_FULL

    def placed(self, action: Action) -> Action:
        """Return an action with a place: where the one before has left the pointer, if it names none itself."""
        action = action.begun_at(self._pointer)
        self._pointer = action.pointer_after(self._pointer)
        return action

    @property
    def length(self) -> int:
        """Tokens of the context, with images expanded."""
        sizes = [(picture.width, picture.height) for picture in self._conversation.pictures]
        return self.chat.context_length(self._conversation.ids, sizes)

    def has_room(self) -> bool:
        return self.length + self.settings.max_tokens <= self.settings.max_context

    def check_room(self, bare: int) -> None:
        """Check that there is room for the first response; `bare` ids of its prompt are not the instruction's.

        Raises:
            EnvError: If there would be with no instruction and the smallest screenshot: this task has too large ones.
        """
        if self.has_room():
            return
        message = (
            f"the first prompt of task {self._spec.task.id} has {self.length} tokens and leaves no room for a "
            f"response of max_tokens={self.settings.max_tokens} within max_context={self.settings.max_context}; raise "
            "max_context, lower max_tokens, or use a checkpoint whose processor has a lower max_pixels"
        )
        instruction = len(self._conversation.ids) - bare
        picture = self.chat.image_tokens(self.observation.width, self.observation.height)
        least = self.length - instruction - picture + self.chat.image_tokens(1, 1)
        if least + self.settings.max_tokens <= self.settings.max_context:
            its = f"its instruction takes {instruction} of them, its screenshot {picture}"
            raise EnvError("reset", f"{message}, or leave the task out: {its}")
        raise ConfigError(message)
