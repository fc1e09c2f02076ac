"""Ways to start a run that end it, and the parts that they put into it by overrides, to die or hang in its middle."""

import asyncio
import os
import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import lightning as L
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor

from arpo.inference.engine import GenerateRequest, Response
from arpo.inference.vllm import VllmEngine
from tests.integration.runs import Run

Begin = Callable[[Run], None]
"""Starts a run from its last checkpoint, and may see to its end."""
REQUESTS = 25
"""Of a policy version before it is killed, and more until an episode has ended."""
TENSORS = 10
"""Of a weight update before it is killed."""
BYTES = 2_000_000
"""Of a checkpoint before it is killed; a whole one has four times as many."""


def die() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


class EngineThatDies(VllmEngine):
    """vLLM, until it is in the middle of the rollout of one policy version, or of the sync that follows on it.

    `episodes` is the file of the episodes of that rollout that have ended.
    """

    def __init__(
        self, path: str | Path, *, during: Literal["rollout", "sync"], version: int, episodes: str, **options: Any
    ) -> None:
        self._during, self._at, self._requests = during, version, 0
        self._episodes = Path(episodes)
        super().__init__(path, **options)

    async def generate(self, request: GenerateRequest) -> Response:
        if self._during == "rollout" and self._version == self._at:
            self._requests += 1
            if self._requests >= REQUESTS and self._episodes.exists():
                await self._break()
        return await super().generate(request)

    async def _break(self) -> None:
        die()

    def _load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        last = self._during == "sync" and self._version == self._at
        super()._load(_some_of(tensors) if last else tensors)


class EngineThatHangs(EngineThatDies):
    """vLLM, until it is in the middle of a rollout: no later request gets an answer, so this iteration never ends."""

    async def _break(self) -> None:
        await asyncio.Event().wait()


def _some_of(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    yield from islice(tensors, TENSORS)
    die()


class DieInUpdate(L.Callback):
    """Ends the process in the middle of an update, once the optimizer has taken some steps in it."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for optimizer in trainer.optimizers:
            optimizer.register_step_post_hook(self._count)

    def _count(self, *_: object) -> None:
        self._left -= 1
        if self._left == 0:
            die()


class DieInCheckpoint(L.Callback):
    """Lets the kernel end the process with the byte of a checkpoint that is one too many."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.current_epoch + 1 == self.iteration:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES, resource.RLIM_INFINITY))


class DieAfterCheckpoint(Checkpoint):
    """Ends the process right after a checkpoint got its name, before the trainer does anything else."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch + 1 == self.iteration:
            die()


def go_on(run: Run, *overrides: str) -> None:
    """Go on from the last checkpoint."""
    run.start("resume=auto", *overrides)


def die_in(during: str, version: int, engine: str = "EngineThatDies") -> Begin:
    """Be killed while an engine of `killers` rolls out a version, or loads the one behind it."""

    def begin(run: Run) -> None:
        options = {"during": during, "version": version, "episodes": run.episodes(version)}
        go_on(run, f"engine._target_={__name__}.{engine}", *(f"+engine.{name}={options[name]}" for name in options))

    return begin


def die_in_update(run: Run, steps: int = 3) -> None:
    """Be killed by a step of the optimizer: of two an iteration, the third is in the second of this process."""
    go_on(run, f"+callbacks.killer._target_={__name__}.DieInUpdate", f"+callbacks.killer.steps={steps}")


def die_by(callback: str, iteration: int) -> Begin:
    """Be killed by a callback at the end of an iteration."""
    options = (f"+callbacks.killer._target_={__name__}.{callback}", f"+callbacks.killer.iteration={iteration}")
    return lambda run: go_on(run, *options)


def stop(iteration: int, sign: signal.Signals) -> Begin:
    """Be asked to end while an iteration is rolled out."""

    def begin(run: Run) -> None:
        go_on(run)
        run.wait_for_rollout(iteration)
        run.send(sign)

    return begin
