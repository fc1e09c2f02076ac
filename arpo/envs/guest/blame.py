"""The rule of blame: what an agent can cause is its 0, and void is what no agent can cause; docs/hostile.md lists it.

A check that raises on the untouched or the solved desktop is broken; `python -m arpo tasks certify` finds those.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from arpo.envs.guest.machine import Machine
from arpo.errors import BlamedError, DesktopDestroyedError, EnvError


@contextmanager
def blaming(machine: Machine, *, agent_has_acted: bool, ends_server: bool = False) -> Iterator[None]:
    """Raise `DesktopDestroyedError` in the place of the `EnvError` of a silent guest that the agent can have caused.

    It can end (`ends_server`) the guest server of OSWorld's machine, which is a program of its user.
    """
    try:
        yield
    except EnvError as error:
        if error.kind == "guest" and agent_has_acted:
            if machine.ended_for_memory():
                raise DesktopDestroyedError(
                    f"its programs took all memory, and the guest server too: {error}"
                ) from error
            if ends_server and machine.runs():
                raise DesktopDestroyedError(f"the machine runs, and its server does not answer: {error}") from error
        raise


def score_of(outcome: Mapping[str, Any]) -> float:
    """Return the score of a judgement in a cell, by what `Cells.judge` gave.

    Raises:
        BlamedError: If there is none, and the agent can have caused that.
        EnvError: If there is none, and no agent can cause that.
    """
    if "reply" not in outcome:
        message = f"judging ended without a score: {outcome['ended']}"
        raise EnvError("evaluate", message) if outcome["starved"] else BlamedError("excess", message)
    reply = outcome["reply"]
    match reply:
        case {"score": int() | float() as score} if math.isfinite(score) and 0 <= score <= 1:
            return float(score)
        case {"score": score}:
            raise BlamedError("result", f"the score must be in [0, 1], the check gave {score}")
        case {"error": "result", "message": message}:
            raise BlamedError("result", f"what is to be judged cannot be read: {message}")
        case {"error": "destroyed", "message": message}:
            raise DesktopDestroyedError(str(message))
        case {"error": "guest", "message": message}:
            raise EnvError("guest", f"the guest did not answer its judge: {message}")
    raise EnvError("evaluate", f"judging gave no score: {reply.get('error')}: {reply.get('message')}")
