"""Arms: runs that differ in nothing but their seed, what differs between arms, and which may be compared."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from arpo.apps.comparison.runs import Run

INDIFFERENT = ("seed", "resume", "paths", "logger", "threads", "requires")
"""Keys at the top that set the place, speed or record of a run, not what is learned."""
BYSTANDERS = ("progress", "run_record", "graceful_stop", "checkpoint", "trajectory_log", "update_log")
"""Callbacks that change nothing of what is learned."""
ABSENT = "absent"
SHOWN = 60
"""Characters of a value that are shown."""
COMPARABLE = {
    "tasks": ("tasks.*", "env.make_env", "env.parts.*.make_env"),
    "warm starts": ("warmstart", "model.path"),
    "numbers of iterations": ("iterations",),
    "evaluation protocols": (
        "evaluation.*",
        "callbacks.evaluation.tasks.*",
        "callbacks.evaluation.settings.*",
        "rollout.settings.max_steps",
        "rollout.settings.success_threshold",
    ),
}
"""The conditions that two arms must have in common for their difference to mean anything, and their keys."""

Tree = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Arm:
    """All runs of one configuration, a seed each."""

    name: str
    runs: Mapping[int, Run]
    """By seed; none of an arm that was not run yet."""

    @property
    def commits(self) -> frozenset[str]:
        """The commits of its runs."""
        return frozenset(commit for run in self.runs.values() for commit in run.commits)


def group(runs: Sequence[Run]) -> tuple[list[Arm], list[str]]:
    """Return the arms of runs, those with few overrides first, and the runs that are left out, with the reasons."""
    trees = {run.directory: tree for run, tree in zip(runs, settings(runs), strict=True)}
    found: dict[str, dict[int, Run]] = {}
    left_out = []
    for run in sorted(runs, key=lambda run: (run.starts[0].started if run.starts else "", str(run.directory))):
        of_seeds = found.setdefault(json.dumps(trees[run.directory], sort_keys=True, default=str), {})
        if run.seed in of_seeds:
            left_out.append(
                f"{of_seeds[run.seed].directory}: {run.directory} has the same configuration and seed and is younger"
            )
        of_seeds[run.seed] = run
    groups = [dict(sorted(of_seeds.items())) for of_seeds in found.values()]
    names = _names(groups, [trees[next(iter(of_seeds.values())).directory] for of_seeds in groups])
    arms = [Arm(name, of_seeds) for name, of_seeds in zip(names, groups, strict=True)]
    return sorted(arms, key=lambda arm: (arm.name.count("="), arm.name)), left_out


def _names(groups: Sequence[Mapping[int, Run]], trees: Sequence[Tree]) -> list[str]:
    """Name groups by their experiment where there are several, and by the overrides that not all of them have.

    Where a folder's name was cut, or a file of conf/ was changed between runs, by what differs.
    """
    overrides = [[run.overrides for run in of_seeds.values()] for of_seeds in groups]
    everywhere = [one or {} for of_arm in overrides for one in of_arm]
    experiments = [str(tree.get("name", "")) for tree in trees]
    keys = merge_repeated(differing(trees))
    names = []
    for number, of_arm in enumerate(overrides):
        known = [one for one in of_arm if one is not None]
        if len(known) == len(of_arm):
            shared = [(key, value) for key, value in known[0].items() if all(one.get(key) == value for one in known)]
            own = [(key, value) for key, value in shared if any(one.get(key) != value for one in everywhere)]
        else:
            own = [(key, values[number]) for key, values in keys.items() if key != "name"]
        experiment = [experiments[number]] if len(set(experiments)) > 1 else []
        names.append(" ".join([*experiment, *(f"{key}={value}" for key, value in own)]) or "default")
    distinct = list(names)
    for name in {name for name in names if names.count(name) > 1}:
        alike = [number for number, other in enumerate(names) if other == name]
        keys = merge_repeated(differing([trees[number] for number in alike]))
        for place, number in enumerate(alike):
            distinct[number] = f"{name} ({', '.join(f'{key}={values[place]}' for key, values in keys.items())})"
    return distinct


def obstacle(reference: Arm, other: Arm, *, subject: str = "") -> str:
    """Return the reason that forbids to compare two arms; empty where there is none.

    The `subject` has patterns of keys by which they are meant to differ, such as `tasks.train.*`; blanks between them.
    """
    if not reference.runs or not other.runs:
        return "one of them has no run that has come to its end"
    mine, its = (next(iter(arm.runs.values())) for arm in (reference, other))
    keys = differing(settings([mine, its]))
    for condition, places in COMPARABLE.items():
        for key, (before, after) in keys.items():
            if any(fnmatchcase(key, pattern) for pattern in subject.split()):
                continue
            if any(key == place.removesuffix(".*") or fnmatchcase(key, place) for place in places):
                return f"they have different {condition} ({key}: {before} and {after})"
    return ""


def warnings(arms: Sequence[Arm]) -> list[str]:
    """Return the doubts about the origin of runs, a sentence each."""
    commits = sorted({commit for arm in arms for commit in arm.commits})
    doubts = []
    if len(commits) > 1:
        whose = "; ".join(f"{arm.name}: {', '.join(sorted(arm.commits)) or 'not recorded'}" for arm in arms)
        doubts.append(f"The runs were made by different commits, which may be what makes the difference ({whose}).")
    if any("local changes" in commit for commit in commits):
        doubts.append("Some runs were made by code with local changes, which no commit has.")
    unknown = [run.directory.name for arm in arms for run in arm.runs.values() if not run.commits]
    if unknown:
        doubts.append(f"The commit of {', '.join(unknown)} was not recorded.")
    return doubts


def settings(runs: Sequence[Run]) -> list[Tree]:
    """Return the configurations of runs in a form in which those of one arm are equal.

    The folder of the run and that of all results get a name, and so does a seed that follows the run's own, also in
    the name of another run's folder.
    """
    trees = [_without_places(run) for run in runs]
    leaves = [dict(_leaves(tree)) for tree in trees]
    keys = {key for each in leaves for key in each}
    varying = {key for key in keys if len({str(each.get(key)) for each in leaves}) > 1}

    def without_seed(seed: int, key: str, value: Any) -> Any:
        if key not in varying:
            return value
        if isinstance(value, str):
            return re.sub(rf"(?<![^/,])seed={seed}(?![^/,])", "seed=its own", value)
        return "its own" if key.rpartition(".")[2] == "seed" and value == seed else value

    return [_mapped(tree, partial(without_seed, run.seed)) for tree, run in zip(trees, runs, strict=True)]


def _without_places(run: Run) -> Tree:
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


def differing(trees: Sequence[Any], place: str = "") -> dict[str, tuple[str, ...]]:
    """Return the keys in which settings differ, each with its value in every one of them.

    Of nodes that build different things only these are given.
    """
    if all(tree == trees[0] for tree in trees):
        return {}
    nodes = all(isinstance(tree, Mapping) for tree in trees)
    if not nodes or len({str(tree.get("_target_")) for tree in trees}) > 1:
        return {place: tuple(map(_shown, trees))}
    keys = dict.fromkeys(str(key) for tree in trees for key in tree)
    inner = (differing([tree.get(key, ABSENT) for tree in trees], f"{place}.{key}" if place else key) for key in keys)
    return {key: values for found in inner for key, values in found.items()}


def merge_repeated(found: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return the differences without the places that follow another key: the shortest key stands for all."""
    shortest: dict[tuple[str, tuple[str, ...]], str] = {}
    for key, values in found.items():
        known = shortest.setdefault((key.rpartition(".")[2], values), key)
        if key.count(".") < known.count("."):
            shortest[key.rpartition(".")[2], values] = key
    return {key: values for key, values in found.items() if key in shortest.values()}


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        target = value.get("_target_", "several keys")
        return "null" if target is None else str(target).rpartition(".")[2]
    text = "null" if value is None else str(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
