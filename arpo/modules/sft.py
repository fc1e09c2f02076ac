"""Imitation: the warm start before reinforcement learning, and rejection sampling on successes."""

from collections.abc import Sequence

from typing_extensions import override

from arpo.modules.offline.base import OfflineModule, Sequences
from arpo.types import Trajectory


class SFTModule(OfflineModule):
    """A policy that learns to imitate: it minimises -log π of responses that it is shown, averaged over all tokens."""

    learns_from = "successes"

    @override
    def training_step(self, batch: Sequence[Trajectory], batch_idx: int) -> None:
        data = Sequences.of(batch, self.policy.chat)
        total = sum(int(tokens.action_mask.sum()) for tokens in data.tokenized)
        loss = self.descend(data, lambda output, _: -output.logprobs.sum() / total)  # 0 on padding
        self.finish({"train/loss": loss}, len(batch))
