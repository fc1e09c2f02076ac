"""Overrides on a command line: whether Hydra can read them, how to quote one, and the key that one may mean."""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf

from arpo.errors import ConfigError
from arpo.run.choices import CONF, choices_of, groups_in

KEY = re.compile(r"(?:\+\+?|~)?[A-Za-z_][\w@/.:$-]*", re.ASCII)
BACKSLASHES = re.compile(r'(\\*)("|$)')
"""Those before a quote or the end, where each needs another one."""


def check_command(arguments: Sequence[str]) -> None:
    """Check the overrides among the arguments of a program."""
    check_overrides(get_args_parser().parse_args(list(arguments)).overrides)


def check_overrides(overrides: Sequence[str]) -> None:
    """Check that Hydra can read each override, and that each folder of choices gets a name."""
    for override in overrides:
        key, equals, value = override.partition("=")
        if value == "null" and (choices := choices_of(key)):
            raise ConfigError(f"{override}: this must be the name of a choice; choose one of {', '.join(choices)}")
        if _read(override) is not None:
            continue
        if not KEY.fullmatch(key) or not (equals or key.startswith("~")):
            raise ConfigError(f"{override!r} is no override: type KEY=VALUE, such as seed=1, with a key of conf/")
        raise ConfigError(
            f"the value of {key} cannot be read, because of a letter or a sign in it: quote it twice, once "
            f"for the shell and once for Hydra (each member of a list), as in {shlex.quote(f'{key}={_quoted(value)}')}"
        )


def override_of(key: str, value: str) -> str:
    """Return the override that gives a key this very text.

    >>> override_of("paths.output", "a=b")
    'paths.output="a=b"'
    """
    read = _read(f"{key}={value}")
    return f"{key}={value}" if read is not None and read.value() == value else f"{key}={_quoted(value)}"


def _quoted(value: str) -> str:
    return '"' + BACKSLASHES.sub(lambda found: found[1] * 2 + found[2].replace('"', '\\"'), value) + '"'


def _read(override: str) -> Any:
    """Return an override as Hydra reads it, None where it cannot."""
    try:
        return OverridesParser.create().parse_override(override)
    except HydraException:
        return None


def explain(error: HydraException, name: str, overrides: Sequence[str]) -> str:
    """Return a message with the nearest key for each that does not exist in a file of conf/, or Hydra's message."""
    missing = re.search(r"Could not find '(.+)/(.+)'", str(error))
    if isinstance(error, MissingConfigException) and error.options and missing:
        group, choice = missing.groups()
        return f"{group}={choice}: {near(choice, error.options)}choose one of {', '.join(error.options)}"
    message = "\n".join(str(each) for each in (error, error.__cause__) if each is not None)
    choices = [each for each in overrides if choices_of(each.partition("=")[0]) or each.startswith("hydra.")]
    try:
        with hydra.initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
            tree: Any = OmegaConf.to_container(hydra.compose(name, choices))
    except HydraException:
        return message
    return "\n".join(filter(None, (_absence(tree, each) for each in overrides if not each.startswith("+")))) or message


def near(name: str, names: Iterable[str], likeness: float = 0.5) -> str:
    """Return the beginning of a sentence that offers the name which is most like another.

    >>> near("temprature", ["temperature", "order"]), near("x", ["temperature", "order"])
    ('there is temperature; ', '')
    """
    return "".join(f"there is {found}; " for found in get_close_matches(name, list(names), 1, cutoff=likeness))


def _absence(tree: Any, override: str) -> str | None:
    """Return a sentence about an override whose key does not exist, None where it does."""
    key = override.partition("=")[0].lstrip("~")
    if "@" in key or key.startswith("hydra.") or choices_of(key):
        return None
    folder, slash, part = key.rpartition("/")
    groups = groups_in(folder)
    if slash:
        return f"{key}: {near(part, groups)}{folder} has {', '.join(groups)}"
    node, place = tree, ""
    for part in key.split("."):
        if not isinstance(node, dict):
            return None
        if part not in node and not place and part in groups:
            return f"{key}: the choice of {part} has no such key; another {part}=… may"
        if part not in node:
            names = [name for name in dict.fromkeys([*node, *([] if place else groups)]) if not name.startswith("_")]
            found = near(part, names, 0.8) or _elsewhere(tree, key.rpartition(".")[2]) or near(part, names)
            return f"{key}: {found}{place or 'a run'} has {', '.join(names) or 'no keys'}; +{key}=… adds a key"
        node, place = node[part], f"{place}.{part}" if place else part
    return None


def _elsewhere(tree: Any, last: str) -> str:
    """Return the beginning of a sentence that offers the keys whose last part is one, or is most like it."""

    def keys_of(node: Any, place: str = "") -> Iterator[str]:
        for name, inner in node.items() if isinstance(node, dict) else ():
            key = f"{place}.{name}" if place else str(name)
            yield key
            yield from keys_of(inner, key)

    keys = list(keys_of(tree))
    like = get_close_matches(last, {key.rpartition(".")[2] for key in keys}, 1, cutoff=0.8)
    found = [key for key in keys if key.rpartition(".")[2] in like]
    return f"there is {' and '.join(found[:3])}; " if found else ""
