"""One episode: a task, a desktop and a policy make a trajectory."""

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Literal

from arpo.agent.actions import Action, Fail, Finished, Terminal, begun_at, pointer_after
from arpo.agent.coordinates import CoordinateFrame
from arpo.agent.grammar import GRAMMARS, ActionGrammar
from arpo.agent.prompt import Prompt
from arpo.agent.render import render
from arpo.envs.pool.lease import LeasedEnv
from arpo.envs.protocol import Patch, StepResult
from arpo.errors import ActionParseError, BlamedError, ConfigError, DesktopDestroyedError, EngineError, EnvError
from arpo.inference.engine import GenerateRequest, InferenceEngine, Response, Sampling
from arpo.models.tokenization import ChatTokenizer
from arpo.rollout.meter import Meter
from arpo.rollout.seeds import derive_seed
from arpo.rollout.settings import MAX_ACTIONS, RolloutSettings
from arpo.types import Observation, Outcome, Step, Task, Trajectory, screenshot_key

log = logging.getLogger(__name__)

EpisodeProtocol = Literal["hard", "standard"]
"""The rule at the step limit. `hard`: the desktop is judged as it is. `standard`, OSWorld's own: a last response
that does not end the episode is replaced by `Fail`, so that an infeasible task counts as solved there."""


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """Everything that decides how an episode goes, besides the policy and the desktop."""

    id: str
    task: Task
    seed: int
    """The seed of every response is derived from it."""
    max_steps: int
    """Responses, not actions: one response may hold several actions."""
    max_context: int
    """Tokens of the whole conversation, images expanded. Each prompt leaves room for a whole response, so that no
    response is cut, and then counted as a format error, for want of context."""
    max_tokens: int
    """Tokens of one response."""
    temperature: float
    protocol: EpisodeProtocol = "hard"
    image_window: int | None = None
    """Screenshots that a response sees, its own among them; None: all."""
    max_actions: int = MAX_ACTIONS
    """Actions of one response."""

    @classmethod
    def of(
        cls, task: Task, settings: RolloutSettings, *, id: str, seed: int, max_steps: int | None = None
    ) -> "EpisodeSpec":
        """Return the spec of an episode with a run's numbers; `max_steps` goes before the task's own limit."""
        return cls(
            id=id,
            task=task,
            seed=seed,
            max_steps=max_steps or task.max_steps or settings.max_steps,
            max_context=settings.max_context,
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            image_window=settings.image_window,
            max_actions=settings.max_actions,
        )


@dataclass(frozen=True, slots=True)
class Responder:
    """An engine, with the tokenizer and the prompt by which a task is put to it."""

    engine: InferenceEngine
    chat: ChatTokenizer
    prompt: Prompt
    newest_version: Callable[[], float] = lambda: inf
    """Returns the newest policy version that the engine was given."""

    async def respond(self, request: GenerateRequest) -> Response:
        """Return the engine's response.

        Raises:
            EngineError: If the engine failed, or stamps a version on it that there is not: nobody knows whose it is.
        """
        response = await self.engine.generate(request)
        newest = self.newest_version()
        if response.policy_version > newest:
            raise EngineError(
                f"a response carries policy version {response.policy_version}, and the newest that the engine was "
                f"given is {newest:.0f}"
            )
        return response


NOT_SEEN = (Outcome.PARSE_ERROR, Outcome.DESTROYED)
"""Endings after which nobody looks at the screen."""

MayAsk = Callable[[], Awaitable[int]]
"""Returns when an episode whose desktop is ready may ask the engine for its first response, with the oldest policy
version that may answer any of its requests."""


async def at_once() -> int:
    """Wait for nothing, and let every version answer."""
    return 0


async def run_episode(
    spec: EpisodeSpec,
    env: LeasedEnv,
    responder: Responder,
    meter: Meter,
    may_ask: MayAsk = at_once,
) -> Trajectory:
    """Return the trajectory of one episode; the same spec, weights and desktop give the same trajectory.

    Args:
        spec: What to play.
        env: Where.
        responder: The policy.
        meter: Counts what happens.
        may_ask: Waited for between the desktop and the first response.

    Raises:
        EnvError: If the desktop failed; the episode says nothing about the policy then.
        EngineError: If the engine failed; likewise.
    """
    started = time.perf_counter()
    observation = await meter.of_env(env.reset(spec.task))
    instruction = observation.instruction or spec.task.instruction
    conversation = _Conversation(spec, responder.chat)
    conversation.show(observation)
    conversation.ask(responder.chat.first_prompt(responder.prompt.messages(instruction)))
    conversation.check_room(len(responder.chat.first_prompt(responder.prompt.messages(""))))
    held_from = time.perf_counter()
    least_version = await may_ask()
    started += time.perf_counter() - held_from  # what it waits for another version is not time of the episode
    outcome = None
    while outcome is None:
        response = await meter.of_engine(responder.respond(conversation.request(least_version)))
        outcome = await _follow(response, responder.prompt, conversation, env, meter) or conversation.next_turn()
    parsed = outcome is not Outcome.PARSE_ERROR
    outcome, reward = await _judge(outcome, spec, env, meter)
    return Trajectory(
        id=spec.id,
        task_id=spec.task.id,
        domain=spec.task.domain,
        instruction=instruction,
        seed=spec.seed,
        steps=tuple(conversation.steps),
        outcome=outcome,
        task_reward=reward,
        format_reward=0.0 if parsed else -1.0,
        screenshots=conversation.screenshots,
        last_screenshot="" if outcome in NOT_SEEN else conversation.screen,
        image_window=spec.image_window,
        duration_s=time.perf_counter() - started,
    )


