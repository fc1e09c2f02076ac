"""How a callback finds the collector: it belongs to the data module, as rollouts are this project's data."""

import lightning as L

from arpo.errors import ConfigError
from arpo.rollout.collector import RolloutCollector


def collector_of(trainer: L.Trainer) -> RolloutCollector:
    """Give the collector of the trainer's data module.

    Raises:
        ConfigError: When the trainer runs on a data module that collects nothing, such as demonstrations.
    """
    datamodule = trainer.datamodule  # type: ignore[attr-defined]
    collector = vars(datamodule).get("collector")
    if not isinstance(collector, RolloutCollector):
        raise ConfigError(
            f"this callback needs a data module with a rollout collector, got {type(datamodule).__name__}; "
            "leave the callback out, or use datamodule=rollout"
        )
    return collector
