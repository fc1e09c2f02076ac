"""The index of a run: a row for each group and each episode, in columns, so that many thousands open at once."""

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

from arpo.apps.run_files import read_files
from arpo.apps.viewer.chunks import INJECTED, LEFT_OUT, PARSE_ERROR, file_of
from arpo.apps.viewer.facts import curves_of, evaluations_of, origin_of
from arpo.apps.viewer.groups import Member, ShownGroup
from arpo.apps.viewer.records import Broken


class _Table:
    """Values that are named by their number of first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, value: Hashable) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def values(self) -> list[Any]:
        return list(self._numbers)


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
    tasks, outcomes = _Table(), _Table()
    rows = [(number, member) for number, group in enumerate(groups) for member in group.members]
    return {
        "name": " / ".join(run.resolve().parts[-2:]),
        "origin": origin_of(files),
        "threshold": success_threshold,
        "screens": screens,
        "wordsKnown": words_known,
        "groups": _groups(groups, digests, tasks),
        "episodes": _episodes(rows, tasks, outcomes),
        "tasks": tasks.values(),
        "outcomes": outcomes.values(),
        "curves": list(curves_of(files).items()),
        "evaluations": evaluations_of(files),
        "broken": [[each.file, each.line, each.reason, each.text] for each in broken]
        + [["", 0, reason, ""] for reason in files.broken],
        "torn": list(torn),
    }


def _groups(groups: Sequence[ShownGroup], digests: Sequence[str], tasks: _Table) -> dict[str, list[Any]]:
    return {
        "key": [group.key for group in groups],
        "file": [file_of(group.key) for group in groups],
        "digest": list(digests),
        "split": [group.first.split for group in groups],
        "iteration": [group.first.iteration for group in groups],
        "task": [tasks.number(_task(group.members[0])) for group in groups],
        "update": [None if group.update is None else group.update.iteration for group in groups],
        "version": [None if group.update is None else group.update.policy_version for group in groups],
    }


def _episodes(rows: Sequence[tuple[int, Member]], tasks: _Table, outcomes: _Table) -> dict[str, list[Any]]:
    def column(of: Callable[[Member], Any]) -> list[Any]:
        return [of(member) for _, member in rows]

    return {
        "group": [number for number, _ in rows],
        "id": column(lambda member: member.episode.id),
        "task": column(lambda member: tasks.number(_task(member))),
        "outcome": column(lambda member: outcomes.number(member.episode.outcome)),
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


def _task(member: Member) -> tuple[str, str, str]:
    return member.episode.task_id, member.episode.domain, member.episode.instruction


def _advantage(member: Member) -> float | None:
    """Return the advantage; None where there is none, or where it is no number."""
    value = member.advantage
    return value if value is not None and value == value and abs(value) != float("inf") else None  # noqa: PLR0124


def _flags(member: Member) -> int:
    flags = INJECTED * member.injected | LEFT_OUT * member.left_out
    return flags | PARSE_ERROR * member.episode.parse_error
