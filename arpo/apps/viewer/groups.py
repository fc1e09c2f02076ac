"""The groups of a run: which episodes were compared, and which of them an update learned from."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from arpo.apps.viewer.records import Broken, Episode, Files, Stamp
from arpo.errors import ArpoError
from arpo.rollout.updates import UpdateRecord, read_update


@dataclass(frozen=True, slots=True)
class Member:
    """One episode in a group."""

    episode: Episode
    injected: bool = False
    """Whether replay put it in."""
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
    """The records of a run's updates, as far as they are written.

    Args:
        root: The trajectory store.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files = Files(self._head)

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
        path = next(path for path, (_, known) in self._files.known.items() if known is record)
        try:
            return _whole(path, self.stamp(record))
        except ArpoError:
            return None

    def _head(self, path: Path) -> UpdateRecord | Broken:
        try:
            return replace(read_update(path), numbers={})
        except ArpoError as error:
            return Broken(path.relative_to(self.root).as_posix(), 0, str(error))


@lru_cache(maxsize=2)
def _whole(path: Path, stamp: Stamp) -> UpdateRecord:
    """Read an update once for all of its groups, which are written one after the other."""
    del stamp
    return read_update(path)


def show_groups(episodes: Mapping[str, Episode], updates: Iterable[UpdateRecord]) -> list[ShownGroup]:
    """Return every group of a run: training by iteration and number, then the other splits.

    A group that an update learned from has the members that it learned from, a replayed one among them, then those
    that it left out.
    """
    played: defaultdict[str, list[Episode]] = defaultdict(list)
    for episode in episodes.values():
        played[episode.group].append(episode)
    learned: dict[str, ShownGroup] = {}
    for update in updates:
        for group in _of_update(update, episodes):
            learned[group.key] = group
    shown = [_complete(learned.get(key), key, members) for key, members in played.items()]
    return sorted(shown, key=_order)


def natural(text: str) -> list[tuple[bool, int, str]]:
    """Return a key by which ids sort as people count: 2 before 10."""
    parts = text.replace("-", "/").split("/")
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def _order(group: ShownGroup) -> tuple[bool, str, list[tuple[bool, int, str]]]:
    split = group.first.split
    return split != "train", split, natural(group.key)


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
    by_id = sorted(played, key=lambda episode: natural(episode.id))
    if learned is None:
        return ShownGroup(key, tuple(map(Member, by_id)))
    known = {member.episode.id for member in learned.members}
    rest = tuple(Member(episode, left_out=True) for episode in by_id if episode.id not in known)
    return ShownGroup(key, (*learned.members, *rest), learned.update)
