"""The episodes and updates of a run as they lie on disk, read while the run may still write them, and its groups."""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from arpo.errors import ArpoError
from arpo.rollout.old_records import in_todays_shape
from arpo.rollout.storage import ID, UpdateRecord, natural_order, read_update
from arpo.types import Trajectory

SHOWN_OF_BROKEN = 2000
"""Characters of a broken record that are shown."""


@dataclass(frozen=True, slots=True)
class Episode:
    """The facts of an episode that lists and tables need, and where the rest of it stands."""

    facts: Trajectory
    """Its record without steps and exchanges."""
    split: str
    iteration: int
    steps: int
    tokens: int
    oldest: int
    """The oldest policy version of a response."""
    newest: int
    parse_error: bool
    path: Path
    offset: int
    length: int
    """Bytes of its line, of which `digest` is one."""
    digest: str

    @property
    def id(self) -> str:
        """The id of its trajectory."""
        return self.facts.id

    @property
    def group(self) -> str:
        """The id without the member: `12/3`, or `eval-12/held_out/3`."""
        return self.id.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Broken:
    """Something on disk that is not what it should be."""

    file: str
    """Relative to the trajectory store."""
    line: int
    """From 1; 0 where the whole file is broken."""
    reason: str
    text: str = ""


_Lines = tuple[list[Episode | Broken], bool]
"""The lines of a file of episodes, and whether more bytes stand behind the last whole one."""
Found = TypeVar("Found")
Stamp = tuple[int, int]
"""Time and size of a file, by which a change shows."""


class Files(Generic[Found]):
    """Files that are read again where their time or size has changed; `read` returns what is kept of one."""

    def __init__(self, read: Callable[[Path], Found]) -> None:
        self._read = read
        self.known: dict[Path, tuple[Stamp, Found]] = {}
        """Stamp and contents of each file of the last look, in the order of their names."""

    def refresh(self, paths: Iterable[Path]) -> None:
        """Look at some files, which may be written meanwhile, and forget all others."""
        before, self.known = self.known, {}
        for path in sorted(paths):
            with suppress(FileNotFoundError):  # a resumed run has just removed it
                stat = path.stat()
                stamp = (stat.st_mtime_ns, stat.st_size)
                known = before.get(path)
                self.known[path] = known if known is not None and known[0] == stamp else (stamp, self._read(path))

    @property
    def contents(self) -> list[Found]:
        """The contents that were read, of each file."""
        return [found for _, found in self.known.values()]


class Records:
    """The episodes below a trajectory store.

    A record counts once its line has its end: what is being written, or what a crash has cut, is no episode. A line
    that is no record, or stands in the file of another iteration, is kept as broken.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files = Files(self._read)

    def refresh(self) -> None:
        """Read what was written since the last call."""
        self._files.refresh(self.root.glob("*/iteration_*.jsonl"))

    @property
    def episodes(self) -> dict[str, Episode]:
        """Every episode by its id; of two records with one id the later counts."""
        lines = (line for found, _ in self._files.contents for line in found)
        return {line.id: line for line in lines if isinstance(line, Episode)}

    @property
    def broken(self) -> list[Broken]:
        """The lines that are no record, and the files that cannot be read."""
        return [line for found, _ in self._files.contents for line in found if isinstance(line, Broken)]

    @property
    def torn(self) -> list[str]:
        """Files that end in a part of a record: it is being written, or a crash has cut it."""
        return [self._name(path) for path, (_, (_, torn)) in self._files.known.items() if torn]

    def line(self, episode: Episode) -> bytes | None:
        """Return the line of an episode, in today's shape; None where the file has changed meanwhile."""
        try:
            with episode.path.open("rb") as file:
                file.seek(episode.offset)
                line = file.read(episode.length)
            record = json.loads(line)
            line = line if "exchanges" in record else json.dumps(in_todays_shape(record)).encode()
            return line if record["id"] == episode.id else None
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _read(self, path: Path) -> _Lines:
        try:
            *lines, rest = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            raise
        except OSError as error:
            return [Broken(self._name(path), 0, f"cannot be read: {error.strerror}")], False
        found: list[Episode | Broken] = []
        offset = 0
        for number, line in enumerate(lines, start=1):
            try:
                found.append(read_episode(line, path, offset))
            except (ValueError, RecursionError) as error:
                text = line.decode(errors="replace")[:SHOWN_OF_BROKEN]
                found.append(Broken(self._name(path), number, f"{type(error).__name__}: {error}", text))
            offset += len(line) + 1
        return found, bool(rest)


