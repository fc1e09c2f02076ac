"""Trajectories on disk: JSON lines that survive a crash, and screenshots addressed by their content."""

import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import fields, replace
from io import FileIO
from pathlib import Path
from typing import Any

from arpo.errors import ArpoError
from arpo.host.files import atomically
from arpo.types import Outcome, Step, Trajectory

log = logging.getLogger(__name__)

ID = re.compile(r"(?:(?P<split>[a-z_]+)-)?(?P<iteration>\d+)/.+")
"""The ids of stored trajectories."""
_FILES = "iteration_" + "[0-9]" * 6 + ".jsonl"
"""The files of an iteration's records; a copy that somebody made beside them is none."""
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
        """Name the directory; nothing is created before the first write.

        Args:
            root: The directory, given to this store alone.
            fsync: Wait for the disk at every record, so that not even a power cut loses a finished episode.
        """
        self.root = Path(root)
        self._scratch = self.root / "screens" / ".partial"
        self._fsync = fsync
        self._lock = threading.Lock()
        self._writing = False

    def write(self, trajectory: Trajectory) -> None:
        """Append one trajectory where its id belongs, and its screenshots."""
        path = self._path(*_locate(trajectory.id))
        with self._lock:
            try:
                self._begin_writing()
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
            records = {record.id: record for record in _read(path)}
        return sorted(records.values(), key=lambda record: _natural(record.id))

    def iterations(self) -> list[tuple[str, int]]:
        """Return every split and iteration that has records, earlier iterations first."""
        paths = self.root.glob(f"*/{_FILES}")
        found = [(int(path.stem.removeprefix("iteration_")), path.parent.name) for path in paths]
        return [(split, iteration) for iteration, split in sorted(found)]

    def get(self, trajectory_id: str) -> Trajectory:
        """Return one trajectory by its id, without screenshot bytes."""
        path = self._path(*_locate(trajectory_id))
        # `_encode` writes the id first, so only the line that is wanted has to be parsed.
        head = json.dumps({"id": trajectory_id})[:-1].encode() + b","
        with self._lock:
            lines = [line for _, line in _complete_lines(path) if line.startswith(head)]
        if not lines:
            raise ArpoError(f"trajectory {trajectory_id} is not in {path}")
        return _decode(lines[-1])

    def load_screenshots(self, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory with the PNG bytes of every screenshot that it names."""
        try:
            shown = {key: self.screenshot_path(key).read_bytes() for key in _shown(trajectory)}
            return replace(trajectory, screenshots=shown)
        except FileNotFoundError as error:
            raise ArpoError(f"trajectory {trajectory.id} has lost its screenshot {error.filename}") from error

    def screenshot_path(self, key: str) -> Path:
        """Return where a screenshot is, or would be."""
        return self.root / "screens" / key[:2] / f"{key}.png"

    def lost_screenshots(self, trajectory: Trajectory) -> list[Path]:
        """Return the files of screenshots that a trajectory names and that are not there, or end too early."""
        return [path for path in map(self.screenshot_path, _shown(trajectory)) if not _is_whole(path)]

    def finished(self, first_iteration: int) -> dict[str, Trajectory]:
        """Return, by id and without screenshot bytes, the training episodes of an iteration and of all later ones."""
        iterations = sorted(map(_iteration, (self.root / "train").glob(_FILES)))
        later = [iteration for iteration in iterations if iteration >= first_iteration]
        return {record.id: record for iteration in later for record in self.read("train", iteration)}

    def truncate(self, iteration: int, policy_version: int, *, first_iteration: int | None = None) -> None:
        """Remove the records of what a crash undid; screenshots stay.

        These are the evaluations of later iterations, and the training episodes in which a later policy had a part.
        Those of later iterations that the policy or its elders played stay: rollouts may have run ahead.

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
                    _keep(path, policy_version)

    def _path(self, split: str, iteration: int) -> Path:
        return self.root / split / f"iteration_{iteration:06d}.jsonl"

    def _begin_writing(self) -> None:
        """Clear away what a killed writer left; not earlier, because a reader must not touch a live writer's files."""
        if not self._writing:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch.mkdir(parents=True)
            self._writing = True

    def _append(self, path: Path, line: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+", buffering=0) as file:
            _cut_torn_line(path, file)
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
    """Return whether a file is there and ends as a PNG does; no more of it is read than that."""
    try:
        with path.open("rb") as file:
            file.seek(-len(_PNG_END), os.SEEK_END)
            return file.read() == _PNG_END
    except OSError:  # it is not there, or shorter than its end
        return False


def _shown(trajectory: Trajectory) -> list[str]:
    """Return the keys of a trajectory's screenshots, each once; the screen after the last action is among them."""
    keys = [step.screenshot for step in trajectory.steps]
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


def _keep(path: Path, policy_version: int) -> None:
    """Keep the records of a file in which no later policy had a part."""
    records = [(line, _parse(path, number, line)) for number, line in _complete_lines(path)]
    kept = [line for line, record in records if all(step.policy_version <= policy_version for step in record.steps)]
    if not kept:
        path.unlink()
    elif len(kept) < len(records):
        with atomically(path) as partial:
            partial.write_bytes(b"".join(kept))


def _natural(trajectory_id: str) -> list[tuple[bool, int, str]]:
    parts = trajectory_id.split("/")
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def _cut_torn_line(path: Path, file: FileIO) -> None:
    size = file.seek(0, os.SEEK_END)
    if size == 0 or os.pread(file.fileno(), 1, size - 1) == b"\n":
        return
    kept = path.read_bytes().rfind(b"\n") + 1
    log.warning("%s ends in a record that a crash cut; its %d bytes are dropped", path, size - kept)
    file.truncate(kept)


def _complete_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield number, line
            else:
                log.warning("%s ends in a record that a crash cut; it is left out", path)


def _read(path: Path) -> Iterator[Trajectory]:
    for number, line in _complete_lines(path):
        yield _parse(path, number, line)


def _parse(path: Path, number: int, line: bytes) -> Trajectory:
    try:
        return _decode(line)
    except (ValueError, KeyError, TypeError) as error:
        raise ArpoError(
            f"{path}, line {number} is not a trajectory ({type(error).__name__}: {error}); "
            "remove that line to go on without it"
        ) from error


def _encode(trajectory: Trajectory) -> bytes:
    record = _fields(trajectory) | {"steps": [_fields(step) for step in trajectory.steps]}
    del record["screenshots"]
    # `json` writes floats by `repr`, so every logprob comes back to the last bit.
    return json.dumps(record).encode() + b"\n"


def _fields(record: Trajectory | Step) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _decode(line: bytes) -> Trajectory:
    record = json.loads(line)
    record["outcome"] = Outcome(record["outcome"])
    for step in record["steps"]:
        step.setdefault("patch_ids", ())  # a record from before there were patches has none
        for name in ("prompt_ids", "response_ids", "sampler_logprobs", "patch_ids"):
            step[name] = tuple(step[name])
    record["steps"] = tuple(Step(**step) for step in record["steps"])
    return Trajectory(**record)
