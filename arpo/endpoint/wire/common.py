"""The parts that all dialects share: kinds of refusals, limits of a request, fields and their types, pictures."""

import binascii
import hashlib
import io
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeVar

import msgspec
import pybase64
from PIL import Image
from pydantic_core import from_json

from arpo.agent.actions import MAX_RATIO
from arpo.endpoint.conversation import Ask, Picture, Tool, ToolCall
from arpo.envs.screenshot import LARGEST_SCREEN, check_picture, measured
from arpo.errors import EnvError, RefusedError, env_boundary

KINDS: Mapping[str, tuple[int, str, str]] = {
    "invalid": (400, "invalid_request_error", "invalid_request_error"),
    "context_length_exceeded": (400, "invalid_request_error", "invalid_request_error"),
    "invalid_api_key": (401, "invalid_request_error", "authentication_error"),
    "not_found": (404, "invalid_request_error", "not_found_error"),
    "closed": (409, "invalid_request_error", "invalid_request_error"),
    "too_large": (413, "invalid_request_error", "request_too_large"),
    "rate_limit_exceeded": (429, "rate_limit_error", "rate_limit_error"),
    "failed": (500, "server_error", "api_error"),
    "unavailable": (503, "server_error", "overloaded_error"),
}
"""The kinds of refusals: the status, and the type of error in OpenAI's and in Anthropic's dialect."""
FINAL = frozenset(("closed", "unavailable"))
"""Those behind which there is nothing to ask for; OpenAI's and Anthropic's clients would ask twice more."""
FORMATS = ("PNG", "JPEG", "WEBP")
HARMLESS = frozenset(
    {"metadata", "user", "store", "service_tier", "safety_identifier"}
    | {"prompt_cache_key", "prompt_cache_retention", "cache_control"}
)
"""Options that would change no answer."""

Body = TypeVar("Body", bound=msgspec.Struct)
Encode = msgspec.json.Encoder().encode


def invalid(message: str) -> RefusedError:
    """Return the refusal of a request that cannot be read as it is."""
    return RefusedError("invalid", message)


def context_too_long(tokens: int, most: int) -> RefusedError:
    """Return the refusal of a conversation without room for an answer, in the words that agents know."""
    return RefusedError(
        "context_length_exceeded",
        f"prompt is too long: {tokens} tokens > {most} maximum. This model's maximum context length is {most} tokens. "
        f"However, your messages resulted in {tokens} tokens. Please reduce the length of the messages.",
    )


def status_of(refusal: RefusedError) -> tuple[int, dict[str, str]]:
    """Return the status of a refusal and its headers."""
    wait = refusal.retry_after_s
    headers = {"x-should-retry": "false"} if refusal.kind in FINAL else {}
    return KINDS[refusal.kind][0], headers if wait is None else headers | {"Retry-After": str(max(1, round(wait)))}


def models(names: Iterable[str], created: int) -> bytes:
    """Return the list of models, in a form that is both OpenAI's and Anthropic's."""
    entries = [
        {"id": name, "object": "model", "created": created, "owned_by": "arpo"}
        | {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
        for name in names
    ]
    ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]} if entries else {}
    return Encode({"object": "list", "data": entries, "has_more": False, "first_id": None, "last_id": None} | ends)


def event(content: Mapping[str, Any], name: str = "") -> bytes:
    """Return a server-sent event."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + Encode(content) + b"\n\n"


# --- requests --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one request may hold."""

    body_bytes: int = 64 * 2**20
    messages: int = 8192
    tools: int = 512
    answers: int = 16
    stops: int = 16
    depth: int = 64
    pictures: int = 128
    picture_bytes: int = 24 * 2**20
    new_pixels: int = 16 * LARGEST_SCREEN
    """Pixels of pictures that have not been seen before; one more is decoded only below."""


def check_count(name: str, count: int, most: int, least: int = 0) -> None:
    """Check a number of things."""
    if not least <= count <= most:
        raise invalid(f"{name} must be from {least} to {most}, got {count}")


def check_depth(name: str, value: Any, depth: int) -> None:
    """Check that a value is nested no deeper."""
    level = [value]
    for _ in range(depth):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise invalid(f"{name} must not be nested deeper than {depth} levels: make it flatter")


@dataclass(slots=True)
class Pictures:
    """The pictures of a session, each decoded once: later it is known by the text that it came as.

    Least recently used ones are dropped first. Safe to call from several threads.
    """

    most_bytes: int = 64 * 2**20
    """Of PNGs and of the texts that they came as: those of some 25 screenshots of 1920 x 1080."""
    _known: OrderedDict[tuple[int, str], tuple[str, Picture]] = field(default_factory=OrderedDict)
    """By length and end of the text, which hold a PNG's checksums: to compare a text is cheaper than to hash it."""
    _bytes: int = 0
    _lock: Lock = field(default_factory=Lock)
    decoded: int = 0
    """The number of pictures that were not known."""

    def known(self, data: str) -> Picture | None:
        """Return the picture that has come as a text before."""
        with self._lock:
            text, picture = self._known.get(_mark(data), ("", None))
            if text != data:
                return None
            self._known.move_to_end(_mark(data))
            return picture

    def keep(self, data: str, picture: Picture) -> None:
        """Keep a picture, in the place of another one with the same mark."""
        with self._lock:
            self.decoded += 1
            if (other := self._known.pop(_mark(data), None)) is not None:
                self._bytes -= _size(*other)
            self._known[_mark(data)] = data, picture
            self._bytes += _size(data, picture)
            while self._bytes > self.most_bytes and len(self._known) > 1:
                self._bytes -= _size(*self._known.popitem(last=False)[1])


def _mark(data: str) -> tuple[int, str]:
    return len(data), data[-64:]