def read_episode(line: bytes, path: Path, offset: int) -> Episode:
    """Return the facts of a line of a trajectory store."""
    record = msgspec.convert(in_todays_shape(json.loads(line.decode(), parse_constant=_refuse)), Trajectory)
    if not math.isfinite(record.task_reward + record.format_reward):  # JSON has no infinity, but 1e999
        raise ValueError("Expected `float` of finite size for a reward")
    located = ID.fullmatch(record.id)
    if located is None:
        raise ValueError(f"{record.id!r} is not the id of a trajectory")
    split, iteration = located["split"] or "train", int(located["iteration"])
    if (path.parent.name, path.stem) != (split, f"iteration_{iteration:06d}"):
        raise ValueError(f"{record.id!r} belongs into {split}/iteration_{iteration:06d}.jsonl")
    return Episode(
        replace(record, steps=(), exchanges=()),
        split=split,
        iteration=iteration,
        steps=len(record.steps),
        tokens=record.action_tokens,
        oldest=record.policy_version,
        newest=max((exchange.policy_version for exchange in record.exchanges), default=0),
        parse_error=any(step.parse_error for step in record.steps),
        path=path,
        offset=offset,
        length=len(line),
        digest=hashlib.blake2b(line, digest_size=8).hexdigest(),
    )


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


@dataclass(frozen=True, slots=True)
class Member:
    """One episode in a group."""

    episode: Episode
    injected: bool = False
    left_out: bool = False
    """Whether the update that learned from the group left it out: it made room for a replay, or was too old."""
    number: int | None = None
    """Its number in the update's record; None where no update learned from it."""
    advantage: float | None = None


@dataclass(frozen=True, slots=True)
class ShownGroup:
    """The episodes of one task that stand side by side."""

    key: str
    members: tuple[Member, ...]
    """In the update's order, and behind them those that it left out; by id where no update has a record of them."""
    update: UpdateRecord | None = None
    """Without the numbers of its tokens."""

    @property
    def first(self) -> Episode:
        """A member that was played for this group: task, split and iteration are those of the group."""
        own = [member.episode for member in self.members if member.episode.group == self.key]
        return (own or [self.members[0].episode])[0]


class Updates:
    """The records of a run's updates, as far as they are written."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files = Files(self._head)
        # Once for all of its groups, which are written one after the other.
        self._whole = lru_cache(maxsize=2)(lambda path, _stamp: read_update(path))

    def refresh(self) -> None:
        """Read what was written since the last call."""
        self._files.refresh(self.root.glob("updates/iteration_*.safetensors"))

    @property
    def records(self) -> list[UpdateRecord]:
        """Every update, without the numbers of its tokens."""
        return [record for record in self._files.contents if isinstance(record, UpdateRecord)]

    @property
    def broken(self) -> list[Broken]:
        """The files that are no record."""
        return [record for record in self._files.contents if isinstance(record, Broken)]

    def stamp(self, record: UpdateRecord) -> Stamp:
        """Return time and size of an update's file, by which a change shows."""
        return next(stamp for stamp, known in self._files.known.values() if known is record)

    def whole(self, record: UpdateRecord) -> UpdateRecord | None:
        """Return an update with the numbers of its tokens; None where its file is gone."""
        path, stamp = next((path, stamp) for path, (stamp, known) in self._files.known.items() if known is record)
        with suppress(ArpoError):
            return self._whole(path, stamp)
        return None

    def _head(self, path: Path) -> UpdateRecord | Broken:
        try:
            return replace(read_update(path), numbers={})
        except ArpoError as error:
            return Broken(path.relative_to(self.root).as_posix(), 0, str(error))


def show_groups(episodes: Mapping[str, Episode], updates: Iterable[UpdateRecord]) -> list[ShownGroup]:
    """Return every group of a run: training by iteration and number, then the other splits."""
    played: defaultdict[str, list[Episode]] = defaultdict(list)
    for episode in episodes.values():
        played[episode.group].append(episode)
    learned: dict[str, ShownGroup] = {}
    for update in updates:
        for group in _of_update(update, episodes):
            learned[group.key] = group
    shown = [_complete(learned.get(key), key, members) for key, members in played.items()]

    def order(group: ShownGroup) -> tuple[bool, str, list[tuple[bool, int, str]]]:
        split = group.first.split
        return split != "train", split, natural_order(group.key.replace("-", "/"))

    return sorted(shown, key=order)


def _of_update(update: UpdateRecord, episodes: Mapping[str, Episode]) -> Iterable[ShownGroup]:
    """Yield the groups of an update, as far as their episodes are on disk."""
    found: dict[int, list[Member]] = defaultdict(list)
    for group, position, number in update.places():
        episode = episodes.get(group.members[position])
        if episode is not None:
            advantage = float(update.advantages[number]) if number < len(update.advantages) else None
            member = Member(episode, position in group.injected, number=number, advantage=advantage)
            found[id(group)].append(member)
    for group in update.groups:
        own = [member for position, member in enumerate(group.members) if position not in group.injected]
        if own and id(group) in found:
            yield ShownGroup(own[0].rpartition("/")[0], tuple(found[id(group)]), update)


def _complete(learned: ShownGroup | None, key: str, played: Iterable[Episode]) -> ShownGroup:
    """Return a group with those members behind the others that no update learned from."""
    by_id = sorted(played, key=lambda episode: natural_order(episode.id))
    if learned is None:
        return ShownGroup(key, tuple(map(Member, by_id)))
    known = {member.episode.id for member in learned.members}
    rest = tuple(Member(episode, left_out=True) for episode in by_id if episode.id not in known)
    return ShownGroup(key, (*learned.members, *rest), learned.update)
