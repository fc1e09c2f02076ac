"""The differences between configurations of runs, apart from seeds and from where a run writes."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from arpo.apps.comparison.runs import Run

INDIFFERENT = ("seed", "resume", "paths", "logger", "threads", "requires")
"""Keys at the top that say where, how fast or how often, not what."""
BYSTANDERS = ("progress", "run_record", "graceful_stop", "checkpoint", "trajectory_log", "update_log")
"""Callbacks that change nothing of what is learned."""
ABSENT = "absent"
SHOWN = 60
"""Characters of a value that are shown."""

Tree = Mapping[str, Any]


def settings(runs: Sequence[Run]) -> list[Tree]:
    """Return the configurations of runs in a form in which those of one arm are equal.

    The folder of the run and that of all results become words, and so does a seed that follows the run's own, also in
    the name of another run's folder.
    """
    trees = [_plain(run) for run in runs]
    varying = _varying([dict(_leaves(tree)) for tree in trees])
    return [_without_seed(tree, run.seed, varying) for tree, run in zip(trees, runs, strict=True)]


def _without_seed(tree: Tree, seed: int, varying: set[str]) -> Tree:
    def changed(key: str, value: Any) -> Any:
        if key not in varying:
            return value
        if isinstance(value, str):
            return re.sub(rf"(?<![^/,])seed={seed}(?![^/,])", "seed=its own", value)
        return "its own" if key.rpartition(".")[2] == "seed" and value == seed else value

    without: Tree = _mapped(tree, changed)
    return without


def _plain(run: Run) -> Tree:
    tree = {key: value for key, value in run.config.items() if key not in INDIFFERENT}
    if isinstance(tree.get("callbacks"), Mapping):
        tree["callbacks"] = {key: node for key, node in tree["callbacks"].items() if key not in BYSTANDERS}
    places = run.config.get("paths") or {}
    known = [(str(places[key]), word) for key, word in (("run_dir", "RUN"), ("output", "OUTPUT")) if key in places]

    def moved(_: str, value: Any) -> Any:
        for place, word in known:
            if isinstance(value, str) and (value == place or value.startswith(f"{place}/")):
                return word + value[len(place) :]
        return value

    changed: Tree = _mapped(tree, moved)
    return changed


def _varying(leaves: Sequence[Tree]) -> set[str]:
    keys = {key for one in leaves for key in one}
    return {key for key in keys if len({str(one.get(key)) for one in leaves}) > 1}


def _leaves(tree: Any, place: str = "") -> list[tuple[str, Any]]:
    if not isinstance(tree, Mapping):
        return [(place, tree)]
    return [pair for key, value in tree.items() for pair in _leaves(value, f"{place}.{key}" if place else str(key))]


def _mapped(tree: Any, change: Callable[[str, Any], Any], place: str = "") -> Any:
    if isinstance(tree, Mapping):
        return {key: _mapped(value, change, f"{place}.{key}" if place else str(key)) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_mapped(value, change, place) for value in tree]
    return change(place, tree)


def fingerprint(tree: Tree) -> str:
    """Return a text that is equal where settings are."""
    return json.dumps(tree, sort_keys=True, default=str)


def differing(trees: Sequence[Any], place: str = "") -> dict[str, tuple[str, ...]]:
    """Return the keys in which settings differ, each with its value in every one of them.

    Of nodes that build different things only that is told.
    """
    if all(tree == trees[0] for tree in trees):
        return {}
    nodes = all(isinstance(tree, Mapping) for tree in trees)
    if not nodes or len({str(tree.get("_target_")) for tree in trees}) > 1:
        return {place: tuple(map(_shown, trees))}
    keys = dict.fromkeys(str(key) for tree in trees for key in tree)
    inner = (differing([tree.get(key, ABSENT) for tree in trees], f"{place}.{key}" if place else key) for key in keys)
    return {key: values for found in inner for key, values in found.items()}


def told_once(found: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return what `differing` found without the places that follow another key: the shortest key tells it."""
    shortest: dict[tuple[str, tuple[str, ...]], str] = {}
    for key, values in found.items():
        told = shortest.setdefault((key.rpartition(".")[2], values), key)
        if key.count(".") < told.count("."):
            shortest[key.rpartition(".")[2], values] = key
    return {key: values for key, values in found.items() if key in shortest.values()}


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        target = value.get("_target_", "several keys")
        return "null" if target is None else str(target).rpartition(".")[2]
    text = "null" if value is None else str(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
