"""The rule of blame: what an agent can cause is its 0, and void is what no agent can cause.

| what happened | score |
|---|---|
| what is judged is not there, or a program of a check ends badly or never | what the check says, mostly 0 |
| a check or OSWorld's metric raises on what the agent has made, or gives no number | 0, `blamed_result` |
| judging takes more time or memory than the cell has, or ends the cell, and a second one | 0, `blamed_excess` |
| the desktop says that its programs have made it useless, or ended for want of memory | 0, `blamed_destroyed` |
| OSWorld's own machine runs, and its server, which the agent may end, does not answer | 0, `blamed_destroyed` |
| our guest server does not answer, or the container has ended, is paused or cut off | void |
| the machine was too busy for a program of a check, or for the cell | void |
| a download fails, a package or a function of OSWorld's is missing, no cell starts | void |

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
    """Blame the agent for the silence of a guest that it can cause.

    Args:
        machine: Of the guest.
        agent_has_acted: Whether anything can be its doing yet.
        ends_server: Whether it can end the guest server, as that of OSWorld's machine, which is a program of its user.

    Raises:
        DesktopDestroyedError: In the place of an `EnvError` that it can have caused.
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
    """Return the score of a judgement in a cell.

    Args:
        outcome: What `Cells.judge` gave.

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
