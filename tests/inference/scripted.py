"""An engine without a model: a function writes its responses."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from torch import Tensor

from arpo.errors import EngineError, EngineGoneError
from arpo.inference.engine import GenerateRequest, Response
from arpo.models.tokenization import ChatTokenizer


class ScriptedEngine:
    """An engine that answers `respond(request)`, encoded by the checkpoint's own tokenizer.

    Its log-probabilities are made up: a function of policy version, context and token, so that the same question gets
    the same numbers and a new version other ones. It remembers `requests`, and counts `updates`.
    """

    def __init__(
        self,
        chat: ChatTokenizer | str | Path,
        respond: Callable[[GenerateRequest], str],
        *,
        latency_s: float = 0.0,
        fail_every: int = 0,
        hold: Callable[[GenerateRequest], Awaitable[object]] | None = None,
        change: Callable[[Response], Response] = lambda response: response,
    ) -> None:
        """Answer with the text that `respond` returns; every n-th request fails, none where n is 0.

        Each request waits for a while and for what `hold` returns, and its response is changed on its way.
        """
        self._chat = chat if isinstance(chat, ChatTokenizer) else ChatTokenizer(chat)
        self._respond = respond
        self._latency_s = latency_s
        self._fail_every = fail_every
        self._hold = hold
        self._change = change
        self._closed = False
        self.requests: list[GenerateRequest] = []
        self.policy_version = 0
        self.updates = 0
        self.asleep = False
        self._in_flight = 0

    async def generate(self, request: GenerateRequest) -> Response:
        if self._closed:
            raise EngineGoneError("the engine is closed")
        if self.asleep:
            raise EngineError("the engine sleeps until the next weight update")
        self.requests.append(request)
        number, version = len(self.requests), self.policy_version
        self._in_flight += 1
        try:
            await asyncio.sleep(self._latency_s)
            if self._hold is not None:
                await self._hold(request)
        finally:
            self._in_flight -= 1
        if self._fail_every and number % self._fail_every == 0:
            raise EngineError(f"request {number} was scripted to fail")
        ids = self._chat.encode_response(self._respond(request))
        room = request.sampling.max_tokens
        reason = "stop" if len(ids) <= room else "length"
        return self._change(Response(ids[:room], self._logprobs(request, ids[:room], version), reason, version))

    async def update_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Adopt the version and read the tensors to their end, as a real engine would."""
        for _ in tensors:
            pass
        self.policy_version = version
        self.updates += 1
        self.asleep = False

    async def weights(self):
        return {}

    async def sleep(self) -> None:
        while self._in_flight:
            await asyncio.sleep(0.001)
        self.asleep = True

    @property
    def oldest_version(self) -> int:
        return self.policy_version

    def counters(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        self._closed = True

    def _logprobs(self, request: GenerateRequest, ids: tuple[int, ...], version: int) -> tuple[float, ...]:
        context = hashlib.sha256(repr((version, request.prompt_ids)).encode())
        for png in request.images:
            context.update(png)
        logprobs = []
        for token in ids:
            context.update(token.to_bytes(4, "big"))
            logprobs.append(-(int.from_bytes(context.digest()[:4], "big") + 1) / 2**32)
        return tuple(logprobs)
