"""The check of a run against the memory of the GPUs that are here, by the figures of its plan."""

import os

from omegaconf import DictConfig

from arpo.errors import ConfigError
from arpo.run.build import rolls_out
from arpo.run.preflight import smallest_gpu_gib


def check_memory(cfg: DictConfig) -> None:
    """Check that a run made for GPUs fits those that are here; of several processes on a node, the first one checks.

    A run that learns from stored data has no plan.
    """
    if os.environ.get("LOCAL_RANK", "0") != "0" or not rolls_out(cfg) or not cfg.requires.get("gpus"):
        return
    memory_gib = smallest_gpu_gib()
    if memory_gib is None:
        return
    from arpo.apps.plan.command import plan_for  # imports torch

    plan = plan_for(cfg, memory_gib)
    if plan.troubles():
        lines = "\n".join(f"  - {line}" for line in plan.troubles())
        raise ConfigError(
            f"this run does not fit the GPUs here:\n{lines}\n`python -m arpo plan` with the same words and "
            f"gpu.memory_gib={memory_gib:.1f} says what helps"
        )
