"""Trajectories on disk: JSON lines that survive a crash, and screenshots addressed by their content."""

import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from jaxtyping import Float32, Int64
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from arpo.errors import ArpoError
from arpo.host.files import atomically, whole_lines
from arpo.rollout.conversation import Blind
from arpo.rollout.old_records import in_todays_shape
from arpo.types import Trajectory

log = logging.getLogger(__name__)

ID = re.compile(r"(?:(?P<split>[a-z_]+)-)?(?P<iteration>\d+)/.+")
"""The ids of stored trajectories."""
_FILES = "iteration_" + "[0-9]" * 6 + ".jsonl"
"""The files of an iteration's records; a copy beside them is none."""
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"


class TrajectoryStore:
    """An append-only record of episodes below one directory.

        train/iteration_000012.jsonl     one line a trajectory, in the order in which episodes ended
        eval/iteration_000012.jsonl
        screens/ab/abcdef….png           each screenshot once, under its SHA-256

    A line is written when its episode ends, after its screenshots, so a crash loses running episodes only. A line
    that a crash cut is dropped on reading and cut off before the next append. The id says where a trajectory
    stands: `12/3/0` in split `train`, `eval-12/…` in split `eval`, both of iteration 12; of two records with one
    id the later counts. One process writes; its threads may share the store.
    """

    def __init__(self, root: str | Path, *, fsync: bool = False) -> None:
        """Name the directory, which this store has to itself; nothing is created before the first write.

        Args:
            root: The directory.
            fsync: Wait for the disk at every record, so that not even a power cut loses a finished episode.
        """
        self.root = Path(root)
        self._scratch = self.root / "screens" / ".partial"
        self._fsync = fsync
        self._lock = threading.Lock()
        self._writing = False
        self.blind: Blind | None = None
        """How the run's tokenizer leaves a screenshot out; records from before there were exchanges need it."""

    def write(self, trajectory: Trajectory) -> None:
        """Append one trajectory where its id belongs, and its screenshots."""
        path = self._path(*_locate(trajectory.id))
        with self._lock:
            try:
                if not self._writing:  # not earlier: a reader must leave a live writer's files alone
                    shutil.rmtree(self._scratch, ignore_errors=True)
                    self._scratch.mkdir(parents=True)
                    self._writing = True
                for key, png in trajectory.screenshots.items():
                    if not (screen := self.screenshot_path(key)).exists():
                        with atomically(screen, sync=self._fsync, scratch=self._scratch) as partial:
                            partial.write_bytes(png)
                self._append(path, _encode(trajectory))
            except OSError as error:
                raise ArpoError(
                    f"cannot store trajectory {trajectory.id} in {error.filename or path}: {error.strerror}; "
                    f"free space below {self.root} or choose another directory, then resume the run"
                ) from error

    def read(self, split: str, iteration: int) -> list[Trajectory]:
        """Return the trajectories of one iteration by id, without screenshot bytes; none if none are stored."""
        path = self._path(split, iteration)
        with self._lock:
            records = {record.id: record for _, record in _records(path, self.blind)}
        return sorted(records.values(), key=lambda record: natural_order(record.id))

    def iterations(self) -> list[tuple[str, int]]:
        """Return every split and iteration that has records, earlier iterations first."""
        found = sorted((_iteration(path), path.parent.name) for path in self.root.glob(f"*/{_FILES}"))
        return [(split, iteration) for iteration, split in found]

    def read_all(self, splits: Collection[str] | None = None) -> Iterator[Trajectory]:
        """Yield the trajectories of some splits, by default of all, earlier iterations first."""
        for split, iteration in self.iterations():
            if splits is None or split in splits:
                yield from self.read(split, iteration)

    def get(self, trajectory_id: str) -> Trajectory:
        """Return one trajectory by its id, without screenshot bytes."""
        path = self._path(*_locate(trajectory_id))
        # `_encode` writes the id first, so only the line that is wanted has to be parsed.
        head = json.dumps({"id": trajectory_id})[:-1].encode() + b","
        with self._lock:
            lines = [line for line in whole_lines(path) if line.startswith(head)]
        if not lines:
            raise ArpoError(f"trajectory {trajectory_id} is not in {path}")
        return _decode(lines[-1], self.blind)

    def load_screenshots(self, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory with the PNG bytes of every screenshot that it names."""
        try:
            shown = {key: self.screenshot_path(key).read_bytes() for key in _shown(trajectory)}
            return replace(trajectory, screenshots=shown)
        except FileNotFoundError as error:
            raise ArpoError(f"trajectory {trajectory.id} has lost its screenshot {error.filename}") from error

    def screenshot_path(self, key: str) -> Path:
        """Return the path of a screenshot, whether it is there or not."""
        return self.root / "screens" / key[:2] / f"{key}.png"

    def lost_screenshots(self, trajectory: Trajectory) -> list[Path]:
        """Return the files of screenshots that a trajectory names and that are not there, or end too early."""
        return [path for path in map(self.screenshot_path, _shown(trajectory)) if not _is_whole(path)]

    def finished(self, first_iteration: int) -> dict[str, Trajectory]:
        """Return, by id and without screenshot bytes, the training episodes of an iteration and of all later ones."""
        later = [number for split, number in self.iterations() if split == "train" and number >= first_iteration]
        return {record.id: record for iteration in later for record in self.read("train", iteration)}

    def truncate(self, iteration: int, policy_version: int, *, first_iteration: int | None = None) -> None:
        """Remove the records of what a crash undid: later evaluations, and episodes that a later policy played.

        Training episodes of later iterations that the policy or its elders played stay: rollouts may have run ahead.

        Args:
            iteration: The one that comes next.
            policy_version: The newest policy that is left.
            first_iteration: The first one of which an episode may be undone; `iteration` by default.
        """
        first = iteration if first_iteration is None else first_iteration
        with self._lock:
            for path in self.root.glob(f"*/{_FILES}"):
                if path.parent.name != "train":
                    if _iteration(path) > iteration:
                        path.unlink()
                elif _iteration(path) >= first:
                    _keep(path, policy_version, self.blind)

    def _path(self, split: str, iteration: int) -> Path:
        return self.root / split / f"iteration_{iteration:06d}.jsonl"

    def _append(self, path: Path, line: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                kept = path.read_bytes().rfind(b"\n") + 1
                log.warning("%s ends in a record that a crash cut; its %d bytes are dropped", path, size - kept)
                file.truncate(kept)
            # One unbuffered write: a crash cuts the line at some byte or not at all, and never interleaves two.
            written = file.write(line)
            if written != len(line):
                file.write(line[written:])
            if self._fsync:
                os.fsync(file.fileno())


def store_of(source: str | Path) -> Path:
    """Return the directory of a run's trajectories, from the run's folder or from that directory itself."""
    inside = Path(source) / "trajectories"
    return inside if inside.is_dir() else Path(source)


def _is_whole(path: Path) -> bool:
    """Return whether a file is there and ends as a PNG does."""
    try:
        with path.open("rb") as file:
            file.seek(-len(_PNG_END), os.SEEK_END)
            return file.read() == _PNG_END
    except OSError:  # it is not there, or shorter than its end
        return False


def _shown(trajectory: Trajectory) -> list[str]:
    """Return the keys of a trajectory's screenshots, each once; the screen after the last action is among them."""
    keys = [step.screenshot for step in trajectory.steps]
    keys += [picture.key for exchange in trajectory.exchanges for picture in exchange.pictures]
    return list(dict.fromkeys([*keys, trajectory.last_screenshot] if trajectory.last_screenshot else keys))


def _locate(trajectory_id: str) -> tuple[str, int]:
    match = ID.fullmatch(trajectory_id)
    if match is None:
        raise ArpoError(
            f"{trajectory_id!r} is not the id of a stored trajectory; ids look like 12/3/0 or eval-12/held_out/3/0"
        )
    return match["split"] or "train", int(match["iteration"])


def _iteration(path: Path) -> int:
    return int(path.stem.removeprefix("iteration_"))


def _keep(path: Path, policy_version: int, blind: Blind | None) -> None:
    """Keep the records of a file in which no later policy had a part."""
    records = list(_records(path, blind))
    versions = [[exchange.policy_version for exchange in record.exchanges] for _, record in records]
    kept = [line for (line, _), own in zip(records, versions, strict=True) if max(own, default=0) <= policy_version]
    if not kept:
        path.unlink()
    elif len(kept) < len(records):
        with atomically(path) as partial:
            partial.write_bytes(b"".join(kept))


def natural_order(trajectory_id: str) -> list[tuple[bool, int, str]]:
    """Return a key by which ids sort as people count: 2 before 10."""
    parts = trajectory_id.split("/")
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def _records(path: Path, blind: Blind | None = None) -> Iterator[tuple[bytes, Trajectory]]:
    for number, line in enumerate(whole_lines(path), start=1):
        try:
            yield line, _decode(line, blind)
        except (ValueError, KeyError, TypeError) as error:
            raise ArpoError(
                f"{path}, line {number} is not a trajectory ({type(error).__name__}: {error}); "
                "remove that line to go on without it"
            ) from error


def _encode(trajectory: Trajectory) -> bytes:
    record = msgspec.to_builtins(replace(trajectory, screenshots={}))
    del record["screenshots"]
    # `json` writes floats by `repr`, so every logprob comes back to the last bit.
    return json.dumps(record).encode() + b"\n"


def _decode(line: bytes, blind: Blind | None = None) -> Trajectory:
    return msgspec.convert(in_todays_shape(json.loads(line), blind), Trajectory)


NUMBERS = ("old_logprobs", "old_entropy", "logprobs", "entropy", "weights", "after_logprobs", "after_entropy")
"""The facts of a token: log-probability and entropy before the update, in the last forward that it was learned from,
and, where they were asked for, after it; `weights` are the factors of its policy term, where there are any."""


@dataclass(frozen=True, slots=True)
class UpdatedGroup:
    """The trajectories of a group by id, as the update saw them, and the positions of those that were replayed."""

    task_id: str
    members: tuple[str, ...]
    injected: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class UpdateRecord:
    """One update: what it learned from, and what it did to each sampled token.

    The trajectories stand one after the other, group by group, and so do their tokens: those of trajectory i are
    `offsets[i]` to `offsets[i + 1]`.
    """

    iteration: int
    """Of the batch, as in the ids of its trajectories."""
    policy_version: int
    groups: tuple[UpdatedGroup, ...]
    left_out: tuple[str, ...]
    """Ids of what was collected and not learned from: stale, or of a group that became too small."""
    advantages: Float32[np.ndarray, " trajectories"]
    """Of each trajectory, the mean over its tokens; NaN where it has none."""
    offsets: Int64[np.ndarray, " trajectories+1"]
    numbers: Mapping[str, Float32[np.ndarray, " tokens"]]
    """Of each token by name, NaN where the update did not compute it; the names are some of `NUMBERS`."""

    def places(self) -> Iterator[tuple[UpdatedGroup, int, int]]:
        """Yield each trajectory as its group, its position in the group, and its number."""
        members = [(group, position) for group in self.groups for position in range(len(group.members))]
        for number, (group, position) in enumerate(members):
            yield group, position, number

    def tokens(self, number: int) -> dict[str, Float32[np.ndarray, " tokens"]]:
        """Return the numbers of one trajectory's tokens, without those that the update did not compute at all."""
        start, end = self.offsets[number], self.offsets[number + 1]
        found = {name: values[start:end] for name, values in self.numbers.items()}
        return {name: values for name, values in found.items() if not np.isnan(values).all()}

    def ratios(self) -> Float32[np.ndarray, " trained"]:
        """Return π / π_old of each token that was learned from."""
        if not {"logprobs", "old_logprobs"} <= set(self.numbers):
            return np.empty(0, dtype=np.float32)
        differences = self.numbers["logprobs"] - self.numbers["old_logprobs"]
        return np.asarray(np.exp(differences[~np.isnan(differences)]))


def update_path(root: Path, iteration: int) -> Path:
    """Return the file of an update in a trajectory store."""
    return root / "updates" / f"iteration_{iteration:06d}.safetensors"


def write_update(root: Path, record: UpdateRecord) -> None:
    """Write an update's record into a trajectory store, whole or not at all."""
    path = update_path(root, record.iteration)
    head = {name: getattr(record, name) for name in ("iteration", "policy_version", "left_out")}
    head["groups"] = [asdict(group) for group in record.groups]
    tensors = {"advantages": record.advantages, "offsets": record.offsets} | dict(record.numbers)
    try:
        with atomically(path) as partial:
            partial.write_bytes(save(tensors, metadata={"update": json.dumps(head)}))
    except (OSError, SafetensorError) as error:
        raise ArpoError(
            f"cannot store what update {record.iteration} did in {path}: {error}; free space, then resume the run, or "
            "leave the record out with '~callbacks.update_log'"
        ) from error


def read_update(path: Path) -> UpdateRecord:
    """Return the record of an update."""
    try:
        with safe_open(path, framework="numpy") as file:
            head = json.loads(file.metadata()["update"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        groups = tuple(
            UpdatedGroup(group["task_id"], tuple(group["members"]), tuple(group["injected"]))
            for group in head["groups"]
        )
        return UpdateRecord(
            iteration=int(head["iteration"]),
            policy_version=int(head["policy_version"]),
            groups=groups,
            left_out=tuple(head["left_out"]),
            advantages=tensors.pop("advantages"),
            offsets=tensors.pop("offsets"),
            numbers={name: tensors[name] for name in NUMBERS if name in tensors},
        )
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArpoError(f"{path} is not the record of an update ({type(error).__name__}: {error})") from error


def forget_updates(root: Path, first_iteration: int) -> None:
    """Remove the records of an iteration and of all later ones, which a resumed run takes again."""
    for path in (root / "updates").glob("iteration_*.safetensors"):
        if int(path.stem.removeprefix("iteration_")) >= first_iteration:
            path.unlink()
