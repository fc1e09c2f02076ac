"""An asyncio front on an engine that one thread owns: checks of requests, and the checksum that compares weights."""

import asyncio
import itertools
import logging
import math
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from itertools import chain, pairwise
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from arpo.envs.screenshot import check_picture
from arpo.errors import ArpoError, EngineError, EngineGoneError, EnvError, RequestError, WeightSyncError
from arpo.inference.engine import GenerateRequest, Response, Shaped
from arpo.models.checkpoint import HEAD
from arpo.types import screenshot_key

log = logging.getLogger(__name__)

CLOSED = "the engine is closed"
MODULUS = 2**64
CHUNK, CPU_CHUNK = 2**22, 2**16
"""Elements hashed at a time on a GPU, 0.1 GB of its memory, and on a CPU, as many as its caches hold."""
FACTORS = (0x9E3779B1, 0x5851F42D4C957F2D)
"""Odd numbers with about as many ones as zeros."""
_LAYER = re.compile(r"(?:layers|blocks)\.(\d+)\.")
MOST_KNOWN = 2**16
"""Keys of pictures that an engine remembers as sound: 8 MB."""
CLOSE_S = 60.0
"""Seconds in which the library must free what it has; a call of it that hangs would never let a run end."""

_Order = GenerateRequest | Callable[[Future[Any]], None]
"""A request, or an update or a sleep, which comes when nothing is in flight."""
_Command = tuple[_Order, Future[Any], float]
"""An order, the future of its result, and the time at which it came."""


