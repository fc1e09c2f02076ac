"""The errors of ARPO, one tree, named by the boundary that was crossed.

1. A person gave us something wrong: `ConfigError`, `TaskFormatError`. The run stops at once and says what to do.
2. The model wrote something that is not an action: `ActionParseError`. It ends the episode with a format reward of -1
   and never leaves the rollout.
   Or it did what it cannot be judged after: `BlamedError`, such as to destroy its own desktop. Its task reward is 0.
3. The world broke: `EnvError`, `EngineError`. The episode is retried elsewhere, then dropped and counted.
   A failure of this kind is never a reward.
4. A foreign agent asked for what is not served: `RefusedError`. It gets an answer that says why, and goes on.
5. The engine does not serve the trainer's weights: `WeightSyncError`. The run stops, because every later
   gradient would be wrong.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

LONGEST = 2000
"""Characters of an error's message: enough for a sentence and the last words of a program."""
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0\U00016fe4\U0001d159")
"""Letters and marks that Unicode counts as visible, and that show nothing."""
_CUT = " … "


class ArpoError(Exception):
    """The base of every error that ARPO raises on purpose."""


class ConfigError(ArpoError, ValueError):
    """A configuration that cannot run here; the message says what is missing and what to do."""


class TaskFormatError(ArpoError, ValueError):
    """A task file in another format than expected; the message names file, key and value."""


class CountedError(ArpoError):
    """The base of errors that the metrics count by kind, a word; the message, often a guest's words, is quoted."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(quoted(message))
        self.kind = kind

    def __reduce__(self) -> tuple[type["CountedError"], tuple[str, str]]:
        return type(self), (self.kind, str(self))


class ActionParseError(CountedError, ValueError):
    """A response that is not an action; its kind is, for example, `no_action` or `unknown_action`."""


class BlamedError(CountedError):
    """A failure that the policy can cause: its task reward is 0; `arpo.envs.guest.blame` has the rule.

    Never tried again: a policy that fails would learn to escape its zeros. It is counted as `env/blamed_<kind>`:
    `destroyed`, `result` (what is judged cannot be read) or `excess` (that takes more time or memory than a cell has).
    """


class DesktopDestroyedError(BlamedError):
    """A desktop that the policy has made useless: it ended the session, or used up disk, memory or processes."""

    def __init__(self, message: str) -> None:
        super().__init__("destroyed", message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self),)


class RolloutError(ArpoError):
    """The base of infrastructure failures, which are retried, then dropped and counted, never scored."""


class EnvError(CountedError, RolloutError):
    """A failure of an environment in reset, step, evaluate or screenshot.

    Counted as `env/fault_<kind>`: `reset`, `step`, `evaluate`, `timeout`, `crash`, `screenshot`, `guest` (a container,
    or the server in it, does not answer as it should).
    """


class EngineError(RolloutError):
    """A failure of the inference engine to generate."""


class RequestError(EngineError):
    """A request that an engine refuses before it computes anything: a foreign agent's own doing, and no failure."""


class EngineGoneError(EngineError):
    """An engine that has died or was closed, and will answer nothing any more."""


class HarnessError(RolloutError):
    """A foreign agent that has asked the model for nothing: its episode says nothing about the policy."""


class RefusedError(CountedError):
    """A request of a foreign agent that is refused; `arpo.endpoint.wire.common` has the statuses of its kinds."""

    def __init__(self, kind: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(kind, message)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), retry_after_s=self.retry_after_s), (self.kind, str(self))


class WeightSyncError(ArpoError):
    """An engine whose log-probabilities do not match the trainer's after a weight update."""


class CheckpointError(ArpoError):
    """A checkpoint that cannot be read or written; the message names the file."""


@contextmanager
def env_boundary(kind: str, what: str) -> Iterator[None]:
    """Turn any exception of a third-party desktop into an `EnvError`, once; an error of ours passes unchanged."""
    try:
        yield
    except ArpoError:
        raise
    except Exception as error:  # a broad one: whatever a desktop raises is an environment failure
        raise EnvError(kind, f"{what}: {type(error).__name__}: {error}") from error


def first_of(names: Sequence[str], most: int = 5) -> str:
    """Return some names as one text, which ends in an ellipsis where there are more of them.

    >>> first_of(["a", "b", "c"], most=2)
    'a, b, …'
    """
    return ", ".join(names[:most]) + ", …" * (len(names) > most)


def quoted(text: object, *, most: int = LONGEST, keep: str = "") -> str:
    r"""Return a text as one line that controls no terminal; quoting it again changes nothing.

    A character that ends a line, moves a cursor, turns the direction of writing or shows nothing becomes its escape,
    such as `\n`, `\x1b` or `\u202e`, unless it is one to keep. Where the line is longer than `most` characters, its
    middle is left out.
    """
    whole = str(text)
    if len(whole) > 2 * most:
        whole = whole[:most] + whole[-most:]  # either half is more than what will be shown of it
    line = re.sub(r"[^ -~]", lambda found: found[0] if found[0] in keep else _shown(found[0]), whole)
    if len(line) <= most:
        return line
    end = most // 3
    return line[: most - end - len(_CUT)] + _CUT + line[-end:]


def _shown(character: str) -> str:
    category = unicodedata.category(character)
    is_variation = "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"
    if category[0] == "C" or category in ("Zl", "Zp") or character in _INVISIBLE or is_variation:
        return character.encode("unicode_escape").decode()
    return character
