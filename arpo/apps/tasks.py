"""A look at OSWorld's tasks: what they need and what is here; their files, fetched beforehand; their certificates.

    python -m arpo tasks osworld --each        # a line for each task
    python -m arpo tasks fetch tasks=osworld_128
    python -m arpo tasks certify 030eeff7-b492-4218-b312-701ec99ee0cc
    python -m arpo tasks certify files calc/sort-by-name env=desktop_full --repeats 2      # templates

Further words are those of a run: they say which tasks, and where task files and downloads are.
"""

import argparse
import logging
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from arpo.apps.certify import ROOT, certify_each, is_certified
from arpo.apps.templates import certify_templates
from arpo.display.live import showing
from arpo.display.progress_line import Line
from arpo.display.tables import print_table
from arpo.envs.osworld.files import FileCache, files_of
from arpo.envs.osworld.needs import IN_A_CONTAINER, Need, need_of, packages_of, read_needs
from arpo.envs.osworld.tasks import obstacles, read_tasks
from arpo.errors import ConfigError, EnvError
from arpo.host.session import Session
from arpo.run.before.needs import CONTAINER, has_vs_code, image_of
from arpo.run.build import build, compose
from arpo.run.entry import quiet
from arpo.types import Task

log = logging.getLogger(__name__)

AT_ONCE = 8
_ALL = {"env": "osworld", "tasks": "osworld_369"}
DEFAULTS = {"osworld": _ALL, "fetch": _ALL, "certify": {**_ALL, "env": "osworld_container"}}
"""What is looked at where nobody names an experiment or a choice."""
Wanted = tuple[Task, str, str]
"""A task, an address and a name."""
DESKTOP = "arpo.envs.desktop.env.DockerDesktop"
"""The desktops of templates."""
LOADERS = ("arpo.envs.osworld.tasks.osworld_tasks", "arpo.envs.osworld.needs.tasks_by_need")
STOPPED = 130
"""The exit status after Ctrl-C."""