async def _judge(outcome: Outcome, spec: EpisodeSpec, env: LeasedEnv, meter: Meter) -> tuple[Outcome, float]:
    """Return how the episode ended, and its task reward: 0 where the policy can have kept it from being judged."""
    if outcome is not Outcome.DESTROYED:
        try:
            return outcome, await meter.of_env(env.evaluate())
        except BlamedError as error:
            log.info("episode %s cannot be judged and is worth 0 (%s): %s", spec.id, error.kind, error)
            if not isinstance(error, DesktopDestroyedError):
                return outcome, 0.0
    return Outcome.DESTROYED, 0.0


async def _follow(
    response: Response, prompt: Prompt, conversation: "_Conversation", env: LeasedEnv, meter: Meter
) -> Outcome | None:
    """Do what a response says and close its step; return how that ended the episode, None when it goes on."""
    text, grammar = conversation.chat.decode(response.token_ids), GRAMMARS[prompt.grammar]
    try:
        actions = grammar.read(text, prompt.functions, max_actions=conversation.max_actions)
    except ActionParseError as error:
        conversation.answer(response, text, parse_error=error.kind)
        return Outcome.PARSE_ERROR
    forced_to_fail = conversation.must_fail(actions)
    frame = conversation.frame()
    performed: list[Action] = []
    reward = 0.0
    patch = ""
    for number, action in enumerate((Fail(),) if forced_to_fail else actions):
        performed.append(conversation.placed(frame.to_screen(action)))
        try:
            result = await meter.of_env(env.step(performed[-1]))
        except DesktopDestroyedError as error:
            log.info("%s destroyed the desktop: %s", performed[-1], error)
            conversation.answer(response, text, action=_text(performed), reward=reward)
            return Outcome.DESTROYED
        reward += result.reward
        if result.patch is not None:
            patch = conversation.chat.scripted(_as_response(actions[:number], result.patch, frame, grammar))
            conversation.placed(result.patch.action)
            break
        if isinstance(action, Terminal) or result.terminated or result.truncated:
            break
    conversation.answer(response, text, action=_text(performed), reward=reward, patch=patch)
    conversation.show(result.observation)
    return None if forced_to_fail else outcome_of(performed[-1], result)


def _text(actions: Sequence[Action]) -> str:
    return "\n".join(render(action) for action in actions)


def _as_response(before: Sequence[Action], patch: Patch, frame: CoordinateFrame, grammar: ActionGrammar) -> str:
    """Return the response that performs some actions, which the model named, and then what a patch says."""
    first, *others = [*before, frame.to_model(patch.action)]
    return grammar.answer(first, patch.thought, *others)


def outcome_of(action: Action, result: StepResult) -> Outcome | None:
    """Return how an episode ended by an action and what came of it; None where it goes on."""
    if isinstance(action, Terminal) and result.patch is None:
        return Outcome.FINISHED if isinstance(action, Finished) else Outcome.GAVE_UP
    if result.terminated:
        return Outcome.TERMINATED
    return Outcome.MAX_STEPS if result.truncated else None


