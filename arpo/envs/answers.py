"""JSON held to the types that it must have: a guest or a browser may answer anything.

Fields that were not asked for are skipped while they are read, and take no memory.
"""

from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from arpo.errors import EnvError

_T = TypeVar("_T")


def decoded(content: bytes | msgspec.Raw, kind: type[_T], what: str, *, fault: str = "guest") -> _T:
    """Return the answer to a question as a `str`, a `list[float]` or a dataclass whose fields must be there.

    Raises:
        EnvError: Of kind `fault`, if it is no JSON, or of another type, or nested too deeply.
    """
    try:
        return cast(_T, _decoder(cast(Any, kind)).decode(content))
    except (ValueError, RecursionError) as error:  # what a decoder raises, bytes that are no text included
        said = bytes(content)[:100]
        raise EnvError(fault, f"{what} was answered with {said!r}, which does not fit: {error}") from error


@cache
def _decoder(kind: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(kind)
