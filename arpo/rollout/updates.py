"""The record of what an update did to each token, on disk beside the trajectories that it learned from."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from arpo.errors import ArpoError
from arpo.host.files import atomically

NUMBERS = ("old_logprobs", "old_entropy", "logprobs", "entropy", "weights", "after_logprobs", "after_entropy")
"""What is known of a token: log-probability and entropy before the update, in the last forward that it was learned
from, and, where they were asked for, after it; `weights` are the factors of its policy term, where there are any. A
token of a sequence that was not computed, because it teaches nothing, has none of them."""


@dataclass(frozen=True, slots=True)
class UpdatedGroup:
    """The members of a group as the update saw them."""

    task_id: str
    members: tuple[str, ...]
    """Ids of its trajectories, in their order."""
    injected: tuple[int, ...] = ()
    """Positions in `members` that came from the replay buffer."""


@dataclass(frozen=True, slots=True, eq=False)
class UpdateRecord:
    """One update: what it learned from, and what it did to each sampled token.

    The trajectories stand one after the other, group by group, and so do their tokens: those of trajectory i are
    `offsets[i]` to `offsets[i + 1]`.
    """

    iteration: int
    """Of the batch, from 0, as in the ids of its trajectories."""
    policy_version: int
    """Updates that the policy had seen before this one."""
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
        ratios: np.ndarray = np.exp(differences[~np.isnan(differences)])
        return ratios


def update_path(root: Path, iteration: int) -> Path:
    """Return the file of an update in a trajectory store."""
    return root / "updates" / f"iteration_{iteration:06d}.safetensors"


def write_update(root: Path, record: UpdateRecord) -> None:
    """Write an update's record into a trajectory store, whole or not at all."""
    path = update_path(root, record.iteration)
    head = {
        "iteration": record.iteration,
        "policy_version": record.policy_version,
        "groups": [asdict(group) for group in record.groups],
        "left_out": record.left_out,
    }
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
        record = UpdateRecord(
            iteration=int(head["iteration"]),
            policy_version=int(head["policy_version"]),
            groups=groups,
            left_out=tuple(head["left_out"]),
            advantages=tensors.pop("advantages"),
            offsets=tensors.pop("offsets"),
            numbers={name: tensors[name] for name in NUMBERS if name in tensors},
        )
        _check(record)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArpoError(f"{path} is not the record of an update ({type(error).__name__}: {error})") from error
    return record


def _check(record: UpdateRecord) -> None:
    """Check that the parts of a record that was read fit together."""
    members = [trajectory for group in record.groups for trajectory in group.members]
    if not all(isinstance(trajectory, str) for trajectory in members):
        raise TypeError("a member of a group is no id")
    tokens = record.offsets[-1] if len(record.offsets) else 0
    expected = {"advantages": (len(members),), "offsets": (len(members) + 1,)}
    found = {"advantages": record.advantages.shape, "offsets": record.offsets.shape}
    for name, values in record.numbers.items():
        expected[name], found[name] = (int(tokens),), values.shape
    if found != expected or record.offsets.dtype != np.int64 or (np.diff(record.offsets) < 0).any():
        raise ValueError(f"its {len(members)} trajectories need {expected}, there are {found}")


def forget_updates(root: Path, first_iteration: int) -> None:
    """Remove the records of an iteration and of all later ones, which a resumed run takes again."""
    for path in (root / "updates").glob("iteration_*.safetensors"):
        if int(path.stem.removeprefix("iteration_")) >= first_iteration:
            path.unlink()
