"""A look at OSWorld's tasks: what they need and what is here; their files, fetched beforehand; their certificates.

    python -m arpo tasks osworld --each        # a line for each task
    python -m arpo tasks fetch tasks=osworld_128
    python -m arpo tasks certify 030eeff7-b492-4218-b312-701ec99ee0cc
    python -m arpo tasks certify files calc/sort-by-name env=desktop_full --repeats 2      # templates

Overrides of a run choose the tasks, and the places of task files and downloads.
"""

import argparse
import logging
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from arpo.apps.certify import ROOT, certify_each, certify_templates, is_certified
from arpo.envs.osworld.files import FileCache, files_of
from arpo.envs.osworld.needs import IN_A_CONTAINER, Need, need_of, packages_of, read_needs
from arpo.envs.osworld.tasks import obstacles, read_tasks
from arpo.errors import ConfigError, EnvError
from arpo.host.session import Session
from arpo.host.terminal import Line, print_table, showing
from arpo.run.build import build, compose
from arpo.run.entry import quiet
from arpo.run.osworld import CONTAINER, IMAGE, has_vs_code
from arpo.types import Task

log = logging.getLogger(__name__)

AT_ONCE = 8
"""Downloads that go on at the same time."""
_ALL = {"env": "osworld", "tasks": "osworld_369"}
DEFAULTS = {"osworld": _ALL, "fetch": _ALL, "certify": {**_ALL, "env": "osworld_container"}}
"""The choices of each subcommand where neither an experiment nor another choice is named."""
DESKTOP = "arpo.envs.desktop.env.DockerDesktop"
"""The desktops of templates."""
LOADERS = ("arpo.envs.osworld.tasks.osworld_tasks", "arpo.envs.osworld.needs.tasks_by_need")
STOPPED = 130
"""The exit status after Ctrl-C."""


def main(arguments: Sequence[str]) -> int:
    """Show the tasks, fetch their files, or certify them, and return the exit status."""
    quiet()
    asked = parser().parse_intermixed_args(arguments)
    ids = [each for each in asked.overrides if "=" not in each] if asked.what == "certify" else []
    overrides = [each for each in asked.overrides if each not in ids]
    given = {each.partition("=")[0] for each in overrides}
    defaults = {} if "experiment" in given else DEFAULTS[asked.what]
    try:
        cfg = compose(
            "train", [*(f"{key}={value}" for key, value in defaults.items() if key not in given), *overrides]
        )
        if asked.what == "certify" and OmegaConf.select(cfg, "env.make_env._target_") == DESKTOP:
            with Session.start():
                return certify_templates(ids or ["all"], build(cfg.env.make_env), instances=asked.repeats)
        tasks, cache = tasks_of(cfg), OmegaConf.select(cfg, "env.make_env.cache")
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(str(error)) from error
    if not tasks or cache is None:
        raise ConfigError(
            "there are no tasks of OSWorld here: name a list such as tasks=osworld_128, with env=osworld"
        )
    if asked.what == "certify":
        with Session.start():
            return certify_each(named(tasks, ids), build(cfg.env.make_env), repeats=asked.repeats, root=asked.scripts)
    if asked.what == "fetch":
        return fetch([task for task in tasks if not obstacles(task.config)], Path(cache))
    print_table(
        task_table(tasks, FileCache(cache)) if asked.each else domain_table(tasks, FileCache(cache), met_by(cfg)),
        title="OSWorld's tasks, each by what it needs that is hardest to come by",
        caption=f"ready: a container of the image can set it up without a network, with the files in {cache}",
    )
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    line = argparse.ArgumentParser(prog="python -m arpo tasks", description="Look at OSWorld's tasks.")
    line.add_argument("what", choices=[*DEFAULTS], help="show what tasks need, download their files, or certify them")
    chosen = "overrides of a run, such as tasks=osworld_128; for certify, ids of tasks too"
    line.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=chosen)
    line.add_argument("--each", action="store_true", help="show a line for each task")
    line.add_argument("--repeats", type=int, default=10, help="plays of a solution; of a template, instances")
    line.add_argument("--scripts", type=Path, default=ROOT, metavar="FOLDER", help="of scripts and certificates")
    return line


def tasks_of(cfg: DictConfig) -> list[Task]:
    """Return the tasks of OSWorld that a configuration names, each once, also those that cannot run here."""
    found: dict[str, Task] = {}
    nodes = list(cfg.tasks.values())
    for node in nodes:
        if isinstance(node, DictConfig) and node.get("_target_") in LOADERS:
            wanted = read_needs(node.needs) if "needs" in node else list(Need)
            found |= {task.id: task for task in read_tasks(node.root, node.ids) if need_of(task) in wanted}
        elif isinstance(node, DictConfig) and "tasks" in node:  # a loader that chooses among those of another one
            nodes.append(node.tasks)
    return list(found.values())


