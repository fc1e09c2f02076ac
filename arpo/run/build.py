"""From the configuration to objects, and what the configuration itself says."""

import json
import logging
import warnings
from typing import Any

import transformers
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from arpo.errors import ArpoError, ConfigError
from arpo.run.start import run_name


def register_resolvers() -> None:
    """Teach OmegaConf what our YAML uses; idempotent."""
    OmegaConf.register_new_resolver("run_name", lambda overrides: run_name(list(overrides)), replace=True)


def quiet() -> None:
    """Silence what libraries say about themselves, so that what a run says can be read."""
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch.trainer.connectors.checkpoint_connector").setLevel(logging.WARNING)
    logging.getLogger("vllm").setLevel(logging.ERROR)
    for message in (
        ".*sync_dist=True.*",  # vLLM initialises torch.distributed with one process; there is nothing to sync
        ".*isinstance\\(treespec, LeafSpec\\).*",
        ".*torch.distributed.reduce_op.*",
        ".*IterableDataset. has .__len__. defined.*",
        ".*does not have many workers.*",
        ".*You have overridden `transfer_batch_to_device`.*",
    ):
        warnings.filterwarnings("ignore", message=message)


def build(node: Any, **kwargs: Any) -> Any:
    """Build the object of a configuration node.

    Raises:
        ConfigError: When a constructor refuses its arguments, with its own words and the node's place.
    """
    try:
        return instantiate(node, **kwargs)
    except InstantiationException as error:
        if isinstance(error.__cause__, ArpoError | ValueError):
            place = str(error).rpartition("full_key: ")[2]
            raise ConfigError(f"{error.__cause__} (configuration key: {place})") from error
        raise


def required_model(cfg: DictConfig) -> str | None:
    """Give the checkpoint directory that must exist already: empty where nobody said, None where the run makes it."""
    if "make_model" in cfg.datamodule or cfg.warmstart is not None:
        return None
    return "" if OmegaConf.is_missing(cfg.model, "path") else str(cfg.model.path)


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Give a nested configuration as one level of dotted names, for loggers that show a table."""
    if not isinstance(tree, dict):
        return {prefix: tree if isinstance(tree, int | float | str | bool) else json.dumps(tree)}
    parts = (flatten(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in tree.items())
    return {name: value for part in parts for name, value in part.items()}