def main(words: Sequence[str]) -> int:
    """Show the tasks, or fetch their files, and return the exit status: 1 where a file is still missing."""
    quiet()
    asked = parser().parse_intermixed_args(words)
    ids = [word for word in asked.words if "=" not in word] if asked.what == "certify" else []
    words = [word for word in asked.words if word not in ids]
    given = {word.partition("=")[0] for word in words}
    defaults = {} if "experiment" in given else DEFAULTS[asked.what]
    try:
        cfg = compose("train", [*(f"{key}={value}" for key, value in defaults.items() if key not in given), *words])
        if asked.what == "certify" and cfg.env.make_env.get("_target_") == DESKTOP:
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
    files, met = FileCache(Path(cache)), met_by(cfg)
    show([readiness(task, files, met) for task in tasks], cache, each=asked.each)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return what reads the words of the command."""
    made = argparse.ArgumentParser(prog="python -m arpo tasks", description="Look at OSWorld's tasks.")
    made.add_argument("what", choices=[*DEFAULTS], help="show what tasks need, download their files, or certify them")
    made.add_argument(
        "words",
        nargs="*",
        metavar="KEY=VALUE",
        help="words of a run, such as tasks=osworld_128; for certify, ids of tasks too",
    )
    made.add_argument("--each", action="store_true", help="show a line for each task")
    made.add_argument(
        "--repeats",
        type=int,
        default=10,
        help="how often a solution is played for a certificate; of a template, how many instances",
    )
    made.add_argument(
        "--scripts", type=Path, default=ROOT, metavar="FOLDER", help="where the scripts and the certificates are"
    )
    return made


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
    """Return what a container of a run meets, or one of the full image where the run has another machine."""
    is_container = OmegaConf.select(cfg, "env.make_env.machine._target_") == CONTAINER
    with_vs_code = is_container and has_vs_code(image_of(cfg))
    return (*IN_A_CONTAINER, Need.VS_CODE) if with_vs_code else IN_A_CONTAINER


@dataclass(frozen=True, slots=True)
class Readiness:
    """One task, and whether what it needs is here."""

    task: Task
    need: Need
    files: int
    lacking: int
    """Files that are not in the cache."""
    ready: bool
    """Whether a container, which has no network, can set it up now."""

    def row(self) -> list[str]:
        """Return the line of the task."""
        details = [*map(str, obstacles(self.task.config)), *packages_of(self.task.config)]
        certified = "yes" if is_certified(self.task) else ""
        return [self.task.domain, self.task.id, self.need, "; ".join(details), str(self.lacking or ""), certified]


def readiness(task: Task, cache: FileCache, met: Sequence[Need]) -> Readiness:
    """Return what a task needs, and whether that is met and its files are in the cache."""
    need, lacking = need_of(task), len(cache.lacking(task))
    return Readiness(task, need, len(files_of(task)), lacking, need in met and not lacking)


def show(found: Sequence[Readiness], cache: str, *, each: bool = False) -> None:
    """Print what tasks need and what is in the cache, by application, or task by task."""
    if each:
        header, rows = (
            ["application", "task", "needs", "which", "files to fetch", "certified"],
            [one.row() for one in found],
        )
    else:
        domains = sorted({one.task.domain for one in found})
        rows = [_row(domain, [one for one in found if one.task.domain == domain]) for domain in domains]
        header, rows = ["application", "tasks", *Need, "files here", "ready", "certified"], [*rows, _row("all", found)]
    print_table(
        [header, *rows],
        title="OSWorld's tasks, each by what it needs that is hardest to come by",
        caption=f"ready: a container of the image can set it up without a network, with the files in {cache}",
    )


def _row(name: str, found: Sequence[Readiness]) -> list[str]:
    needs = Counter(one.need for one in found)
    files = sum(one.files for one in found)
    here = files - sum(one.lacking for one in found)
    ready = sum(one.ready for one in found)
    certified = sum(is_certified(one.task) for one in found)
    counts = [str(needs[need] or "") for need in Need]
    return [name, str(len(found)), *counts, f"{here} of {files}", str(ready), str(certified or "")]


@dataclass(slots=True)
class Progress:
    """The files and bytes that have come so far."""

    files: int
    """That are wanted."""
    done: int = 0
    """That have come, or cannot."""
    size: int = 0
    """Bytes; of two threads that count at once, one may not be heard."""
    stopped: bool = False

    def hear(self, size: int) -> None:
        """Count bytes; where somebody has pressed Ctrl-C, end the download, which leaves what has come."""
        if self.stopped:
            raise KeyboardInterrupt
        self.size += size

    def line(self) -> Line:
        """Return the words of this moment."""
        return Line([f"{self.done} of {self.files} files", f"{self.size / 2**20:.1f} MiB"], self.done / self.files)


def fetch(tasks: Sequence[Task], root: Path) -> int:
    """Download the files of tasks that are not in the cache yet, and say which ones cannot be had.

    Returns:
        The exit status: 0 where all are there, 1 where one is missing, 130 after Ctrl-C.
    """
    wanted = [(task, *file) for task in tasks for file in FileCache(root).lacking(task)]
    try:
        failed = _download(wanted, root) if wanted else []
    except KeyboardInterrupt:
        log.warning("stopped by Ctrl-C; the same command goes on from here")
        return STOPPED
    for (task, url, name), reason in failed:
        place = FileCache(root).place(url, task.id, name)
        log.error("task %s (%s): %s; %s may be put by hand at %s", task.id, task.domain, reason, name, place)
    total, lame = sum(len(files_of(task)) for task in tasks), len({task.id for (task, *_), _ in failed})
    log.info("%d of %d files are in %s", total - len(failed), total, root)
    if failed:
        log.error("%d of %d tasks cannot be set up or graded without the others", lame, len(tasks))
    return 1 if failed else 0


def _download(wanted: Sequence[Wanted], root: Path) -> list[tuple[Wanted, str]]:
    """Download files, several at once, and return those that cannot be had, with the reason."""
    failed, progress = {}, Progress(len(wanted))
    cache = FileCache(root, progress.hear)
    with showing(progress.line), ThreadPoolExecutor(AT_ONCE) as threads:
        futures = {threads.submit(cache.fetch, url, task.id, name): i for i, (task, url, name) in enumerate(wanted)}
        try:
            for future in as_completed(futures):
                progress.done += 1
                try:
                    future.result()
                except EnvError as error:
                    failed[futures[future]] = str(error)
        except BaseException:
            progress.stopped = True
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return [(wanted[index], failed[index]) for index in sorted(failed)]
