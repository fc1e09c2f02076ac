"""From the configuration to objects, and what the configuration itself says."""

from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from arpo.errors import ArpoError, ConfigError
from arpo.run.folder import run_name
from arpo.run.warmstart import policy_of


def register_resolvers() -> None:
    """Teach OmegaConf the functions that our YAML calls; idempotent."""
    OmegaConf.register_new_resolver("run_name", lambda overrides: run_name(list(overrides)), replace=True)
    OmegaConf.register_new_resolver("policy_of", policy_of, replace=True)


REFUSALS = (ArpoError, ValueError)
"""What a constructor raises that refuses its arguments."""


def build(node: Any, place: str = "", refusals: tuple[type[Exception], ...] = REFUSALS, **kwargs: Any) -> Any:
    """Build the object of a configuration node.

    Args:
        node: The node.
        place: Its key, where the node itself does not know it.
        refusals: Errors by which a constructor refuses its arguments; any other one is a bug, and passes.
        kwargs: Further arguments of the constructor.

    Raises:
        ConfigError: When a constructor refuses its arguments, with its own words and the key of the node.
    """
    try:
        return instantiate(node, _convert_="object", **kwargs)  # nobody behind here sees a DictConfig
    except InstantiationException as error:
        cause = error.__cause__
        # Whatever Lightning raises, a TypeError among it, is about its arguments.
        refused = isinstance(cause, refusals) or "call to target 'lightning." in str(error)
        if refused or "Error locating target" in str(error):
            _, _, inner = str(error).partition("full_key: ")
            key = ".".join(part for part in (place, inner) if part)
            raise ConfigError(f"{cause} (configuration key: {key})") from error
        raise


def imitates(cfg: DictConfig) -> bool:
    """Return whether a run learns from demonstrations: it makes its model, and asks no engine anything."""
    return "make_model" in cfg.datamodule


def required_model(cfg: DictConfig) -> str | None:
    """Return the checkpoint directory that must exist: empty where nobody said, None where the run makes it."""
    if imitates(cfg) or cfg.warmstart is not None:
        return None
    return "" if OmegaConf.is_missing(cfg.model, "path") else str(cfg.model.path)
