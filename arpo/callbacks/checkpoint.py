"""Checkpoints that are whole or absent, a stop that writes one, and the policy as a directory for other programs."""

import logging
import re
import shutil
import signal
import warnings
import zipfile
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint
from torch.distributed.checkpoint.state_dict_loader import load
from typing_extensions import override

from arpo.bounds import AtLeastOne, checked
from arpo.errors import CheckpointError
from arpo.host.files import PARTIAL, atomically
from arpo.host.terminal import ending_signals, leave_terminal
from arpo.models.policy import Policy, trained_names
from arpo.modules.base import PolicyModule
from arpo.modules.strategy import is_whole

log = logging.getLogger(__name__)

SUFFIX = ".ckpt"


@checked
class IterationCheckpoint(Checkpoint):
    """Checkpoints `iteration_<n>.ckpt`: after the first iteration, every n, at the end, and before a stop.

    With shards each is a folder (`arpo.modules.strategy`), otherwise a file. Of them, `keep` of the newest stay.

    It is not Lightning's `ModelCheckpoint`, which leaves an iteration out whose groups all failed, because no
    optimizer step was taken, and names a checkpoint anew when a damaged one of the same iteration is in its way.
    """

    def __init__(self, directory: str | Path, *, every_n_iterations: AtLeastOne, keep: AtLeastOne) -> None:
        self.directory = Path(directory)
        self.every_n_iterations = every_n_iterations
        self.keep = keep
        self._saved: int | None = None

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._saved = trainer.current_epoch or None  # what a run goes on from is there

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        iteration = trainer.current_epoch + 1
        due = iteration == 1 or iteration % self.every_n_iterations == 0
        if due or trainer.should_stop or iteration == trainer.max_epochs:
            # Lightning hands the metrics of an iteration to the loggers after this hook. A process that dies in
            # between would leave a checkpoint whose iteration is in no log, so they go first.
            trainer._logger_connector.update_train_epoch_metrics()
            self._save(trainer, iteration)

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._saved != trainer.current_epoch:  # asked to stop after the hook above had decided
            self._save(trainer, trainer.current_epoch)

    def _save(self, trainer: L.Trainer, iteration: int) -> None:
        self._saved = iteration
        trainer.save_checkpoint(self.directory / f"iteration_{iteration:06d}{SUFFIX}")
        if trainer.is_global_zero:
            for path in checkpoints(self.directory)[: -self.keep]:
                remove(path)


class GracefulStop(L.Callback):
    """The end of training after the running iteration when a person or a scheduler asks for it.

    A second signal, but for a second SIGHUP, raises `SystemExit`, so that everything that was started is ended.

    Attributes:
        received: The first signal, or None; the entry point turns it into the exit code.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # not earlier: Lightning installs its own SIGTERM handler just before, which would end the run in mid-air
        asked = (signal.SIGINT, *ending_signals())
        self._previous = {number: signal.signal(number, self._handle) for number in asked}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave_terminal()
        name = signal.Signals(number).name
        if self.received is not None:
            log.warning("%s again: stopping at once", name)
            raise SystemExit(128 + number)
        self.received = number
        log.warning(
            "%s: finishing this iteration, then a checkpoint, then the end; once more stops at once. "
            "Continue later with resume=auto",
            name,
        )

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # a signal may reach one rank only, and none may go on, or stop, alone
        asked = trainer.should_stop or self.received is not None
        trainer.should_stop = trainer.strategy.reduce_boolean_decision(asked, all=False)

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    @override
    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self.on_train_end(trainer, pl_module)


def checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    return sorted(directory.glob(f"iteration_*{SUFFIX}"))


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint, file or folder, whole or not."""
    if checkpoint.is_dir():
        shutil.rmtree(checkpoint, ignore_errors=True)  # other ranks may be removing it too
    else:
        checkpoint.unlink(missing_ok=True)


def load_policy(policy: Policy, checkpoint: Path) -> None:
    """Load what a checkpoint, a file or a folder of shards, holds of a policy that was built as it was for the run."""
    own, names = policy.state_dict(), trained_names(policy)
    if checkpoint.is_dir():
        trained = {f"policy.{name}": own[name] for name in names}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as it should be
            load({"weights": trained}, checkpoint_id=checkpoint, no_dist=True)  # in place
        return
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
    frozen = {name: tensor for name, tensor in own.items() if name not in names}
    prefix = "policy."  # a critic is not the policy's
    trained = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    policy.load_state_dict(frozen | trained)


def iteration_of(checkpoint: Path) -> int:
    """Read from the name of a checkpoint how many iterations it has seen."""
    match = re.fullmatch(r"iteration_(\d+)", checkpoint.stem)
    if match is None:
        raise CheckpointError(
            f"{checkpoint} names no iteration: its name must be as it was written, iteration_000012{SUFFIX}"
        )
    return int(match.group(1))


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoint files that are whole whenever the process dies: written beside their final name, then renamed."""

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        final = Path(path)
        try:
            with atomically(final, sync=True) as partial, partial.open("wb") as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError of its zip writer
            raise CheckpointError(
                f"cannot write checkpoint {final}: {error}; earlier checkpoints are untouched: free space, "
                "then continue with resume=auto"
            ) from error

    @override
    def load_checkpoint(self, path: str | Path, *arguments: Any, **options: Any) -> dict[str, Any]:
        if Path(path).is_dir():
            raise CheckpointError(f"{path} holds shards: continue it with trainer=fsdp, on any number of devices")
        return super().load_checkpoint(path, *arguments, **options)


def is_valid(path: Path) -> bool:
    """Return whether every byte of a checkpoint is as it was written, by checksums in its folder or zip archive."""
    if path.is_dir():
        return is_whole(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def newest_checkpoint(directory: str | Path) -> Path | None:
    """Return the newest valid checkpoint of a directory, or None; removes what a killed writer left."""
    directory = Path(directory)
    for partial in directory.glob(f"*{SUFFIX}{PARTIAL}"):
        remove(partial)
    for path in reversed(checkpoints(directory)):
        if is_valid(path):
            return path
        log.warning("checkpoint %s is damaged; falling back to the one before", path)
    return None


class ExportPolicy(L.Callback):
    """A callback that writes the trained policy for engines, after the last iteration and before its checkpoint."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch + 1 == trainer.max_epochs:
            export_policy(PolicyModule.of(pl_module).policy, self.directory, writes=trainer.is_global_zero)


def export_policy(policy: Policy, directory: Path, *, card: str = "", writes: bool = True) -> None:
    """Write a policy, and a card as its `README.md` if there is one, in the place of a directory, whole or not at all.

    Every rank calls it; one writes, and the others help to gather the weights, one tensor at a time.
    """
    if not writes:
        for _ in policy.saved_tensors():
            pass
        return
    with atomically(directory) as partial:
        policy.save(partial)
        if card:
            (partial / "README.md").write_text(card, encoding="utf-8")
    log.info("the policy is in %s", directory)
