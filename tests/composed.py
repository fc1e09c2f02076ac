"""Compositions to look at, each made once in a process of tests; a test that changes one takes `plain`."""

import pickle
from functools import cache
from typing import cast

import hydra
import omegaconf
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
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


def remember_parts() -> None:
    """Let Hydra read a file, and OmegaConf parse a value, once a process: most are in the next composition too."""
    omegaconf.base.parse = omegaconf._utils.parse = cache(omegaconf.base.parse)
    Plugins.instance()  # finds the kinds of sources
    source = SourcesRegistry.instance().resolve("file")
    load_config = source.load_config
    results: dict[tuple[str, str, str], bytes] = {}

    def of(self: ConfigSource, config_path: str) -> ConfigResult:
        key = (self.path, self.provider, config_path)
        if key not in results:
            results[key] = pickle.dumps(load_config(self, config_path))
        return cast("ConfigResult", pickle.loads(results[key]))

    source.load_config = of


def plain(cfg: DictConfig) -> dict:
    return OmegaConf.to_container(cfg, resolve=True)
