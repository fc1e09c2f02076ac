"""Compositions to look at, each made once in a process of tests; a test that changes one takes `plain`."""

import pickle
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cache
from typing import TypeVar, cast

import hydra
import omegaconf
from hydra._internal import config_loader_impl as impl
from hydra._internal import defaults_list
from hydra._internal.config_repository import IConfigRepository
from hydra._internal.defaults_list import DefaultsList, Overrides
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf

from arpo.run.build import register_resolvers
from arpo.run.choices import CONF, choices_of

T = TypeVar("T")
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
    """Let Hydra read a file, OmegaConf parse a value, and both put the same choices together once a process."""
    omegaconf.base.parse = omegaconf._utils.parse = cache(omegaconf.base.parse)
    Plugins.instance()  # finds the kinds of sources
    source = SourcesRegistry.instance().resolve("file")
    source.load_config = remembered(
        source.load_config, lambda self, config_path: (self.path, self.provider, config_path)
    )
    ConfigStore.__deepcopy__ = lambda self, memo: self  # of the one of a process, each composition makes a copy
    remember_choices()


def remembered(function: Callable[..., T], key_of: Callable[..., Hashable]) -> Callable[..., T]:
    """Call a function once for each key of its arguments, and give out copies of what it returned."""
    results: dict[Hashable, bytes] = {}

    def of(*args: object, **options: object) -> T:
        key = key_of(*args, **options)
        if key not in results:
            results[key] = pickle.dumps(function(*args, **options))
        return cast("T", pickle.loads(results[key]))

    return of


def remember_choices() -> None:
    """Let Hydra choose files and merge them once for the same choices: values are set in the whole afterwards."""
    choose, loader = impl.create_defaults_list, impl.ConfigLoaderImpl
    chosen: dict[Hashable, DefaultsList] = {}

    def places(repo: IConfigRepository) -> Hashable:
        return tuple((source.path, source.provider) for source in repo.get_sources())

    def of(repo: IConfigRepository, config_name: str, overrides_list: list[Override], **_: bool) -> DefaultsList:
        settings = Overrides(repo, overrides_list).config_overrides
        choices = [word for word in overrides_list if not any(word is setting for setting in settings)]
        key = (places(repo), config_name, *(word.input_line for word in choices))
        if key not in chosen:  # no group of ours is left open, which Hydra allows before a sweep
            chosen[key] = choose(repo, config_name, choices, prepend_hydra=True, skip_missing=False)
        return replace(chosen[key], config_overrides=settings)

    impl.create_defaults_list = of
    # Hydra makes a map of all choices for each file, and looks into it where a choice has another in its name.
    look_up = defaults_list._create_interpolation_map
    defaults_list._create_interpolation_map = lambda choices, defaults, added: (
        look_up(choices, defaults, added) if any(each.is_interpolation() for each in defaults) else None
    )
    loader._compose_config_from_defaults_list = remembered(
        loader._compose_config_from_defaults_list, lambda self, defaults, repo: (places(repo), repr(defaults))
    )


def plain(cfg: DictConfig) -> dict:
    return OmegaConf.to_container(cfg, resolve=True)