def _size(data: str, picture: Picture) -> int:
    return len(data) + len(picture.png)


class Reader:
    """The reader of one request, within its limits: of its fields, its tools and calls, and all of its pictures."""

    def __init__(self, pictures: Pictures, limits: Limits) -> None:
        self.limits = limits
        self._pictures = pictures
        self._count = self._pixels = 0

    def decoded(self, body: bytes, kind: type[Body]) -> tuple[Body, list[str], int]:
        """Return the fields of a body, the names of others, and a hash of these with their values and of the tools."""
        if len(body) > (most := self.limits.body_bytes):
            raise RefusedError("too_large", f"the body has {len(body)} bytes, more than {most}: send less")
        try:
            given = from_json(body, allow_inf_nan=False)  # in a quarter of msgspec's time, for long texts of pictures
            fields = msgspec.convert(given, kind)
            known = HARMLESS.union(kind.__struct_encode_fields__)
            others = {name: given[name] for name in sorted(given.keys() - known) if given[name] is not None}
            return fields, list(others), hash(Encode([others, given.get("tools")]))  # they may have many megabytes
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise invalid(f"the body must be an object in JSON with fields of their types: {error}") from error

    def check_lengths(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> None:
        """Check the lengths of a request's lists before they are read."""
        check_count("messages", len(messages), self.limits.messages, 1)
        check_count("tools", len(tools or ()), self.limits.tools)

    def tool(self, name: object, description: object, schema: object) -> Tool:
        """Return a tool, with names and types checked."""
        if not isinstance(name, str) or not name.strip():
            raise invalid(f"tools: name must be a text that is not empty, got {str(name)[:40]!r}")
        if not isinstance(schema, dict | None):
            raise invalid(f"tools: the schema of {name[:40]!r} must be an object")
        check_depth(f"tools: the schema of {name[:40]!r}", schema, self.limits.depth)
        return Tool(
            name, description if isinstance(description, str) else "", schema or {"type": "object", "properties": {}}
        )

    def call(self, call_id: str, name: str, arguments: str | Mapping[str, Any]) -> ToolCall:
        """Return an echoed call of a tool; its arguments are an object, or one in JSON."""
        given: Any = arguments
        if isinstance(arguments, str):
            try:
                given = json.loads(arguments or "{}")
            except (ValueError, RecursionError) as error:
                raise invalid(f"arguments of the call {call_id[:40]!r} must be an object in JSON: {error}") from error
        if not isinstance(given, dict):
            raise invalid(f"arguments of the call {call_id[:40]!r} must be an object, got {type(given).__name__}")
        check_depth(f"arguments of the call {call_id[:40]!r}", given, self.limits.depth)
        return ToolCall(
            call_id, name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        )

    def checked(self, ask: Ask) -> Ask:
        """Return a request of which every number is allowed."""
        check_count("n", ask.n, self.limits.answers, 1)
        check_count("stop", len(ask.stop), self.limits.stops)
        if ask.max_tokens is not None and ask.max_tokens < 1:
            raise invalid(f"the number of tokens of an answer must be at least 1, got {ask.max_tokens}")
        if not all(ask.stop):
            raise invalid("stop must hold no empty text")
        return ask

    def from_url(self, url: object) -> Picture:
        """Return the picture that a data: URL holds; no other address is ever opened."""
        at = url.find(",", 0, 200) + 1 if isinstance(url, str) and url.startswith("data:") else 0
        if not isinstance(url, str) or not url[:at].endswith(";base64,"):
            raise invalid(
                f"a picture must be a data: URL such as data:image/png;base64,…, got {str(url)[:40]!r}: this endpoint "
                "opens no address and no file; send the bytes"
            )
        return self.from_base64(url, at)

    def from_base64(self, data: object, at: int = 0) -> Picture:
        """Return the picture that a text holds in base 64 from a place on."""
        limits = self.limits
        self._count += 1
        check_count("the number of pictures", self._count, limits.pictures)
        if not isinstance(data, str) or not data.isascii() or len(data) > limits.picture_bytes * 4 // 3 + 4 + at:
            raise invalid(f"a picture must be a text in base 64 of at most {limits.picture_bytes} bytes")
        if (picture := self._pictures.known(data)) is None:
            try:
                picture = self._converted(pybase64.b64decode(data[at:], validate=True))
            except binascii.Error as error:
                raise invalid(f"a picture is not written in base 64: {error}") from error
            self._pictures.keep(data, picture)
        return picture

    def _converted(self, encoded: bytes) -> Picture:
        """Return a picture as a PNG that every decoder reads alike: the bytes themselves where they are one."""
        try:
            with env_boundary("picture", "a picture cannot be decoded"):
                with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
                    width, height = image.size
                    self._check_size(width, height)
                    try:
                        check_picture(encoded)
                        png = encoded
                    except EnvError:
                        written = io.BytesIO()
                        image.convert("RGB").save(written, "PNG", compress_level=1)
                        png = written.getvalue()
                measured(png)
        except EnvError as error:
            raise invalid(f"{error}; send one whole PNG, JPEG or WebP") from error
        return Picture(png, hashlib.sha256(png).hexdigest(), width, height)

    def _check_size(self, width: int, height: int) -> None:
        if width * height > LARGEST_SCREEN or max(width, height) > MAX_RATIO * min(width, height):
            raise invalid(
                f"a picture has {width}x{height} pixels: at most {LARGEST_SCREEN}, and one side at most {MAX_RATIO} "
                "times as long as the other; make it smaller"
            )
        self._pixels += width * height
        if self._pixels > self.limits.new_pixels:
            raise invalid(f"new pictures have more than {self.limits.new_pixels} pixels together: send fewer at once")
