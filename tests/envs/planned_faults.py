"""Faults on demand, so that every way in which a desktop can break is seen in a test before it happens at night."""

import os
import random
import threading
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from arpo.envs.fake import FakeDesktop
from arpo.errors import DesktopDestroyedError, EnvError
from arpo.types import Observation

FaultKind = Literal["hang", "crash", "error", "garbage", "undecodable", "destroyed"]
Call = Literal["reset", "step", "evaluate"]

HANG_S = 3600.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, and the call in which it does, once an episode.

    `hang` does not return, `crash` ends the process, `error` raises an `EnvError` of the call's kind, `destroyed` says
    that the agent has destroyed its desktop, `garbage` gives a screenshot that is not a PNG, or a task reward that is
    not a number, and `undecodable` a screenshot whose checksums are right and whose pixels are not all there.
    """

    kind: FaultKind
    call: Call
    attempts: int | None = None  # only in this many first episodes of a task; None: in all
    probability: float = 1.0  # drawn once an episode, from the seed, the task and the attempt


@dataclass(frozen=True, slots=True)
class Faults:
    """A plan of what goes wrong in an environment; the same for the same seed, task and attempt."""

    plan: Sequence[Fault] = ()
    seed: int = 0
    ledger: str | None = None
    """A directory in which all environments, in all processes, count the attempts at a task together, so that an
    episode that is retried after a crash is a new attempt. Without it, every environment counts its own."""


class FaultyDesktop(FakeDesktop):
    def __init__(self, faults: Faults, width: int = 112, height: int = 84) -> None:
        super().__init__(width, height)
        self._faults = faults
        self._attempts: Counter[str] = Counter()
        self._due: dict[Call, FaultKind] = {}

    def reset(self, task):
        attempt = self._count_attempt(task.id)
        generator = random.Random(f"{self._faults.seed}/{task.id}/{attempt}")
        drawn = [fault for fault in self._faults.plan if generator.random() < fault.probability]
        due = [fault for fault in drawn if fault.attempts is None or attempt < fault.attempts]
        self._due = {fault.call: fault.kind for fault in reversed(due)}
        fault = self._meet("reset")
        return spoiled(super().reset(task), fault)

    def step(self, action):
        fault = self._meet("step")
        result = super().step(action)
        return replace(result, observation=spoiled(result.observation, fault))

    def evaluate(self):
        return float("nan") if self._meet("evaluate") == "garbage" else super().evaluate()

    def _meet(self, call: Call) -> FaultKind | None:
        """Let a planned fault happen, and return it where the answer of this call has it."""
        match kind := self._due.pop(call, None):
            case "crash":
                os._exit(1)
            case "hang":
                threading.Event().wait(HANG_S)
            case "error":
                raise EnvError(call, f"planned fault in {call}")
            case "destroyed":
                raise DesktopDestroyedError(f"planned fault in {call}")
        return kind

    def _count_attempt(self, task_id: str) -> int:
        if self._faults.ledger is None:
            self._attempts[task_id] += 1
            return self._attempts[task_id] - 1
        path = Path(self._faults.ledger) / task_id.replace("/", "_")
        with path.open("ab") as ledger:  # one byte an attempt: appending is atomic, across processes too
            ledger.write(b".")
            ledger.flush()
            return ledger.tell() - 1


def spoiled(observation: Observation, fault: FaultKind | None) -> Observation:
    """The observation with the fault that is planned for its screenshot; without one, as it is."""
    if fault == "garbage":
        return replace(observation, screenshot=b"not a PNG")
    if fault == "undecodable":
        return replace(observation, screenshot=_without_half_of_the_pixels(observation.screenshot))
    return observation


def _without_half_of_the_pixels(png: bytes) -> bytes:
    """Cut the first chunk of pixels in half, and give it the length and the checksum of what it holds now."""
    kind = png.index(b"IDAT")
    length = int.from_bytes(png[kind - 4 : kind])
    chunk = png[kind : kind + 4 + length // 2]
    return png[: kind - 4] + (length // 2).to_bytes(4) + chunk + zlib.crc32(chunk).to_bytes(4) + png[-12:]
