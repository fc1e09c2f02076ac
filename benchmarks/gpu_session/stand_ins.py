"""Stand-ins of a session on a GPU: drawn desktops with a lucky score, and an engine that says how long it takes."""

import io
import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from PIL import Image
from torch import Tensor
from typing_extensions import override

from arpo.agent.actions import Action, Wait
from arpo.agent.prompt import GRAMMARS
from arpo.agent.response import ParsedResponse
from arpo.envs.protocol import StepResult
from arpo.inference.vllm import VllmEngine
from arpo.rollout import episode
from arpo.types import Observation, Task
from benchmarks.gpu_session.play import RESULTS, SCREENS, note
from benchmarks.gpu_session.screens import HEIGHT, WIDTH, desktop


def drawn(seed: int, instruction: str = "") -> Observation:
    """Return a desktop of 1080p with windows of text, or a stored one of a run where a part has brought them."""
    if stored := sorted(SCREENS.glob("*.png")):
        png = stored[seed % len(stored)].read_bytes()
        return Observation(png, *Image.open(io.BytesIO(png)).size, instruction)
    _, png = desktop(seed, "windows")
    return Observation(png, WIDTH, HEIGHT, instruction)


class DrawnScreen:
    """A `DesktopEnv` that shows another desktop at each step, and whose verdict is a random number in [0, 1].

    A random policy solves nothing; without luck all members of a group would score the same, and nothing be learned.
    """

    def reset(self, task: Task) -> Observation:
        return drawn(random.randrange(2**31), "" if task.instruction else "Open the report.")

    def step(self, action: Action) -> StepResult:
        return StepResult(drawn(random.randrange(2**31)))

    def evaluate(self) -> float:
        return random.random()

    def close(self) -> None:
        pass


def _waits(*_: object, **__: object) -> ParsedResponse:
    return ParsedResponse("", (Wait(),))


def every_answer_waits() -> None:
    """Read every response of this process as `wait()`: those of a random policy are not actions, and would end it."""
    episode.GRAMMARS = {name: replace(grammar, parse=_waits) for name, grammar in GRAMMARS.items()}


class TimedEngine(VllmEngine):
    """vLLM, also in version 0.26, which notes the seconds of sleep, wake and load, and the GPU's memory after each."""

    @override
    def _stamp(self, version: int) -> None:
        _know_versions()
        super()._stamp(version)

    @override
    def _suspend(self) -> None:
        _timed("sleep", super()._suspend)

    @override
    def _wake_weights(self) -> None:
        _timed("wake weights", super()._wake_weights)

    @override
    def _wake_cache(self) -> None:
        _timed("wake cache", super()._wake_cache)

    @override
    def _load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        _timed("load", lambda: super(TimedEngine, self)._load(tensors))


def _timed(what: str, action: Callable[[], None]) -> None:
    began = time.monotonic()
    action()
    seconds = time.monotonic() - began
    free, whole = torch.cuda.mem_get_info() if torch.cuda.is_available() else (0, 0)
    note(Path(os.environ[RESULTS]), f"engine: {what}", seconds=seconds, used_gib=(whole - free) / 2**30)


def _know_versions() -> None:
    """Teach vLLM 0.26 to say of a response which weights made it; later ones know it themselves."""
    from vllm.outputs import CompletionOutput
    from vllm.v1.engine.llm_engine import LLMEngine

    if hasattr(LLMEngine, "set_weight_version"):
        return
    newest = SimpleNamespace(version="0")

    def set_weight_version(_: LLMEngine, version: str) -> None:
        newest.version = version

    LLMEngine.set_weight_version = set_weight_version
    # Nothing is in flight when weights change: what has finished was made by the newest.
    CompletionOutput.weight_versions = property(lambda _: (newest,))
