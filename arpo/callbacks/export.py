"""The policy as a directory that other programs load."""

import logging
from pathlib import Path

import lightning as L
from typing_extensions import override

from arpo.host.files import atomically
from arpo.models.policy import Policy
from arpo.modules.base import PolicyModule

log = logging.getLogger(__name__)


class ExportPolicy(L.Callback):
    """A callback that writes the trained policy after the last iteration, whole or not at all, for engines.

    It does so before the last checkpoint: a run that has that one has its policy too; one that was stopped has none.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch + 1 == trainer.max_epochs:
            export_policy(PolicyModule.of(pl_module).policy, self.directory, writes=trainer.is_global_zero)


def export_policy(policy: Policy, directory: Path, *, card: str = "", writes: bool = True) -> None:
    """Write `policy` to `directory` through a folder beside it, so that nobody ever sees half of it.

    Every rank calls it; one writes, and the others help to gather the weights, one tensor at a time.

    Args:
        policy: What is written.
        directory: Where; what was there before is replaced.
        card: Its `README.md`; none where it is empty.
        writes: Whether this rank writes.
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
