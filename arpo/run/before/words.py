"""The words of a command line: whether Hydra can read them, and how to quote one that it cannot."""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from arpo.errors import ConfigError

CONF = Path(__file__).parent.parent.parent.parent / "conf"
KEY = re.compile(r"(?:\+\+?|~)?[A-Za-z_][\w@/.:$-]*", re.ASCII)
BACKSLASHES = re.compile(r'(\\*)("|$)')
"""Those before a quote or the end, where each needs another one."""


def check_command(words: Sequence[str]) -> None:
    """Check the overrides among the words of a command line, as `check_words` does."""
    arguments = get_args_parser().parse_args(list(words))
    check_words(arguments.overrides, sweeps=arguments.multirun)


def check_words(words: Sequence[str], *, sweeps: bool = False) -> None:
    """Check that Hydra can read each override, and that each folder of choices gets a name.

    Hydra would end in what its lexer says, and for `env=null` in a traceback.

    Args:
        words: Overrides.
        sweeps: Whether commas outside of brackets separate the values of a multirun.
    """
    for word in words:
        key, equals, value = word.partition("=")
        if value == "null" and os.path.isdir(CONF / key):
            choices = ", ".join(sorted(path.stem for path in (CONF / key).glob("*.yaml")))
            raise ConfigError(f"{word}: this must be the name of a choice; choose one of {choices}")
        if _read(word) is not None:
            continue
        if not KEY.fullmatch(key) or not (equals or key.startswith("~")):
            raise ConfigError(f"{word!r} is no override: type KEY=VALUE, such as seed=1, with a key of conf/")
        raise ConfigError(
            f"the value of {key} cannot be read, because of a letter or a sign in it: quote it twice, once for the "
            f"shell and once for Hydra, as in {shlex.quote(quoted(word, sweeps=sweeps))}"
        )


def quoted(word: str, *, sweeps: bool = False) -> str:
    """Return an override with quotes around the texts of its value, which Hydra reads as they are.

    >>> quoted("a=[中,b]")
    'a=["中",b]'
    >>> quoted("a=x]")
    'a="x]"'
    """
    key, _, value = word.partition("=")
    for candidate in _candidates(value, sweeps=sweeps):
        if _read(f"{key}={candidate}") is not None:
            return f"{key}={candidate}"
    return f"{key}={_text(value)}"


def override(key: str, value: str) -> str:
    """Return the override that gives a key this very text.

    >>> override("paths.output", "a=b")
    'paths.output="a=b"'
    """
    read = _read(f"{key}={value}")
    return f"{key}={value}" if read is not None and read.value() == value else f"{key}={_text(value)}"


def _candidates(value: str, *, sweeps: bool) -> Iterator[str]:
    """Return ways to quote a value: the members of a list, or of a sweep, one by one."""
    if value.startswith("[") and value.endswith("]"):
        yield f"[{_members(value[1:-1])}]"
    elif sweeps and not set("[]{}()\"'") & set(value):
        yield _members(value)


def _members(values: str) -> str:
    return ",".join(member if _read(f"key={member}") else _text(member) for member in values.split(","))


def _text(value: str) -> str:
    return '"' + BACKSLASHES.sub(lambda found: found[1] * 2 + found[2].replace('"', '\\"'), value) + '"'


def _read(word: str) -> Override | None:
    """Return an override as Hydra reads it, None where it cannot."""
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:
        return None
