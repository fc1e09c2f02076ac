"""The check of what a run asks of its model and optimizer."""

import torch
from omegaconf import DictConfig, OmegaConf

from arpo.errors import ConfigError
from arpo.inference.checkpoint import context_of
from arpo.models.tiny import CONTEXT
from arpo.run.build import build, imitates


def check_context(cfg: DictConfig) -> None:
    """Check that conversations fit the model.

    Raises:
        ConfigError: When they may become longer than what the model was made for.
    """
    wanted = cfg.rollout.settings.max_context
    limit = context_of(cfg.model.path) or (cfg.model.make.get("context", CONTEXT) if "make" in cfg.model else None)
    if limit is not None and wanted > limit and not imitates(cfg):
        raise ConfigError(
            f"max_context={wanted} is above the {limit} tokens that the model was made for: lower "
            "rollout.settings.max_context"
        )


def check_optimizer(cfg: DictConfig) -> None:
    """Try the optimizer on one parameter: the configuration leaves its parameters out until there is a policy.

    Raises:
        ConfigError: When it refuses its numbers.
    """
    node = OmegaConf.select(cfg, "module.optimizer")
    try:
        build(node)([("weight", torch.nn.Parameter(torch.zeros(1, 1)))])
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{error} (configuration key: module.optimizer)") from error
