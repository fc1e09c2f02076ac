"""The index of a run: a row for each group and each episode, in columns, so that many thousands open at once.

Beside them stand the facts of the run itself: settings, curves, evaluations, and where it came from.
"""

import math
import shlex
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from arpo.apps.run_files import Record, RunFiles, read_files
from arpo.apps.viewer.chunks import INJECTED, LEFT_OUT, PARSE_ERROR, file_of
from arpo.apps.viewer.groups import Member, ShownGroup
from arpo.apps.viewer.records import Broken, Episode

CURVES = (
    "rollout/success_rate",
    "val/in_domain/success_rate",
    "val/held_out/success_rate",
    "group/all_failed",
    "group/all_succeeded",
    "replay/injected",
    "policy/entropy",
    "train/ratio_min",
    "train/ratio_max",
    "rollout/lag_mean",
)
"""The metrics that the page of a run draws."""
DEFAULT_THRESHOLD = 0.5

_Numbers = dict[Hashable, int]
"""The number of each value, in the order of first appearance."""


def index_of(
    run: Path,
    groups: Sequence[ShownGroup],
    digests: Sequence[str],
    *,
    broken: Sequence[Broken],
    torn: Sequence[str],
    success_threshold: float,
    screens: str,
    words_known: bool,
) -> dict[str, Any]:
    """Return the index of a run.

    Args:
        run: Its folder.
        groups: In the order in which they are shown.
        digests: Of each group's chunk.
        broken: Episodes and updates that could not be read.
        torn: Files that end in a part of a record.
        success_threshold: The task reward above which an episode is a success.
        screens: The way from the page to the screenshots themselves.
        words_known: Whether the text of tokens is known.
    """
    files = read_files(run)
    tasks: _Numbers = {}
    outcomes: _Numbers = {}
    rows = [(number, member) for number, group in enumerate(groups) for member in group.members]
    return {
        "name": " / ".join(run.resolve().parts[-2:]),
        "origin": origin_of(files),
        "threshold": success_threshold,
        "screens": screens,
        "wordsKnown": words_known,
        "groups": _groups(groups, digests, tasks),
        "episodes": _episodes(rows, tasks, outcomes),
        "tasks": list(tasks),
        "outcomes": list(outcomes),
        "curves": list(curves_of(files).items()),
        "evaluations": evaluations_of(files),
        "broken": [[each.file, each.line, each.reason, each.text] for each in broken]
        + [["", 0, reason, ""] for reason in files.broken],
        "torn": list(torn),
    }


def _groups(groups: Sequence[ShownGroup], digests: Sequence[str], tasks: _Numbers) -> dict[str, list[Any]]:
    return {
        "key": [group.key for group in groups],
        "file": [file_of(group.key) for group in groups],
        "digest": list(digests),
        "split": [group.first.split for group in groups],
        "iteration": [group.first.iteration for group in groups],
        "task": [_number(tasks, _task(group.first)) for group in groups],
        "update": [None if group.update is None else group.update.iteration for group in groups],
        "version": [None if group.update is None else group.update.policy_version for group in groups],
    }


def _episodes(rows: Sequence[tuple[int, Member]], tasks: _Numbers, outcomes: _Numbers) -> dict[str, list[Any]]:
    def column(of: Callable[[Member], Any]) -> list[Any]:
        return [of(member) for _, member in rows]

    return {
        "group": [number for number, _ in rows],
        "id": column(lambda member: member.episode.id),
        "task": column(lambda member: _number(tasks, _task(member.episode))),
        "outcome": column(lambda member: _number(outcomes, member.episode.outcome)),
        "taskReward": column(lambda member: member.episode.task_reward),
        "formatReward": column(lambda member: member.episode.format_reward),
        "steps": column(lambda member: member.episode.steps),
        "tokens": column(lambda member: member.episode.tokens),
        "oldest": column(lambda member: member.episode.oldest),
        "newest": column(lambda member: member.episode.newest),
        "advantage": column(_advantage),
        "flags": column(_flags),
        # JavaScript rounds integers of more than 53 bits.
        "seed": column(lambda member: str(member.episode.seed)),
    }


def _number(known: _Numbers, value: Hashable) -> int:
    return known.setdefault(value, len(known))


def _task(episode: Episode) -> tuple[str, str, str]:
    return episode.task_id, episode.domain, episode.instruction


def _advantage(member: Member) -> float | None:
    return member.advantage if _is_number(member.advantage) else None


def _flags(member: Member) -> int:
    flags = INJECTED * member.injected | LEFT_OUT * member.left_out
    return flags | PARSE_ERROR * member.episode.parse_error


# --- facts beside the episodes --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run that the viewer needs; defaults where the run has no configuration."""

    success_threshold: float
    model: Path | None
    """The directory of the checkpoint that it started from, if it is still there."""


def settings_of(config: Record, run: Path) -> Settings:
    """Return what the configuration of a run says."""
    threshold = _at(config, "rollout", "settings", "success_threshold")
    return Settings(
        success_threshold=float(threshold) if _is_number(threshold) else DEFAULT_THRESHOLD,
        model=_directory(run, _at(config, "model", "path")),
    )


def curves_of(files: RunFiles) -> dict[str, list[list[float]]]:
    """Return points [iteration, value] of each metric that is drawn; of two lines of an iteration the later counts."""
    points: dict[str, dict[int, float]] = {name: {} for name in CURVES}
    for line in files.metrics:
        for name in CURVES:
            if line.get(name) is not None:
                points[name][line["step"]] = line[name]
    return {name: [[step, value] for step, value in sorted(found.items())] for name, found in points.items() if found}


def evaluations_of(files: RunFiles) -> list[list[Any]]:
    """Return a row for each evaluation of each list: iteration, list, success, its interval, episodes, lost ones."""
    rows = []
    for iteration, results in [*files.evaluations.items(), (0, files.results)]:
        for listed, result in results.items():
            overall = result["overall"]
            row = [overall.get(key) for key in ("success_rate", "interval_low", "interval_high", "episodes")]
            if all(map(_is_number, row)):
                rows.append([iteration, listed, *row, result.get("lost")])
    return rows


def origin_of(files: RunFiles) -> list[list[str]]:
    """Return pairs of a word and a fact: how the run was started last, from which commit, and how it ended."""
    last = files.starts[-1] if files.starts else {}
    command = last.get("command")
    found = {
        "command": shlex.join(["python", *map(str, command)]) if isinstance(command, list) else None,
        "commit": _at(last, "git", "commit"),
        "started": last.get("started"),
        "status": last.get("status"),
    }
    return [[word, str(fact)] for word, fact in found.items() if fact]


def _directory(run: Path, named: Any) -> Path | None:
    """Return a directory that a run's configuration names, relative to where the run was started."""
    if not isinstance(named, str):
        return None
    places = [Path(named), *(parent / named for parent in run.resolve().parents)]
    try:
        return next((place for place in places if (place / "tokenizer.json").is_file()), None)
    except OSError:  # a name that no file can have
        return None


def _at(tree: Any, *keys: str) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _is_number(value: Any) -> TypeGuard[float]:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False
