"""The conversation with a foreign agent over one episode, as the tree of exchanges that is trained: no I/O, no clock.

A request is opened as a turn for each of its answers. A turn is recorded when the engine has responded, and delivered
before the last byte of the reply is sent: until then it is in no later context, and not trained.
"""

import hashlib
import json
import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from arpo import types
from arpo.bounds import AtLeastOne, checked
from arpo.endpoint.conversation import Answer, Ask, Stamp
from arpo.endpoint.rendering import Renderer
from arpo.endpoint.splicing import Prompt, Reading, Sampled
from arpo.endpoint.wire.common import context_too_long, invalid
from arpo.errors import EngineError, RefusedError
from arpo.inference.engine import GenerateRequest, Response, Sampling
from arpo.models.tokenization import ChatTokenizer

KEPT = 256
"""Requests that are recognised when they are sent again; the oldest are forgotten."""
COUNTED = 64
"""Counters that a session may have: agents can make up any number of options."""
UNHONOURED = "unhonoured"
"""The beginning of the counters of options without effect."""
RETRY_AFTER_S = 10.0
"""Seconds after which an agent may ask again whose budget is spent: requests in flight may leave some of it."""


@dataclass(frozen=True, slots=True)
class Alias:
    """A name of the model, by which an agent says what its answers are for."""

    trained: bool = True
    temperature: float | None = None
    """Of its answers; None: that of the run."""


ALIASES: Mapping[str, Alias] = {
    "policy": Alias(),
    "helper": Alias(trained=False),
    "greedy": Alias(trained=False, temperature=0.0),
}
"""Any other name is that of the policy."""


@checked
@dataclass(frozen=True, slots=True)
class Budgets:
    """The most that an agent is given in an episode."""

    answers: AtLeastOne
    tokens: AtLeastOne
    """Sampled ones; a turn in flight holds as many as its answer may have."""
    pictures: AtLeastOne = 128
    """Of one request: an engine is made for so many, and refuses more."""
    picture_bytes: AtLeastOne = 256 * 2**20
    """Of all pictures that are recorded or in flight, after which there is no further request."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One of the answers to a request, as the engine is asked for it."""

    name: str
    """The only one in its session; it follows from the context, as the seed does."""
    request: GenerateRequest
    prompt: Prompt
    prompt_tokens: int
    ask: Ask
    alias: str


RetryKey = tuple[str, str | Ask]
"""A path, and the name that the agent has given to a request or else the request itself."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A request that is recognised when it is sent again."""

    turns: tuple[Turn, ...]
    stamp: Stamp
    """That of its reply, so that a second one has the same bytes."""


