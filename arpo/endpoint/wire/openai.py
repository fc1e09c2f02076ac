"""The parts of requests and refusals that OpenAI's two dialects share."""

from collections.abc import Sequence
from typing import Any

import msgspec

from arpo.endpoint.conversation import Picture, Role, Text
from arpo.endpoint.wire.common import KINDS, Encode, Reader, invalid
from arpo.errors import RefusedError

ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""The roles of messages, but for results of tools."""


class Part(msgspec.Struct):
    """A part of a message's content."""

    type: str
    text: str = ""
    refusal: str = ""
    image_url: str | dict[str, Any] | None = None


class Options(msgspec.Struct, kw_only=True):
    """The options that both dialects have."""

    model: str = ""
    tool_choice: str | dict[str, Any] | None = None
    stream: bool | None = None
    top_logprobs: int | None = None
    parallel_tool_calls: bool | None = None


def unhonoured(given: Options) -> list[str]:
    """Return the options that have no effect here, and refuse those that a harness would read the effect of."""
    if given.top_logprobs:
        raise invalid("top_logprobs must be 0: of sampled tokens alone there are log-probabilities; set logprobs")
    chosen = given.tool_choice not in (None, "auto", "none")
    return ["tool_choice"] * chosen + ["parallel_tool_calls"] * (given.parallel_tool_calls is False)


def check_function(kind: str) -> None:
    """Check that a tool is a function."""
    if kind != "function":
        raise invalid(f"tools: type must be function, got {kind[:40]!r}: give its schema as that of a function")


def parts(given: str | Sequence[Part] | None, reader: Reader, *, role: str = "user") -> list[Text | Picture]:
    """Return the content of a message; an assistant's holds no picture."""
    if isinstance(given, str):
        return [Text(given)]
    found: list[Text | Picture] = []
    for part in given or ():
        if part.type in ("text", "input_text", "output_text", "refusal"):
            found.append(Text(part.text or part.refusal))
        elif part.type in ("image_url", "input_image") and role != "assistant":
            url = part.image_url.get("url") if isinstance(part.image_url, dict) else part.image_url
            found.append(reader.from_url(url))
        else:
            raise invalid(f"content of the {role[:40]} must be text, or a picture of others, got {part.type[:40]!r}")
    return found


def error(refusal: RefusedError) -> bytes:
    """Return a refusal as a body."""
    kind = KINDS[refusal.kind][1]
    return Encode({"error": {"message": str(refusal), "type": kind, "param": None, "code": refusal.kind}})