class _Conversation:
    """The conversation so far: what the engine sampled is, id for id, what its next prompt holds."""

    def __init__(self, spec: EpisodeSpec, chat: ChatTokenizer) -> None:
        self.chat = chat
        self.steps: list[Step] = []
        self.screenshots: dict[str, bytes] = {}
        self.screen = ""
        """Key of what is on the screen now."""
        self.max_actions = spec.max_actions
        self._pointer: tuple[float, float] | None = None
        self._spec = spec
        self._observation: Observation
        self._turns: list[tuple[int, ...]] = []
        """Prompts and responses by turns, as the next response reads them; `tokenize` makes the same of the record."""
        self._images: deque[bytes] = deque()
        """The screenshots that the next response sees."""
        self._length = 0
        """Tokens of the turns, images expanded; counted along, because a conversation has thirty screenshots."""

    def show(self, observation: Observation) -> None:
        """Take what is on the screen now."""
        self._observation = observation
        self.screen = screenshot_key(observation.screenshot)
        self.screenshots[self.screen] = observation.screenshot

    def ask(self, prompt_ids: tuple[int, ...]) -> None:
        """Append a prompt that holds the screen; the oldest screenshot goes where there is a window."""
        self._turns.append(prompt_ids)
        self._images.append(self._observation.screenshot)
        self._length += self.chat.context_length(prompt_ids, [(self._observation.width, self._observation.height)])
        if self._spec.image_window is not None and len(self._images) > self._spec.image_window:
            self._leave_out(len(self.steps) - self._spec.image_window)

    def request(self, least_version: int) -> GenerateRequest:
        """Return the request for the next response, to a policy of this version or a later one."""
        sampling = Sampling(
            temperature=self._spec.temperature,
            max_tokens=self._spec.max_tokens,
            seed=derive_seed(self._spec.seed, len(self.steps)),
        )
        context = tuple(chain.from_iterable(self._turns))
        return GenerateRequest(context, tuple(self._images), sampling, self._spec.id, least_version)

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
        if len(response.logprobs) != len(response.token_ids):
            raise EngineError(f"{len(response.token_ids)} sampled ids came with {len(response.logprobs)} logprobs")
        try:
            self.chat.check_response(response.token_ids)
        except ValueError as error:
            raise EngineError(str(error)) from error
        step = Step(
            screenshot=self.screen,
            width=self._observation.width,
            height=self._observation.height,
            prompt_ids=self._turns[-1],
            response_ids=response.token_ids,
            sampler_logprobs=response.logprobs,
            policy_version=response.policy_version,
            response=text,
            action=action,
            parse_error=parse_error,
            reward=reward,
            patch=patch,
            patch_ids=self.chat.encode_response(patch) if patch else (),
        )
        self.steps.append(step)
        self._turns.append(step.history_ids)
        self._length += len(step.history_ids)

    def next_turn(self) -> Outcome | None:
        """Append the next prompt; return instead which limit was reached."""
        if len(self.steps) == self._spec.max_steps:
            return Outcome.MAX_STEPS
        self.ask(self.chat.next_prompt(self.steps[-1].history_ids))
        return None if self.has_room() else Outcome.CONTEXT_FULL

    def placed(self, action: Action) -> Action:
        """Return an action with a place: where the one before has left the pointer, if it names none itself."""
        action = begun_at(action, self._pointer)
        self._pointer = pointer_after(action, self._pointer)
        return action

    def frame(self) -> CoordinateFrame:
        """Return the map from the model's points to the screen's."""
        return self.chat.frame(self._observation.width, self._observation.height)

    def must_fail(self, actions: tuple[Action, ...]) -> bool:
        """Return whether the protocol performs `Fail` in the place of these actions."""
        last = len(self.steps) + 1 == self._spec.max_steps
        ends = any(isinstance(action, Terminal) for action in actions)
        return last and not ends and self._spec.protocol == "standard"

    def has_room(self) -> bool:
        """Return whether a whole response fits behind the prompt."""
        return self._length + self._spec.max_tokens <= self._spec.max_context

    def check_room(self, bare: int) -> None:
        """Check that there is room for the first response.

        Args:
            bare: Ids of the first prompt without the instruction.

        Raises:
            EnvError: If there would be with no instruction and the smallest screenshot: this task has too large ones.
        """
        if self.has_room():
            return
        message = (
            f"the first prompt of task {self._spec.task.id} has {self._length} tokens and leaves no room for a "
            f"response of max_tokens={self._spec.max_tokens} within max_context={self._spec.max_context}; raise "
            "max_context, lower max_tokens, or use a checkpoint whose processor has a lower max_pixels"
        )
        instruction = len(self._turns[0]) - bare
        picture = self.chat.image_tokens(self._observation.width, self._observation.height)
        least = self._length - instruction - picture + self.chat.image_tokens(1, 1)
        if least + self._spec.max_tokens <= self._spec.max_context:
            its = f"its instruction takes {instruction} of them, its screenshot {picture}"
            raise EnvError("reset", f"{message}, or leave the task out: {its}")
        raise ConfigError(message)

    def _leave_out(self, number: int) -> None:
        """Take the screenshot of a step out of what the next response reads."""
        step = self.steps[number]
        (blind,) = self.chat.windowed([step.prompt_ids], 0)
        self._length -= self.chat.context_length(step.prompt_ids, [(step.width, step.height)]) - len(blind)
        self._turns[2 * number] = blind  # a turn of the user and one of the assistant a step
        self._images.popleft()
