"""Tasks of registered environments: a task is a name and a seed."""

import os
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from arpo.envs.web import pages_directory
from arpo.errors import ConfigError, first_of
from arpo.types import Task

BROWSERGYM = "browsergym/"
"""The beginning of BrowserGym's names, such as `browsergym/miniwob.click-test`."""


def gymnasium_tasks(ids: Iterable[str], seeds: Iterable[int], instruction: str = "") -> list[Task]:
    """Return one task for every registered name and seed; some environments say their goal, others need a text."""
    numbers = list(seeds)
    named = {name: registered(name).name for name in ids}
    return [_task(name, domain, seed, instruction) for name, domain in named.items() for seed in numbers]


def browsergym_tasks(benchmark: str, seeds: Iterable[int], names: Iterable[str] | None = None) -> list[Task]:
    """Return one task for every seed and every registered name of a benchmark of BrowserGym, or some of its names."""
    numbers, known = list(seeds), {name.partition(".")[2]: name for name in registered_names(benchmark)}
    chosen = [*known] if names is None else list(names)
    if unknown := [name for name in chosen if name not in known]:
        raise ConfigError(
            f"BrowserGym's {benchmark} has no {first_of(unknown)}; tasks.names=null takes all that it has"
        )
    return [_task(known[name], name, seed) for name in chosen for seed in numbers]


def registered(name: str | None) -> Any:
    """Return the specification of an environment by its name, after an import of what registers it.

    As in Gymnasium itself, `minigrid:MiniGrid-Empty-5x5-v0` imports `minigrid`; BrowserGym's are found by their names.
    """
    if name is None:
        raise ConfigError("which one? name what is registered: env.make_env.id=minigrid:MiniGrid-Empty-5x5-v0")
    module, _, own = name.rpartition(":")
    if module:
        imported(module)
    elif name.startswith(BROWSERGYM):
        registered_names(name.removeprefix(BROWSERGYM).partition(".")[0])
    gymnasium = imported("gymnasium")
    try:
        return gymnasium.spec(own)
    except gymnasium.error.Error as error:
        example = "what a package registers is named as in minigrid:MiniGrid-Empty-5x5-v0"
        raise ConfigError(f"{name!r} is not registered with Gymnasium ({error}); {example}") from error


def registered_names(benchmark: str) -> list[str]:
    """Return the names of a benchmark of BrowserGym, sorted, after an import of its package."""
    if benchmark == "miniwob":  # the pages of ours, unless the user serves others
        os.environ.setdefault("MINIWOB_URL", f"{pages_directory().as_uri()}/")
    imported("browsergym.core" if benchmark == "openended" else f"browsergym.{benchmark}")
    return sorted(name for name in imported("gymnasium").registry if name.startswith(f"{BROWSERGYM}{benchmark}."))


def imported(module: str) -> Any:
    """Import an optional package."""
    try:
        return import_module(module)
    except (ImportError, TypeError) as error:  # the latter where it begins with a dot
        package = module.replace(".", "-").replace("_", "-")
        raise ConfigError(f"this needs {package}: `uv pip install {package}`, then try again ({error})") from error


def _task(name: str, domain: str, seed: int, instruction: str = "") -> Task:
    return Task(f"{name}/{seed}", instruction, domain, {"id": name, "seed": seed})
