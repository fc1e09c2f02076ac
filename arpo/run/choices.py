"""The choices of each group: files of conf/, of studies and of a package, and lines of conf/choices.yaml."""

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
STUDIES = sorted(ROOT.glob("experiments/*/conf"))
OUTSIDE = [Path.cwd() / "conf"] if os.path.isdir("conf") and not os.path.samefile("conf", CONF) else []
"""The choices of a package of its own, where a program starts in its folder."""
SHAPES = ROOT / "arpo" / "models" / "shapes"


class FurtherSearchPath(SearchPathPlugin):
    """The end of Hydra's search path: the configurations of studies, and those of the package we start in."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the folder of each."""
        for provider, folders in (("study", STUDIES), ("package", OUTSIDE)):
            for folder in folders:
                search_path.append(provider, f"file://{folder}")


@cache
def short_choices() -> Mapping[str, Mapping[str, Any]]:
    """Return the choices that have no file of their own, by group and name; None is one that changes nothing."""
    short: Any = OmegaConf.to_container(OmegaConf.load(CONF / "choices.yaml"))
    shapes = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in SHAPES.glob("*.json")}
    return {**short, "architecture": {**shapes, **short["architecture"]}}


@cache
def register_choices() -> None:
    """Let Hydra find the choices that are no files of conf/, once a process."""
    Plugins.instance().register(FurtherSearchPath)
    store = ConfigStore.instance()
    for group, choices in short_choices().items():
        for name, node in choices.items():
            store.store(name, node or {}, group, package=None if node else "_global_", provider="conf/choices.yaml")


def choices_of(group: str) -> list[str]:
    """Return the names of a group's choices in alphabetical order; none where there is no such group."""
    files = (path.stem for place in _places(group) for path in place.glob("*.yaml"))
    return sorted({*files, *short_choices().get(group, ())})


def groups_in(folder: str) -> list[str]:
    """Return the names of the groups of choices in a folder of conf/, the top one for ""."""
    inner = {path.name for place in _places(folder) for path in place.glob("*/") if path.is_dir()}
    short = (group.rpartition("/") for group in short_choices())
    return sorted(inner | {name for above, _, name in short if above == folder})


def _places(folder: str) -> list[Path]:
    """Return the places of a folder: in conf/, beside studies, and in a package of its own."""
    above = (CONF, *STUDIES, *OUTSIDE)
    return [each / folder for each in above if os.path.isdir(each / folder)]  # its name may be too long
