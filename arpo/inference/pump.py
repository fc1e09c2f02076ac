"""An asyncio front on an engine that one thread owns: commands in, futures out, continuous batching in between."""

import asyncio
import itertools
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType

from torch import Tensor

from arpo.errors import ArpoError, EngineError, WeightSyncError
from arpo.inference.engine import GenerateRequest, Response
from arpo.models.names import HEAD, base_name

log = logging.getLogger(__name__)

CLOSED = "the engine is closed"


@dataclass(frozen=True, slots=True, eq=False)
class _Generate:
    key: str
    request: GenerateRequest
    future: Future[Response] = field(default_factory=Future)


@dataclass(frozen=True, slots=True, eq=False)
class _Update:
    tensors: Iterable[tuple[str, Tensor]]
    version: int
    future: Future[None] = field(default_factory=Future)


class PumpedEngine(ABC):
    """The common part of all real engines: one thread makes every call into the library.

    Commands are handled in the order they came. Requests join the ones in flight between two steps. An update waits
    until those in flight have finished, and what came after it waits behind it, so a response is always of one
    version. Coroutines may come from any event loop. Whatever ends the thread fails everyone who waits.

    A subclass sets its fields, then calls `_launch`. Its underscored methods run in the engine's thread only.
    """

    def __init__(self, *, max_in_flight: int, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._max_in_flight = max_in_flight
        self._shapes = shapes
        self._version = 0
        self._wake = threading.Condition()
        self._commands: deque[_Generate | _Update] = deque()
        self._cancelled: set[str] = set()
        self._in_flight: dict[str, Future[Response]] = {}
        self._updating: _Update | None = None
        self._end: EngineError | None = None
        self._closing = False
        self._keys = itertools.count()
        self._ready: Future[None] = Future()
        self._ended: Future[None] = Future()

    async def generate(self, request: GenerateRequest) -> Response:
        """See `InferenceEngine.generate`."""
        self._check(request)
        command = _Generate(str(next(self._keys)), request)
        self._put(command)
        try:
            return await asyncio.wrap_future(command.future)
        except asyncio.CancelledError:
            with self._wake:
                self._cancelled.add(command.key)
                self._wake.notify()
            raise

    async def update_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See `InferenceEngine.update_weights`.

        Raises:
            WeightSyncError: If the tensors are not exactly the model's; the engine is dead then.
            EngineError: If the engine is dead or closed.
        """
        command = _Update(tensors, version)
        self._put(command)
        await asyncio.wrap_future(command.future)

    async def close(self) -> None:
        """Free every resource; idempotent. Requests in flight fail with `EngineError`."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.shield(asyncio.wrap_future(self._ended))

    def _launch(self) -> None:
        """Start the thread and return when the engine can serve; an error of the start is raised here."""
        threading.Thread(target=self._main, name=type(self).__name__, daemon=True).start()
        self._ready.result()

    def _put(self, command: _Generate | _Update) -> None:
        with self._wake:
            if self._end is not None or self._closing:
                raise EngineError(str(self._end or CLOSED)) from self._end
            self._commands.append(command)
            self._wake.notify()

    def _main(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._ended.set_result, None)
            stack.push(self._bury)
            stack.callback(self._stop)
            self._start()
            self._ready.set_result(None)
            while self._turn():
                pass

    def _turn(self) -> bool:
        """Handle what came, advance what is in flight; False when the engine is to close."""
        with self._wake:
            self._wake.wait_for(self._has_work)
            if self._closing:
                return False
            cancelled, self._cancelled = self._cancelled, set()
        for key in cancelled & self._in_flight.keys():
            self._abort(key)
            del self._in_flight[key]
        while (command := self._take()) is not None:
            if isinstance(command, _Update):
                self._update(command)
            else:
                self._admit(command)
        if self._in_flight:
            for key, response in self._step():
                self._in_flight.pop(key).set_result(response)
        return True

    def _has_work(self) -> bool:
        return bool(self._closing or self._commands or self._in_flight)

    def _take(self) -> _Generate | _Update | None:
        """Return the next command if it is its turn: an update waits until nothing is in flight."""
        with self._wake:
            if not self._commands:
                return None
            limit = 1 if isinstance(self._commands[0], _Update) else self._max_in_flight
            return self._commands.popleft() if len(self._in_flight) < limit else None

    def _admit(self, command: _Generate) -> None:
        if not command.future.set_running_or_notify_cancel():
            return
        self._in_flight[command.key] = command.future
        try:
            self._add(command.key, command.request)
        except EngineError as error:
            del self._in_flight[command.key]
            command.future.set_exception(error)

    def _update(self, command: _Update) -> None:
        command.future.set_running_or_notify_cancel()
        self._updating = command
        self._load(checked(command.tensors, self._shapes))
        self._reset_caches()
        self._version = command.version
        self._updating = None
        command.future.set_result(None)

    def _bury(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Fail everyone who waits, whatever ended the thread: an error, or a call of `close`."""
        end = EngineError(CLOSED)
        if error is not None:
            end = EngineError(f"the engine is dead: {kind.__name__ if kind else ''}: {error}")
            end.__cause__ = error
        with self._wake:
            self._end = end
            left, self._commands = list(self._commands), deque()
        if not self._ready.done():
            self._ready.set_exception(error or end)
            return True
        if error is not None:
            log.error("%s", end, exc_info=error)
        for waiting in self._in_flight.values():
            waiting.set_exception(end)
        if self._updating is not None:
            failed = WeightSyncError(f"the engine did not take the weights: {error}")
            failed.__cause__ = error
            self._updating.future.set_exception(error if isinstance(error, ArpoError) else failed)
        for command in left:
            if command.future.set_running_or_notify_cancel():
                command.future.set_exception(end)
        return True

    def _check(self, request: GenerateRequest) -> None:  # noqa: B027 - optional
        """Raise EngineError for a request that can be refused at once; runs in the caller's thread."""

    @abstractmethod
    def _start(self) -> None:
        """Load the engine."""

    @abstractmethod
    def _add(self, key: str, request: GenerateRequest) -> None:
        """Let a request join those in flight, or raise EngineError for it alone."""

    @abstractmethod
    def _step(self) -> Sequence[tuple[str, Response]]:
        """Advance those in flight and return the finished ones."""

    @abstractmethod
    def _abort(self, key: str) -> None:
        """Drop a request whose caller has gone."""

    @abstractmethod
    def _load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights, which are exactly the checkpoint's; nothing is in flight."""

    @abstractmethod
    def _reset_caches(self) -> None:
        """Forget everything computed with the old weights."""

    @abstractmethod
    def _stop(self) -> None:
        """Free everything, also after a start that failed half-way."""


def checked(
    tensors: Iterable[tuple[str, Tensor]], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of an update one by one, and make sure in the end that all of the checkpoint were there.

    An update is either the whole checkpoint or an adapter (`arpo.models.lora.adapter_tensors`).

    Args:
        tensors: By the names of the checkpoint; a tied output layer may be among them and is left out.
        shapes: Of every tensor of the checkpoint.

    Raises:
        WeightSyncError: At a name the checkpoint does not have or has with another shape, or at the end when a tensor
            is missing.
    """
    left = set(shapes)
    adapter = False
    for name, tensor in tensors:
        if name == HEAD and HEAD not in shapes:
            continue
        weight, shape = base_name(name), tuple(tensor.shape)
        if weight not in shapes:
            raise WeightSyncError(f"the model has no tensor '{name}'; its names are like '{min(shapes)}'")
        if weight != name:  # B has the weight's rows and A its columns
            adapter = True
            fits = shape[0] == shapes[weight][0] if ".lora_B." in name else shape[1] == shapes[weight][1]
        else:
            fits = shape == shapes[name]
        if not fits:
            raise WeightSyncError(f"tensor '{name}' is {shape}, '{weight}' of the model is {shapes[weight]}")
        left.discard(name)
        yield name, tensor.detach()
    if left and not adapter:
        some = ", ".join(sorted(left)[:3])
        raise WeightSyncError(f"{len(left)} of {len(shapes)} tensors are missing from the update: {some}, ...")