@checked
class Session:
    """The conversation of an agent over one episode. It is called by one thread at a time.

    Its key is the name of the episode for engines and logs, and no secret. The seed of `sampling` is not used.
    """

    def __init__(
        self,
        key: str,
        renderer: Renderer,
        chat: ChatTokenizer,
        *,
        seed: int,
        sampling: Sampling,
        max_context: AtLeastOne,
        budgets: Budgets,
        aliases: Mapping[str, Alias] = ALIASES,
    ) -> None:
        self.key = key
        self._renderer, self._chat, self._seed, self._sampling = renderer, chat, seed, sampling
        self._max_context, self._budgets, self._aliases = max_context, budgets, {"policy": Alias(), **aliases}
        self._in_flight: dict[str, Turn] = {}
        self._opened = Counter[bytes]()
        self._recorded: dict[str, tuple[int, Reading]] = {}
        self._past: dict[str, Sampled] = {}
        self._exchanges: list[types.Exchange] = []
        self._kept: dict[RetryKey, Kept] = {}
        self._counts = Counter(dict.fromkeys(("sampled_tokens", "continued", "forked", "begun", "dropped"), 0))
        self._closed = False
        self.screenshots: dict[str, bytes] = {}
        """PNG bytes of every picture in an exchange, by `screenshot_key`."""

    def open(self, ask: Ask, *, least_version: int = 0) -> list[Turn]:
        """Return a turn for each answer to a request, or refuse it: after the end, over a budget, or without room."""
        self._check_not_closed()
        left = self._tokens_left(ask.n)
        prompt, tokens = self._prompt(ask)
        if tokens >= self._max_context:
            raise context_too_long(tokens, self._max_context)
        asked = self._sampling.max_tokens if ask.max_tokens is None else ask.max_tokens
        most = min(asked, self._sampling.max_tokens, left, self._max_context - tokens)
        name = ask.alias if ask.alias in self._aliases else "policy"
        forced = self._aliases[name].temperature
        sampling = Sampling(self._sampling.temperature if forced is None else forced, most)
        images = tuple(picture.png for picture in prompt.pictures)
        turns = [
            Turn(label, GenerateRequest(prompt.ids, images, how, self.key, least_version), prompt, tokens, ask, name)
            for how, label in self._ways(sampling, prompt, name, ask.n)
        ]
        self._in_flight |= {turn.name: turn for turn in turns}
        for option in set(ask.unhonoured):
            counter = f"{UNHONOURED}_{re.sub('[^a-zA-Z0-9_.]', '_', option)[:40]}"
            self._counts[counter if counter in self._counts or len(self._counts) < COUNTED else UNHONOURED] += 1
        return turns

    def count(self, ask: Ask) -> int:
        """Return the tokens of the context that a request would have, each picture as long as the model sees it."""
        self._check_not_closed()
        return self._prompt(ask)[1]

    def record(self, turn: Turn, response: Response) -> Answer:
        """Add a turn, masked until it is delivered, and return its answer; an `EngineError` leaves it in flight."""
        self._check_not_closed()
        if turn.name not in self._in_flight:
            raise ValueError(f"turn {turn.name!r} is not in flight: record each turn once, and none that was dropped")
        self._check_response(turn, response)
        ids, prompt = response.token_ids, turn.prompt
        finish, logprobs, version = response.finish_reason, response.logprobs, response.policy_version
        reading = self._renderer.read(
            ids, logprobs, finish, ask=turn.ask, name=turn.name, prompt_tokens=turn.prompt_tokens
        )
        seen = prompt.ids[: prompt.added].count(self._chat.image_token_id)
        pictures = tuple(types.Picture(each.key, each.width, each.height) for each in prompt.pictures[seen:])
        parent = None if prompt.parent is None else self._recorded[prompt.parent][0]
        said = prompt.ids[prompt.added :], pictures, ids, logprobs, version, finish
        self._exchanges.append(types.Exchange(parent, *said, trained=False, delivered=0))
        self._recorded[turn.name] = len(self._exchanges) - 1, reading
        self.screenshots |= {picture.key: picture.png for picture in prompt.pictures}
        del self._in_flight[turn.name]
        place = "continued" if prompt.parent is not None else "forked" if prompt.spliced else "begun"
        self._counts.update({place: 1, f"of_{turn.alias}": 1, "sampled_tokens": len(ids)})
        return reading.answer

    def deliver(self, turns: Iterable[Turn]) -> None:
        """Let answers stand in later contexts and be trained, if their alias is: all of them, or none on an error."""
        self._check_not_closed()
        new = [turn for turn in turns if turn.name not in self._past]
        if missing := [turn.name for turn in new if turn.name not in self._recorded]:
            raise ValueError(f"turns {missing} have no response: record each turn before it is delivered")
        for turn in new:
            number, reading = self._recorded[turn.name]
            whole = len(reading.ids) == len(self._exchanges[number].response_ids)
            trained, delivered = self._aliases[turn.alias].trained, None if whole else len(reading.ids)
            self._exchanges[number] = replace(self._exchanges[number], trained=trained, delivered=delivered)
            keys = tuple(picture.key for picture in turn.prompt.pictures)
            self._past[turn.name] = Sampled(turn.name, turn.prompt.ids, keys, reading)

    def drop(self, turns: Iterable[Turn]) -> None:
        """Abandon turns in flight, whose budget is free again; if their request is sent again, it is a new one."""
        names = {turn.name for turn in turns} & self._in_flight.keys()
        self._in_flight = {name: turn for name, turn in self._in_flight.items() if name not in names}
        self._counts["dropped"] += len(names)
        self._kept = {key: kept for key, kept in self._kept.items() if not names & {turn.name for turn in kept.turns}}

    def refuse(self, turns: Iterable[Turn]) -> None:
        """Abandon the turns of a request that the engine does not take, and count it: the run may be set up wrong."""
        self._counts["refused_by_engine"] += 1
        self.drop(turns)

    def count_forwarded(self) -> None:
        """Count a request that another model answers, of which nothing is recorded; refuse it over the budget."""
        self._check_not_closed()
        if self._counts["forwarded"] >= self._budgets.answers:
            spent = f"the episode's budget of {self._budgets.answers} answers is spent; end the task"
            raise RefusedError("rate_limit_exceeded", spent, retry_after_s=RETRY_AFTER_S)
        self._counts["forwarded"] += 1

    def remember(self, retry_key: RetryKey, turns: Sequence[Turn], stamp: Stamp) -> None:
        """Keep the turns of a request for when the agent sends it again."""
        self._kept[retry_key] = Kept(tuple(turns), stamp)
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]

    def known(self, retry_key: RetryKey, ask: Ask) -> Kept | None:
        """Return a request that was sent before, and refuse another one with its key."""
        self._check_not_closed()
        kept = self._kept.get(retry_key)
        if kept is not None and kept.turns[0].ask != ask:
            raise invalid("Idempotency-Key was used for another body: send a new key with a new request")
        return kept

    def answers(self, turns: Sequence[Turn]) -> tuple[Answer, ...] | None:
        """Return the answers of turns; None as long as one of them is not recorded."""
        readings = [self._recorded[turn.name][1] for turn in turns if turn.name in self._recorded]
        return tuple(reading.answer for reading in readings) if len(readings) == len(turns) else None

    def close(self) -> tuple[types.Exchange, ...]:
        """End the conversation and return its record, also when it was closed before; turns in flight are dropped."""
        if not self._closed:
            self.drop(list(self._in_flight.values()))
        self._closed = True
        return tuple(self._exchanges)

    def counters(self) -> dict[str, int]:
        """Return counts by metric: an exchange has `continued` one, `forked` behind some, or `begun` before any."""
        exchanges = len(self._exchanges)
        return {"exchanges": exchanges, "undelivered": exchanges - len(self._past), **self._counts}

    @property
    def aliases(self) -> tuple[str, ...]:
        """The names of the model."""
        return tuple(self._aliases)

    def _check_not_closed(self) -> None:
        if self._closed:
            raise RefusedError("closed", "the episode of this key has ended: stop, and ask for nothing more")

    def _prompt(self, ask: Ask) -> tuple[Prompt, int]:
        """Return the context of a request, and its tokens."""
        if (least := ask.letters() // self._chat.longest_token) >= self._max_context:  # to count them would take long
            raise context_too_long(least, self._max_context)
        if (pictures := sum(1 for _ in ask.pictures())) > self._budgets.pictures:
            raise invalid(
                f"the messages hold {pictures} pictures, more than {self._budgets.pictures} (harness.max_pictures): "
                "leave old ones out"
            )
        prompt = self._renderer.prompt(ask, list(self._past.values()))
        placed = prompt.ids.count(self._chat.image_token_id)
        if placed != len(prompt.pictures):
            problem = f"of the {len(prompt.pictures)} pictures in messages, the chat template writes {placed}"
            raise invalid(f"{problem}: send pictures in messages of the user")
        return prompt, self._chat.context_length(prompt.ids, [(each.width, each.height) for each in prompt.pictures])

    def _tokens_left(self, answers: int) -> int:
        """Return the most tokens of each of the next answers, if the budgets allow one at all."""
        budgets, sampled = self._budgets, self._counts["sampled_tokens"]
        given = len(self._exchanges) + len(self._in_flight)
        held = sum(turn.request.sampling.max_tokens for turn in self._in_flight.values())
        asked = {each.key: each.png for turn in self._in_flight.values() for each in turn.prompt.pictures}
        picture_bytes = sum(map(len, (self.screenshots | asked).values()))
        left = (budgets.tokens - sampled - held) // answers
        if given + answers <= budgets.answers and left >= 1 and picture_bytes <= budgets.picture_bytes:
            return left
        spent = (
            f"the episode's budget is spent: of {budgets.answers} answers {given} and of {budgets.tokens} tokens "
            f"{sampled + held} are given or in flight, as are of {budgets.picture_bytes} bytes of pictures "
            f"{picture_bytes}, and {answers} answers are asked for; end the task"
        )
        raise RefusedError("rate_limit_exceeded", spent, retry_after_s=RETRY_AFTER_S)

    def _ways(self, sampling: Sampling, prompt: Prompt, alias: str, count: int) -> Iterator[tuple[Sampling, str]]:
        """Yield the way to sample each answer, and its name, whatever else is asked for before or at the same time."""
        head = json.dumps([self._seed, alias, [picture.key for picture in prompt.pictures]]).encode()
        context = hashlib.sha256(head + array("q", prompt.ids).tobytes()).digest()
        for _ in range(count):
            digest = hashlib.sha256(context + self._opened[context].to_bytes(8, "big")).digest()
            self._opened[context] += 1
            yield replace(sampling, seed=int.from_bytes(digest[:8], "big") >> 1), digest[8:16].hex()

    def _check_response(self, turn: Turn, response: Response) -> None:
        ids, count, most = response.token_ids, len(response.token_ids), turn.request.sampling.max_tokens
        finishes = ("stop", "length") if ids[-1:] == (self._chat.end_of_turn_id,) else ("length",)
        scored = len(response.logprobs) == count and all(map(math.isfinite, response.logprobs))
        try:
            self._chat.check_response(ids)
        except ValueError as error:
            raise EngineError(str(error)) from error
        if not (1 <= count <= most and scored and response.finish_reason in finishes):
            raise EngineError(
                f"response must hold 1 to {most} ids, a finite log-probability of each, and a finish_reason among "
                f"{finishes}, got {count}, {len(response.logprobs)} and {response.finish_reason!r}: check the engine"
            )
