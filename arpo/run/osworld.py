"""The rule that OSWorld's tasks can be set up by the machines of a run, and have their files or can fetch them."""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
from hydra.core.hydra_config import HydraConfig

from arpo.envs.osworld.files import FileCache
from arpo.envs.osworld.needs import IN_A_CONTAINER, Need, need_of
from arpo.errors import EnvError, first_of
from arpo.host.containers import ask_engine
from arpo.host.environment import cluster_address
from arpo.run.build import build
from arpo.run.folder import rank
from arpo.run.preflight import ENGINE_TIMEOUT_S
from arpo.run.rules import FlatConfig
from arpo.types import Task

log = logging.getLogger(__name__)

ENVIRONMENT = "arpo.envs.osworld.env.OSWorldEnv"
CONTAINER = "arpo.envs.osworld.machine.container"
IMAGE = "env.make_env.machine.image"
LABEL = "arpo.vscode"
"""Of an image that has VS Code."""
TIMEOUT_S = 10.0
"""For a server that has files of tasks."""


def osworld_tasks_can_be_set_up(chosen: FlatConfig) -> Iterator[str]:
    """Check that machines have what the tasks need, and no task waits for a file; a cluster's are on other nodes."""
    if chosen["env.make_env._target_"] != ENVIRONMENT or rank() != 0:
        return
    lists = chosen["lists"] if "lists" in chosen else list(chosen.cfg.tasks)
    # Read once: each reading logs the tasks that it leaves out.
    tasks = list({task.id: task for name in lists for task in build(chosen.cfg.tasks[name]) or ()}.values())
    if chosen["env.make_env.machine._target_"] == CONTAINER:
        yield from _unmet_needs(tasks, str(chosen[IMAGE]))
    if not cluster_address():
        yield from _lacking_files(tasks, chosen["env.make_env.cache"])


def _unmet_needs(tasks: Sequence[Task], image: str) -> Iterator[str]:
    """Yield a sentence if containers of an image cannot set up all tasks: none has the web, and few have VS Code."""
    needs = {task.id: need_of(task) for task in tasks}
    if not set(needs.values()) - set(IN_A_CONTAINER):
        return
    with_vs_code = bool(cluster_address()) or has_vs_code(image)
    unmet = [need for need in Need if need not in IN_A_CONTAINER and not (with_vs_code and need is Need.VS_CODE)]
    unready = {need: sorted(name for name, found in needs.items() if found is need) for need in unmet}
    if any(unready.values()):
        listed = "; ".join(f"{need} ({first_of(names)})" for need, names in unready.items() if names)
        other = f"tasks=osworld_128_{'vscode' if with_vs_code else 'containers'}"
        yield (
            f"{sum(map(len, unready.values()))} of {len(tasks)} tasks need what containers of {image} do not have: "
            f"{listed}. Take a list without them, such as {other}, or OSWorld's own machine, env=osworld, or for VS "
            "Code an image that has it (docs/osworld.md). A task file of your own that needs less may say "
            f'"needs": "{Need.FILES}"'
        )


def has_vs_code(image: str) -> bool:
    """Return whether the Docker engine has an image with VS Code; where no engine answers, the log says that."""
    try:
        return LABEL in (ask_engine(image, ENGINE_TIMEOUT_S).labels or {})
    except EnvError as error:
        log.warning("it is not known whether %s has VS Code: %s", image, error)
        return False


def _lacking_files(tasks: Sequence[Task], folder: str) -> Iterator[str]:
    """Yield a sentence if files of tasks are missing and there is no network; with one, a task fetches its own."""
    cache = FileCache(folder)
    lacking = {task.id: files for task in tasks if (files := cache.lacking(task))}
    if not lacking:
        return
    urls = [url for files in lacking.values() for url, _ in files]
    problem = f"{len(lacking)} of {len(tasks)} tasks lack files in {folder}"
    chosen = f" tasks={HydraConfig.get().runtime.choices['tasks']}" if HydraConfig.initialized() else ""
    command = f"`python -m arpo tasks fetch{chosen}`"
    with ThreadPoolExecutor() as threads:
        one_each = {urlsplit(url).netloc: url for url in urls}
        has_network = any(threads.map(_answers, one_each.values()))
    if has_network:
        log.info("%s, and fetch them when they first need them; %s does it beforehand", problem, command)
        return
    yield (
        f"{problem} ({first_of(sorted(lacking))}), and there is no network to fetch them by: run {command} where "
        "there is one, and copy the folder here (ARPO_OSWORLD_CACHE), or leave these tasks out"
    )


def _answers(url: str) -> bool:
    """Return whether a server answers, with whatever status."""
    try:
        httpx.head(url, timeout=TIMEOUT_S)
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError, httpx.UnsupportedProtocol, httpx.InvalidURL):
        return False
    except httpx.HTTPError as error:
        log.debug("%s: %s", url, error)
    return True
