"""The episodes of a run as they lie on disk, read while the run may still write them."""

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from sys import float_info
from typing import Annotated, Generic, TypeVar

import msgspec

from arpo.rollout.storage import ID

SHOWN_OF_BROKEN = 2000
"""Characters of a broken record that are shown."""


_Reward = Annotated[float, msgspec.Meta(ge=-float_info.max, le=float_info.max)]  # JSON has no infinity, but 1e999


class _Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of an episode that lists and tables show as they are stored."""

    id: str
    task_id: str
    domain: str
    instruction: str
    seed: int
    outcome: str
    task_reward: _Reward
    format_reward: _Reward


class Episode(_Facts, frozen=True, kw_only=True):
    """The facts of an episode that lists and tables need, and where the rest of it stands."""

    split: str
    iteration: int
    steps: int
    tokens: int
    oldest: int
    """The oldest policy version of a step."""
    newest: int
    parse_error: bool
    path: Path
    offset: int
    length: int
    """Bytes of its line."""
    digest: str
    """Of its line."""

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


@dataclass(frozen=True, slots=True)
class _Lines:
    """A file of episodes as it was read last."""

    episodes: tuple[Episode, ...]
    broken: tuple[Broken, ...]
    torn: bool
    """Whether more bytes stand behind the last whole line."""


Found = TypeVar("Found")
Stamp = tuple[int, int]
"""Time and size of a file, by which a change shows."""


class Files(Generic[Found]):
    """Files that are read again where their time or size has changed.

    Args:
        read: What is kept of a file.
    """

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
    that is no record, or stands in a file where nobody would look for it, is kept as broken.

    Args:
        root: The trajectory store.
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
        return {episode.id: episode for file in self._files.contents for episode in file.episodes}

    @property
    def broken(self) -> list[Broken]:
        """The lines that are no record, and the files that cannot be read."""
        return [broken for file in self._files.contents for broken in file.broken]

    @property
    def torn(self) -> list[str]:
        """Files that end in a part of a record: it is being written, or a crash has cut it."""
        return [self._name(path) for path, (_, file) in self._files.known.items() if file.torn]

    def line(self, episode: Episode) -> bytes | None:
        """Return the record of an episode as it was written; None where the file has changed meanwhile."""
        try:
            with episode.path.open("rb") as file:
                file.seek(episode.offset)
                line = file.read(episode.length)
        except FileNotFoundError:
            return None
        try:
            return line if json.loads(line)["id"] == episode.id else None
        except (ValueError, KeyError, TypeError):
            return None

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _read(self, path: Path) -> _Lines:
        try:
            *lines, rest = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            raise
        except OSError as error:
            return _Lines((), (Broken(self._name(path), 0, f"cannot be read: {error.strerror}"),), torn=False)
        episodes, broken, offset = [], [], 0
        for number, line in enumerate(lines, start=1):
            try:
                episodes.append(read_episode(line, path, offset))
            except (ValueError, RecursionError) as error:
                text = line.decode(errors="replace")[:SHOWN_OF_BROKEN]
                broken.append(Broken(self._name(path), number, f"{type(error).__name__}: {error}", text))
            offset += len(line) + 1
        return _Lines(tuple(episodes), tuple(broken), torn=bool(rest))


class _Step(msgspec.Struct):
    screenshot: str
    width: int
    height: int
    prompt_ids: list[int]
    response_ids: list[int]
    sampler_logprobs: list[float]
    policy_version: int
    response: str
    action: str
    parse_error: str


class _Record(_Facts, frozen=True, kw_only=True):
    steps: list[_Step]


def read_episode(line: bytes, path: Path, offset: int) -> Episode:
    """Return the facts of a line of a trajectory store."""
    record = msgspec.convert(json.loads(line.decode(), parse_constant=_refused), _Record)
    located = ID.fullmatch(record.id)
    if located is None:
        raise ValueError(f"{record.id!r} is not the id of a trajectory")
    split, iteration = located["split"] or "train", int(located["iteration"])
    if (path.parent.name, path.stem) != (split, f"iteration_{iteration:06d}"):
        raise ValueError(f"{record.id!r} belongs into {split}/iteration_{iteration:06d}.jsonl")
    versions = [step.policy_version for step in record.steps]
    return Episode(
        **{name: getattr(record, name) for name in _Facts.__struct_fields__},
        split=split,
        iteration=iteration,
        steps=len(versions),
        tokens=sum(len(step.response_ids) for step in record.steps),
        oldest=min(versions, default=0),
        newest=max(versions, default=0),
        parse_error=any(step.parse_error for step in record.steps),
        path=path,
        offset=offset,
        length=len(line),
        digest=hashlib.blake2b(line, digest_size=8).hexdigest(),
    )


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
