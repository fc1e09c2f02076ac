"""Direct preference optimisation on pairs of a success and a failure (DPO, arXiv 2305.18290)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from typing_extensions import override

from arpo.algorithms.rewards import trajectory_reward
from arpo.bounds import checked
from arpo.errors import ConfigError
from arpo.methods.preference import Preference
from arpo.types import Trajectory


@checked
@dataclass(frozen=True, kw_only=True)
class DPO(Preference):
    """To prefer one trajectory of a task to another: the mean of -log σ(β (r_w - r_l)) over pairs (equation 7).

    A batch is made of pairs, the better trajectory first: the data module's `examples` must be `pairs`.
    """

    @override
    def loss(
        self, log_ratios: Tensor, batch: Sequence[Trajectory], extra: Tensor | None = None
    ) -> tuple[Tensor, Mapping[str, float]]:
        rewards = [trajectory_reward(trajectory, format_weight=1.0) for trajectory in batch]
        better = (one > other for one, other in zip(rewards[0::2], rewards[1::2], strict=False))
        of_one_task = (one.task_id == other.task_id for one, other in zip(batch[0::2], batch[1::2], strict=False))
        if len(batch) % 2 or not all(better) or not all(of_one_task):
            raise ConfigError(
                "module=dpo learns from pairs of trajectories of one task, and the batch is not made of pairs: set "
                "datamodule.examples._target_ to arpo.datamodules.examples.pairs"
            )
        chosen, rejected = log_ratios[0::2], log_ratios[1::2]
        good = torch.arange(len(batch), device=log_ratios.device) % 2 == 0
        metrics = self.rewards(log_ratios, good) | {"train/accuracy": (chosen > rejected).float().mean().item()}
        return -logsigmoid(self.beta * (chosen - rejected)).mean(), metrics
