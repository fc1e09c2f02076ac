"""The answer to words that Hydra cannot compose: the nearest name that there is."""

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

import hydra
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf

from arpo.run.before.words import CONF


def explain(error: HydraException, name: str, words: Sequence[str]) -> str:
    """Return what is wrong with some words, in Hydra's words where no name is misspelt.

    Args:
        error: Raised while they were composed.
        name: Of the file of conf/ that they change.
        words: The overrides.
    """
    missing = re.search(r"Could not find '(.+)/(.+)'", str(error))
    if isinstance(error, MissingConfigException) and error.options and missing:
        group, choice = missing.groups()
        return f"{group}={choice}: {near(choice, error.options)}choose one of {', '.join(error.options)}"
    said = "\n".join(str(each) for each in (error, error.__cause__) if each is not None)
    choices = [word for word in words if (CONF / word.partition("=")[0]).is_dir() or word.startswith("hydra.")]
    try:
        with hydra.initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
            tree: Any = OmegaConf.to_container(hydra.compose(name, choices))
    except HydraException:
        return said
    lines = [line for word in words if not word.startswith("+") and (line := _absent(tree, word))]
    return "\n".join(lines) or said


def near(name: str, names: Iterable[str], likeness: float = 0.5) -> str:
    """Return the beginning of a sentence that names the one of some names which is most like another.

    >>> near("temprature", ["temperature", "order"])
    'there is temperature; '
    >>> near("x", ["temperature", "order"])
    ''
    """
    return "".join(f"there is {found}; " for found in get_close_matches(name, list(names), 1, cutoff=likeness))


def _absent(tree: Any, word: str) -> str | None:
    """Return what is said of a word whose key there is not, None where there is."""
    key = word.partition("=")[0].lstrip("~")
    if "@" in key or key.startswith("hydra.") or (CONF / key).is_dir():
        return None
    groups = (
        [path.name for path in (CONF / key).parent.iterdir() if path.is_dir()] if (CONF / key).parent.is_dir() else []
    )
    if "/" in key:
        folder, _, part = key.rpartition("/")
        return f"{key}: {near(part, groups)}{folder} has {', '.join(groups)}"
    node, place = tree, ""
    for part in key.split("."):
        if not isinstance(node, dict):
            return None
        if part not in node and not place and part in groups:
            return f"{key}: the choice of {part} has no such key; another {part}=… may"
        if part not in node:
            names = [name for name in dict.fromkeys([*node, *([] if place else groups)]) if not name.startswith("_")]
            elsewhere = _elsewhere(tree, key.rpartition(".")[2])
            found = near(part, names, 0.8) or elsewhere or near(part, names)
            return f"{key}: {found}{place or 'a run'} has {', '.join(names)}; +{key}=… adds a key"
        node, place = node[part], f"{place}.{part}" if place else part
    return None


def _elsewhere(tree: Any, last: str) -> str:
    """Return the beginning of a sentence that names the keys whose last part is one, or is most like it."""
    keys = list(_keys(tree))
    like = get_close_matches(last, {key.rpartition(".")[2] for key in keys}, 1, cutoff=0.8)
    found = [key for key in keys if key.rpartition(".")[2] in like]
    return f"there is {' and '.join(found[:3])}; " if found else ""


def _keys(node: Any, place: str = "") -> Iterator[str]:
    """Yield the keys below a node."""
    for name, inner in node.items() if isinstance(node, dict) else ():
        key = f"{place}.{name}" if place else str(name)
        yield key
        yield from _keys(inner, key)
