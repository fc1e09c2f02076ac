"""JSON held to the types that it must have, all else skipped: a guest or a browser may answer anything."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from arpo.errors import EnvError

_T = TypeVar("_T")
_decoder: Callable[[Any], "msgspec.json.Decoder[Any]"] = cache(msgspec.json.Decoder)


def decoded(content: bytes | msgspec.Raw, kind: type[_T], what: str, *, fault: str = "guest") -> _T:
    """Return an answer as a `str`, a `list[float]` or a dataclass, or raise an `EnvError` of kind `fault`."""
    try:
        return cast(_T, _decoder(kind).decode(content))
    except (ValueError, RecursionError) as error:  # what a decoder raises, bytes that are no text included
        said = bytes(content)[:100]
        raise EnvError(fault, f"{what} was answered with {said!r}, which does not fit: {error}") from error