class ThreadedEngine(ABC):
    """The common part of all real engines: one thread makes every call into the library.

    Commands are handled in the order they came. Requests join the ones in flight between two steps. An update waits
    until those in flight have finished, and what came after it waits behind it, so a response is always of one
    version. Coroutines may come from any event loop. When the thread ends, all waiting callers fail.

    A subclass sets its fields, then calls `_launch`. Its underscored methods run in the engine's thread.
    """

    def __init__(
        self, *, max_in_flight: int, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype = torch.float32
    ) -> None:
        self._max_in_flight = max_in_flight
        self._shapes = shapes
        self._dtype = dtype
        self._check_pictures = PictureCheck()
        self._version = 0
        self._asleep = False
        self._shared: Mapping[str, Tensor] | None = None
        """What a policy of this process may be views of, once it was asked for."""
        self._shares = False
        """Whether the last update held some of them."""
        self._unchanged: int | None = None
        """The checksum of all weights while no policy may change them; None while none is views of them."""
        self._wake = threading.Condition()
        self._commands: deque[_Command] = deque()
        self._in_flight: dict[str, Future[Response]] = {}
        self._end: EngineGoneError | None = None
        self._closing = False
        self._keys = itertools.count()
        self._counts: Counter[str] = Counter(steps=0, moved_bytes=0)
        self._ready: Future[None] = Future()
        self._ended: Future[None] = Future()

    async def generate(self, request: GenerateRequest) -> Response:
        """See `InferenceEngine.generate`."""
        self._check(request)
        response: Response = await self._put(request)
        return response

    async def update_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See `InferenceEngine.update_weights`.

        Raises:
            WeightSyncError: If the tensors are not exactly the model's, or the engine holds other ones afterwards.
                It is dead then, unless the tensors are `Shaped`: those are matched before any is loaded.
            EngineGoneError: If the engine is dead or closed.
        """
        await self._put(partial(self._update, tensors, version))

    async def weights(self) -> Mapping[str, Tensor]:
        """See `InferenceEngine.weights`."""
        if self._shared is None:
            self._shared = await self._put(self._share)
        return self._shared

    async def sleep(self) -> None:
        """See `InferenceEngine.sleep`."""
        await self._put(self._go_to_sleep)

    @property
    def oldest_version(self) -> int:
        """The one version that there is."""
        return self._version

    def counters(self) -> dict[str, float]:
        """Return steps and loaded tensors together, seconds that requests waited, and the engine's own counts."""
        return {f"engine/{name}": float(value) for name, value in tuple(self._counts.items())}

    async def close(self) -> None:
        """Free every resource; idempotent. Requests in flight fail with `EngineError`.

        A thread that is blocked is left alone, and ends with the process.
        """
        with self._wake:
            self._closing = True
            self._wake.notify()
        if not (await asyncio.wait([asyncio.wrap_future(self._ended)], timeout=CLOSE_S))[0]:
            log.error("the engine's thread is blocked: what it holds is freed when this process ends")

    def _launch(self) -> None:
        """Start the thread and return when the engine can serve; an error of the start is raised here."""
        threading.Thread(target=self._main, name=type(self).__name__, daemon=True).start()
        self._ready.result()

    async def _put(self, order: _Order) -> Any:
        future: Future[Any] = Future()
        with self._wake:
            if self._end is not None or self._closing:
                raise EngineGoneError(str(self._end or CLOSED)) from self._end
            self._commands.append((order, future, time.monotonic()))
            self._wake.notify()
        return await asyncio.wrap_future(future)

    def _main(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._ended.set_result, None)
            stack.push(self._fail_pending)
            stack.callback(self._stop)
            self._start()
            self._ready.set_result(None)
            while self._turn():
                pass

    def _turn(self) -> bool:
        """Handle the commands, advance the requests in flight; False when the engine is to close."""
        with self._wake:
            self._wake.wait_for(lambda: self._closing or self._commands or self._in_flight)
            if self._closing:
                return False
        for key in [key for key, future in self._in_flight.items() if future.cancelled()]:
            self._abort(key)
            del self._in_flight[key]
        while (command := self._take()) is not None:
            order, future, came = command
            if isinstance(order, GenerateRequest):
                self._counts["waiting_s"] += time.monotonic() - came  # type: ignore[assignment]  # floats too
                self._admit(order, future)
            elif future.set_running_or_notify_cancel():
                order(future)
        if self._in_flight:
            self._counts["steps"] += 1
            for key, response in self._step():
                future = self._in_flight.pop(key)
                if future.set_running_or_notify_cancel():
                    future.set_result(response)
        return True

    def _take(self) -> _Command | None:
        """Return the next command if it is its turn: an update or a sleep waits until nothing is in flight."""
        with self._wake:
            if not self._commands:
                return None
            limit = self._max_in_flight if isinstance(self._commands[0][0], GenerateRequest) else 1
            return self._commands.popleft() if len(self._in_flight) < limit else None

    def _admit(self, request: GenerateRequest, future: Future[Response]) -> None:
        if future.cancelled():
            return
        if self._asleep:
            _fail(future, EngineError("the engine sleeps until the next weight update"))
            return
        key = str(next(self._keys))
        self._in_flight[key] = future
        try:
            self._add(key, request)
        except ArpoError as error:  # a refusal of ours, of this request; an error of the library ends the thread
            del self._in_flight[key]
            _fail(future, error if isinstance(error, EngineError) else RequestError(str(error)))

    def _update(self, tensors: Iterable[tuple[str, Tensor]], version: int, future: Future[None]) -> None:
        if isinstance(tensors, Shaped):
            given = ((name, torch.empty(shape, device="meta")) for name, shape in tensors.shapes.items())
            try:
                deque(matched(given, self._shapes), maxlen=0)
            except WeightSyncError as error:  # nothing has happened yet
                future.set_exception(error)
                return
        try:
            if self._asleep:
                self._wake_weights()
            else:
                self._check_unchanged()
            others = self._not_shared(matched(tensors, self._shapes))
            if others is None:
                self._keep_sharing()
            else:
                received = ChecksummedTensors(others, self._dtype)
                self._load(self._counted(received))
                self._compare(received, version)
                self._note_unchanged(received)
            if self._asleep:
                self._wake_cache()
            self._asleep = False
            self._reset_caches()
            self._stamp(version)
        except Exception as error:
            failed = WeightSyncError(f"the engine did not take the weights: {error}")
            failed.__cause__ = error
            future.set_exception(error if isinstance(error, ArpoError) else failed)
            raise
        self._version = version
        future.set_result(None)

    def _compare(self, received: "ChecksummedTensors", version: int) -> None:
        """Check that the engine holds what it was sent, before it serves it."""
        began = time.monotonic()
        if self._checksum(received.names) != received.checksum:
            raise WeightSyncError(
                f"after the update to policy version {version} the engine holds other weights than those that it was "
                f"sent: the checksum of {len(received.names)} tensors differs, so that some of them are old or broken"
            )
        self._counts["check_s"] += time.monotonic() - began  # type: ignore[assignment]  # floats too

    def _counted(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        self._shares = False
        for name, tensor in tensors:
            self._counts["steps"] += 1
            if self._is_shared(name, tensor):
                self._shares = True
            else:
                self._counts["moved_bytes"] += tensor.nbytes
            yield name, tensor

    def _not_shared(self, tensors: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]] | None:
        """Return the tensors of an update again; None where all are the engine's own, in which it has been made."""
        seen = []
        for name, tensor in tensors:
            seen.append((name, tensor))
            if not self._is_shared(name, tensor):
                return chain(seen, tensors)
        return None if self._shared else iter(seen)

    def _is_shared(self, name: str, tensor: Tensor) -> bool:
        own = (self._shared or {}).get(name)
        return own is not None and _same_memory(tensor, own)

    def _keep_sharing(self) -> None:
        """Check that the engine still computes with the tensors that it shares, and note what they are now."""
        held = self._weights()
        if not all(name in held and _same_memory(held[name], own) for name, own in (self._shared or {}).items()):
            raise WeightSyncError(
                "the engine holds other weights than those that it shares with the policy: set engine.one_copy=false"
            )
        self._unchanged = self._whole_checksum()

    def _note_unchanged(self, received: "ChecksummedTensors") -> None:
        """Note the weights after an update, where a policy is views of some; of an adapter's base it may be."""
        if has_adapter(received.names):
            if self._shared and self._unchanged is None:
                self._unchanged = self._whole_checksum()
        else:
            self._unchanged = received.checksum if self._shares else None

    def _whole_checksum(self) -> int:
        began = time.monotonic()
        found = self._checksum(list(self._shapes))
        self._counts["check_s"] += time.monotonic() - began  # type: ignore[assignment]  # floats too
        return found

    def _share(self, future: Future[Mapping[str, Tensor]]) -> None:
        try:
            weights = self._weights()
        except Exception as error:
            future.set_exception(EngineError(f"the engine could not share its weights: {error}"))
            raise
        future.set_result(weights)

    def _check_unchanged(self) -> None:
        """Check that shared weights have not changed since the last update, but while the engine slept."""
        if self._unchanged is not None and self._whole_checksum() != self._unchanged:
            raise WeightSyncError(
                "the weights that the engine shares with the policy changed while it answered, so that its last "
                "responses are of unknown ones: go on with resume=auto, or with two copies (engine.one_copy=false)"
            )

    def _go_to_sleep(self, future: Future[None]) -> None:
        try:
            if not self._asleep:
                self._check_unchanged()
                self._suspend()
        except Exception as error:
            future.set_exception(EngineError(f"the engine could not go to sleep: {error}"))
            raise
        self._asleep = True
        future.set_result(None)

    def _fail_pending(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Fail all waiting callers, whatever ended the thread: an error, or a call of `close`."""
        end = EngineGoneError(CLOSED)
        if error is not None:
            end = EngineGoneError(f"the engine is dead: {kind.__name__ if kind else ''}: {error}")
            end.__cause__ = error
        with self._wake:
            self._end = end
            left, self._commands = list(self._commands), deque()
        if not self._ready.done():
            self._ready.set_exception(error or end)
            return True
        if error is not None:
            log.error("%s", end, exc_info=error)
        for waiting in (*self._in_flight.values(), *(future for _, future, _ in left)):
            _fail(waiting, end)
        return True

    def _check(self, request: GenerateRequest) -> None:  # noqa: B027 - optional
        """Raise RequestError for a request that can be refused at once; runs in the caller's thread."""

    def _stamp(self, version: int) -> None:  # noqa: B027 - optional
        """Name the weights to the library, if it says of each token which ones made it."""

    def _weights(self) -> Mapping[str, Tensor]:
        """Return the weights that a policy of this process may be views of, by their names in the checkpoint."""
        return {}

    def _suspend(self) -> None:  # noqa: B027 - optional
        """Free the memory of weights and caches on the device; nothing is in flight."""

    def _wake_weights(self) -> None:  # noqa: B027 - optional
        """Take the memory of the weights back; what was in it may be lost, because an update follows."""

    def _wake_cache(self) -> None:  # noqa: B027 - optional
        """Take the memory of the caches back; they are empty."""

    def _reset_caches(self) -> None:  # noqa: B027 - optional
        """Forget everything computed with the old weights."""

    @abstractmethod
    def _start(self) -> None:
        """Load the engine."""

    @abstractmethod
    def _add(self, key: str, request: GenerateRequest) -> None:
        """Let a request join those in flight, or raise an `ArpoError` for it alone."""

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
    def _checksum(self, names: Sequence[str]) -> int:
        """Return the checksum of the tensors that an update of these names should have changed, as they are held."""

    @abstractmethod
    def _stop(self) -> None:
        """Free everything, also after a start that failed half-way."""


def check_request(request: GenerateRequest, image_token_id: int, vocabulary: int) -> None:
    """Refuse with a `RequestError` what would end the thread of an engine in the middle of a batch.

    That is an id that is none of the model's, images that do not match their placeholders, or impossible sampling.
    """
    ids, images, sampling = request.prompt_ids, request.images, request.sampling
    if not ids or set(map(type, ids)) != {int} or not 0 <= min(ids) <= max(ids) < vocabulary:
        wrong = [each for each in ids if type(each) is not int or not 0 <= each < vocabulary][:3]
        raise RequestError(f"the prompt must be ids from 0 to {vocabulary - 1}, at least one, got {wrong or ids}")
    if (placeholders := ids.count(image_token_id)) != len(images):
        raise RequestError(f"the prompt has {placeholders} image placeholders for {len(images)} images")
    if (image_token_id, image_token_id) in pairwise(ids):
        raise RequestError("the prompt has two image placeholders side by side: they would be taken for one image")
    numbers = (sampling.max_tokens, sampling.seed)
    whole = {int} == set(map(type, numbers)) and numbers[0] >= 1 and -(2**63) <= numbers[1] < 2**63
    if not whole or not 0 <= sampling.temperature < math.inf:
        raise RequestError(
            f"temperature must be at least 0 and finite, max_tokens at least 1 and seed of 64 bits, got {sampling}"
        )


class PictureCheck:
    """A check of the pictures of requests, each once, so that none breaks the thread that decodes it."""

    def __init__(self) -> None:
        self._sound: set[str] = set()

    def __call__(self, images: Sequence[bytes]) -> None:
        """Raise a `RequestError` where one is no screenshot, or of a size that models do not see."""
        for png in images:
            if not isinstance(png, bytes):
                raise RequestError(f"the request is refused: a screenshot must be the bytes of a PNG, got {type(png)}")
            key = screenshot_key(png)
            if key in self._sound:
                continue
            try:
                check_picture(png)
            except EnvError as error:
                raise RequestError(f"the request is refused: {error}") from error
            if len(self._sound) == MOST_KNOWN:
                self._sound.clear()
            self._sound.add(key)


def check_length(tokens: int, max_model_len: int) -> None:
    """Raise a `RequestError` where a context leaves no room for at least one token of a response."""
    if tokens >= max_model_len:
        raise RequestError(f"a context of {tokens} tokens leaves no room for a response in {max_model_len}")


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return (one.data_ptr(), one.dtype) == (other.data_ptr(), other.dtype)


def _fail(future: Future[Any], error: EngineError) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


def matched(
    tensors: Iterable[tuple[str, Tensor]], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of an update one by one, and check in the end that all of the checkpoint were there.

    An update is either the whole checkpoint or an adapter (`arpo.models.lora.adapter_tensors`). A tied output layer
    may be in it and is left out.

    Raises:
        WeightSyncError: At a name that the checkpoint does not have, or has with another shape, or at the end.
    """
    left = set(shapes)
    adapter = False
    for name, tensor in tensors:
        if name == HEAD and HEAD not in shapes:
            continue
        weight, shape = base_name(name), tuple(tensor.shape)
        if weight not in shapes:
            raise WeightSyncError(f"the model has no tensor '{name}'; its names are like '{min(shapes)}'")
        side = slice(None)
        if weight != name:  # B has the weight's rows and A its columns
            adapter, side = True, slice(1) if ".lora_B." in name else slice(1, None)
        if shape[side] != shapes[weight][side]:
            raise WeightSyncError(f"tensor '{name}' is {shape}, '{weight}' of the model is {shapes[weight]}")
        left.discard(name)
        yield name, tensor.detach()
    if left and not adapter:
        some = ", ".join(sorted(left)[:3])
        raise WeightSyncError(f"{len(left)} of {len(shapes)} tensors are missing from the update: {some}, ...")


def base_name(name: str) -> str:
    """Return the name of the weight that an adapter's tensor updates, or the name itself if it is a weight's."""
    layer, _, factor = name.partition(".lora_")
    return f"{layer}.weight" if factor else name


def has_adapter(names: Iterable[str]) -> bool:
    """Return whether the names of an update's tensors are an adapter's, and not those of weights alone."""
    return any(base_name(name) != name for name in names)


def checksum(tensor: Tensor) -> Tensor:
    """Return the checksum of a tensor's values in float32, as one int64 on its device.

    It is the same however an engine cuts, fuses and pads weights: each element counts by a hash of its bits, and a
    checksum is the sum of these hashes modulo 2^64, to which the slices of a fused tensor, or the shards of several
    GPUs, add up. A zero counts 0, so padding changes nothing. `combine_checksums` gives each layer an odd factor, so
    that two of them cannot be exchanged.
    """
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    chunk = CPU_CHUNK if tensor.device.type == "cpu" else CHUNK
    for values in tensor.detach().reshape(-1).split(chunk):  # type: ignore[no-untyped-call]
        mixed = values.float().view(torch.int32).long() * FACTORS[0]
        mixed = (mixed ^ (mixed >> 29)) * FACTORS[1]
        total += (mixed ^ (mixed >> 32)).sum()
    return total


def combine_checksums(checksums: Iterable[tuple[str, Tensor]]) -> int:
    """Return the checksum of several tensors by the name and the checksum of each, on the host."""
    total = 0
    for name, each in checksums:
        layer = _LAYER.search(name)  # in a checkpoint's names and in an engine's
        total += (2 * (int(layer[1]) if layer else 0) + 1) * int(each)
    return total % MODULUS


class ChecksummedTensors:
    """The tensors of an update on their way into an engine, and the checksum that it should have afterwards."""

    def __init__(self, tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> None:
        """Take the tensors by their names in the checkpoint, and the format in which the engine keeps them."""
        self.names: list[str] = []
        """Of the tensors so far."""
        self._tensors = tensors
        self._dtype = dtype
        self._checksums: list[Tensor] = []

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._tensors:
            self.names.append(name)
            # A fleet's tensors are in host memory, where one thread hashes a 7B in a minute, and a GPU in seconds.
            held = tensor if tensor.is_cuda or not torch.cuda.is_available() else tensor.cuda()
            self._checksums.append(checksum(held.to(self._dtype)))
            yield name, tensor

    @property
    def checksum(self) -> int:
        """The checksum of the tensors so far."""
        return combine_checksums(zip(self.names, self._checksums, strict=True))