def named(tasks: Sequence[Task], ids: Sequence[str]) -> list[Task]:
    """Return the tasks whose ids begin so, or all where none is named."""
    for start in ids:
        if not any(task.id.startswith(start) for task in tasks):
            raise ConfigError(f"there is no task {start!r} among the {len(tasks)} of tasks=…")
    return [task for task in tasks if not ids or task.id.startswith(tuple(ids))]


def met_by(cfg: DictConfig) -> tuple[Need, ...]:
    """Return the needs that a container of a run meets, or one of the full image where the run has another machine."""
    is_container = OmegaConf.select(cfg, "env.make_env.machine._target_") == CONTAINER
    with_vs_code = is_container and has_vs_code(str(OmegaConf.select(cfg, IMAGE)))
    return (*IN_A_CONTAINER, Need.VS_CODE) if with_vs_code else IN_A_CONTAINER


def task_table(tasks: Sequence[Task], cache: FileCache) -> list[list[str]]:
    """Return a row for each task: its need, the details of it, and the files that are not in the cache."""
    rows = [["application", "task", "needs", "which", "files to fetch", "certified"]]
    for task in tasks:
        details = [*map(str, obstacles(task.config)), *packages_of(task.config)]
        certified = "yes" if is_certified(task) else ""
        lacking = str(len(cache.lacking(task)) or "")
        rows.append([task.domain, task.id, need_of(task), "; ".join(details), lacking, certified])
    return rows


def domain_table(tasks: Sequence[Task], cache: FileCache, met: Sequence[Need]) -> list[list[str]]:
    """Return a row for each application, and one for all: how many tasks have each need and are ready."""
    domains = {name: [task for task in tasks if task.domain == name] for name in sorted({t.domain for t in tasks})}
    rows = [["application", "tasks", *Need, "files here", "ready", "certified"]]
    for name, group in {**domains, "all": tasks}.items():
        needs = Counter(map(need_of, group))
        lacking = [len(cache.lacking(task)) for task in group]
        files = sum(len(files_of(task)) for task in group)
        ready = sum(need_of(task) in met and not count for task, count in zip(group, lacking, strict=True))
        counts = [str(needs[need] or "") for need in Need]
        here = f"{files - sum(lacking)} of {files}"
        rows.append([name, str(len(group)), *counts, here, str(ready), str(sum(map(is_certified, group)) or "")])
    return rows


class Downloads:
    """The files and bytes that have come so far."""

    def __init__(self, files: int) -> None:
        self.files = files
        self.done = 0
        """Files that have come, or cannot."""
        self.stopped = False
        self._bytes = 0
        """Of two threads that count at once, one may be lost."""

    def add(self, size: int) -> None:
        """Count bytes; after Ctrl-C, end the download, which leaves what has come."""
        if self.stopped:
            raise KeyboardInterrupt
        self._bytes += size

    def line(self) -> Line:
        """Return the progress of this moment."""
        parts = [f"{self.done} of {self.files} files", f"{self._bytes / 2**20:.1f} MiB"]
        return Line(parts, self.done / max(1, self.files))


def fetch(tasks: Sequence[Task], root: Path) -> int:
    """Download the files of tasks that are not here yet; return 1 where one is missing, 130 after Ctrl-C, else 0."""
    wanted = [(task, *file) for task in tasks for file in FileCache(root).lacking(task)]
    failed: dict[int, EnvError] = {}
    progress = Downloads(len(wanted))
    cache = FileCache(root, progress.add)
    try:
        with showing(progress.line), ThreadPoolExecutor(AT_ONCE) as threads:
            tries = (threads.submit(cache.fetch, url, task.id, name) for task, url, name in wanted)
            futures = {future: index for index, future in enumerate(tries)}
            try:
                for future in as_completed(futures):
                    progress.done += 1
                    try:
                        future.result()
                    except EnvError as error:
                        failed[futures[future]] = error
            except BaseException:
                progress.stopped = True
                threads.shutdown(wait=False, cancel_futures=True)
                raise
    except KeyboardInterrupt:
        log.warning("stopped by Ctrl-C; the same command goes on from here")
        return STOPPED
    for index, reason in sorted(failed.items()):
        task, url, name = wanted[index]
        place = cache.place(url, task.id, name)
        log.error("task %s (%s): %s; %s may be put by hand at %s", task.id, task.domain, reason, name, place)
    total = sum(len(files_of(task)) for task in tasks)
    log.info("%d of %d files are in %s", total - len(failed), total, root)
    if failed:
        incomplete = len({wanted[index][0].id for index in failed})
        log.error("%d of %d tasks cannot be set up or graded without the others", incomplete, len(tasks))
    return 1 if failed else 0
