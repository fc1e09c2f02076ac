"""Direct preference optimisation on pairs of a success and a failure (DPO, arXiv 2305.18290)."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from arpo.algorithms.preferences import dpo_losses
from arpo.errors import ConfigError
from arpo.modules.offline.preference import PreferenceModule
from arpo.types import Trajectory


class DPOModule(PreferenceModule):
    """A policy that learns to prefer one trajectory of a task to another: the mean of `dpo_losses` over pairs.

    A batch is made of pairs, the better trajectory first: the data module's `examples` must be `pairs`.
    """

    @override
    def judge(self, log_ratios: Tensor, batch: Sequence[Trajectory]) -> tuple[Tensor, Mapping[str, float]]:
        tasks = [trajectory.task_id for trajectory in batch]
        if tasks[0::2] != tasks[1::2]:
            raise ConfigError(
                "module=dpo learns from pairs of trajectories of one task, and the batch is not made of pairs: set "
                "datamodule.examples._target_ to arpo.datamodules.examples.pairs"
            )
        chosen, rejected = log_ratios[0::2], log_ratios[1::2]
        good = torch.arange(len(batch), device=log_ratios.device) % 2 == 0
        metrics = self.rewards(log_ratios, good) | {"train/accuracy": (chosen > rejected).float().mean().item()}
        return dpo_losses(chosen, rejected, beta=self.beta).mean(), metrics
