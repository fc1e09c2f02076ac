"""Tasks of registered environments: a task is a name and a seed."""

import os
import random
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from arpo.bounds import AtLeastOne, checked
from arpo.envs.web import pages_directory
from arpo.errors import ConfigError, first_of
from arpo.types import Task

BROWSERGYM = "browsergym/"
"""The beginning of BrowserGym's names, such as `browsergym/miniwob.click-test`."""


def gymnasium_tasks(ids: Iterable[str], seeds: Iterable[int], instruction: str = "") -> list[Task]:
    """Return one task for every registered name and seed; some environments say their goal, others need a text."""
    numbers = list(seeds)
    specs = {name: registered(name) for name in ids}
    return [_task(name, spec.name, seed, instruction) for name, spec in specs.items() for seed in numbers]


@checked
def browsergym_tasks(
    benchmark: str, seeds: Iterable[int], names: Iterable[str] | None = None, per_name: AtLeastOne | None = None
) -> list[Task]:
    """Return one task for every seed and every registered name of a benchmark of BrowserGym, or some of its names.

    With `per_name` each has as many of the seeds, drawn as `env=miniwob` draws those of a page.
    """
    numbers, known = list(seeds), {name.partition(".")[2]: name for name in registered_names(benchmark)}
    chosen = [*known] if names is None else list(names)
    if per_name is not None and per_name > len(numbers):
        raise ConfigError(f"per_name={per_name} is more than the {len(numbers)} seeds there are to draw from")
    if unknown := [name for name in chosen if name not in known]:
        raise ConfigError(
            f"BrowserGym's {benchmark} has no task {first_of(unknown)}; tasks.names=null takes all of them"
        )
    tasks = []
    for name in chosen:
        drawn = numbers if per_name is None else sorted(random.Random(f"0/{name}").sample(numbers, per_name))
        tasks += [_task(known[name], name, seed) for seed in drawn]
    return tasks


def registered(name: str) -> Any:
    """Return the specification of an environment by its name, after an import of what registers it.

    As in Gymnasium itself, `minigrid:MiniGrid-Empty-5x5-v0` imports `minigrid`; BrowserGym's are found by their names.
    """
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
    except ImportError as error:
        package = module.replace(".", "-").replace("_", "-")
        raise ConfigError(f"this needs {package}: `uv pip install {package}`, then try again ({error})") from error


def _task(name: str, domain: str, seed: int, instruction: str = "") -> Task:
    return Task(f"{name}/{seed}", instruction, domain, {"id": name, "seed": seed})
