"""Compositions to look at, each made once in a process of tests; a test that changes one takes `plain`."""

from functools import cache

import hydra
from omegaconf import DictConfig, OmegaConf

from arpo.run.build import register_resolvers
from arpo.run.choices import CONF, choices_of

EXPERIMENTS = choices_of("experiment")


@cache
def composed(
    *overrides: str, config: str = "train", run_dir: str = "run", model: str | None = "somewhere"
) -> DictConfig:
    """A file of conf/ with some words; without `model`, a model is where the configuration has it."""
    register_resolvers()
    where = [f"paths.run_dir={run_dir}", *([f"model.path={model}"] if model else [])]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose(config, [*where, *overrides])


def plain(cfg: DictConfig) -> dict:
    return OmegaConf.to_container(cfg, resolve=True)
