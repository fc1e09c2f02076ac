"""The check that the files which OSWorld's tasks download are there, or can be fetched when a task needs them."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from arpo.envs.osworld.files import FileCache
from arpo.errors import ConfigError, first_of
from arpo.host.environment import cluster_address
from arpo.types import Task

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0


def check_downloads(cfg: DictConfig, tasks: Sequence[Task]) -> None:
    """Check that no task of a run waits for a file that cannot be had.

    A file that is not there is fetched when a task first needs it, so a run with a network starts. The folder that
    counts is that of the process that has the environments; in a Ray cluster each node has its own.

    Args:
        cfg: The configuration, with `env=osworld`.
        tasks: Those that are run.
    """
    if cluster_address():
        return
    cache = FileCache(cfg.env.make_env.cache)
    lacking = {task.id: files for task in tasks if (files := cache.lacking(task))}
    if not lacking:
        return
    urls = [url for files in lacking.values() for url, _ in files]
    said = f"{len(lacking)} of {len(tasks)} tasks lack files in {cfg.env.make_env.cache}"
    chosen = f" tasks={HydraConfig.get().runtime.choices['tasks']}" if HydraConfig.initialized() else ""
    command = f"`python -m arpo tasks fetch{chosen}`"
    if _any_answers(urls):
        log.info("%s, and fetch them when they first need them; %s does it beforehand", said, command)
        return
    raise ConfigError(
        f"{said} ({first_of(sorted(lacking))}), and there is no network to fetch them by: run {command} where there "
        "is one, and copy the folder here (ARPO_OSWORLD_CACHE), or leave these tasks out"
    )


def _any_answers(urls: Sequence[str]) -> bool:
    """Return whether any of the servers of some addresses answers, whatever it says."""
    one_each = {urlsplit(url).netloc: url for url in urls}
    with ThreadPoolExecutor() as threads:
        return any(threads.map(_answers, one_each.values()))


def _answers(url: str) -> bool:
    try:
        httpx.head(url, timeout=TIMEOUT_S)
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError, httpx.UnsupportedProtocol, httpx.InvalidURL):
        return False
    except httpx.HTTPError as error:
        log.debug("%s: %s", url, error)  # somebody was there
    return True
