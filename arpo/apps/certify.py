"""Certificates of tasks: `python -m arpo tasks certify …` plays the scripts of tasks and writes down the scores.

Scripts and certificate of a task of OSWorld are one file: `arpo/envs/osworld/certificates/APPLICATION/ID.json`, or
`APPLICATION/ID.json` in the folder of `--scripts`. Of templates, instances are drawn, and the number that is sound is
written into `arpo/envs/desktop/templates/certificates.json`; a template keeps its certificate where desktops failed.
"""

import json
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import tenacity
from filelock import FileLock

from arpo.bounds import AtLeastOne, checked
from arpo.envs.desktop.templates.lists import named, template_task
from arpo.envs.desktop.templates.template import Template
from arpo.envs.guest.certificate import RealDesktop, Script, Scripts, certify, holds, play, read_script, read_scripts
from arpo.errors import ArpoError, ConfigError, EnvError
from arpo.host.files import write_atomically
from arpo.host.terminal import Line, showing
from arpo.types import Task

log = logging.getLogger(__name__)

ATTEMPTS = 3
"""How often a script is begun before its task is given up: on a busy machine, an application may come too late."""
ROOT = Path(__file__).parents[1] / "envs" / "osworld" / "certificates"
TEMPLATES = Path(__file__).parents[1] / "envs" / "desktop" / "templates" / "certificates.json"
FIRST_SEED = 2_000_000
"""Of instances that are neither trained on nor judged."""


def certificates(
    scripted: Sequence[tuple[Task, Scripts]], make_env: Callable[[], RealDesktop], *, repeats: int
) -> Generator[dict[str, Any] | ArpoError]:
    """Yield the certificate of each task, or the reason why it has none, and show how far that is.

    A script that a desktop fails in is played again on a new one.
    """
    progress, env = Line([]), make_env()

    @tenacity.retry(
        retry=tenacity.retry_if_exception_type(EnvError), stop=tenacity.stop_after_attempt(ATTEMPTS), reraise=True
    )
    def patiently(task: Task, script: Script) -> float:
        nonlocal env
        try:
            return play(env, task, script)
        except EnvError as error:
            log.warning("%s: %s; a new desktop starts", task.id, error)
            env.close()
            env = make_env()
            raise

    try:
        with showing(lambda: progress):
            for done, (task, scripts) in enumerate(scripted):
                progress = Line([f"{done} of {len(scripted)} tasks", task.id], done / len(scripted))
                try:
                    yield certify(patiently, task, scripts, repeats=repeats)
                except ArpoError as error:
                    yield error
    finally:
        env.close()


def record_of(task: Task, root: Path = ROOT) -> dict[str, Any]:
    """Return the scripts of a task, and its certificate if it has one; empty where there is neither."""
    path = root / task.domain / f"{task.id}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def is_certified(task: Task, root: Path = ROOT) -> bool:
    """Return whether a task has a certificate, by which its solution scores 1, and all else 0."""
    certificate = record_of(task, root).get("certificate")
    return certificate is not None and holds(certificate)


def certify_each(
    tasks: Sequence[Task], make_env: Callable[[], RealDesktop], *, repeats: int, root: Path = ROOT
) -> int:
    """Play the scripts of tasks, write a certificate beside those of each, and return 1 where a task got none, else 0.

    Tasks without scripts are left out; an infeasible one needs none in the folder of the package.
    """
    scripted = [task for task in tasks if record_of(task, root) or (task.infeasible and root == ROOT)]
    if not scripted:
        raise ConfigError(f"none of {len(tasks)} tasks has a script in {root}")
    records = [record_of(task, root) for task in scripted]
    scripts = [read_scripts(record) for record in records]
    played = certificates([*zip(scripted, scripts, strict=True)], make_env, repeats=repeats)
    certified = 0
    for task, record, found in zip(scripted, records, played, strict=True):
        if isinstance(found, ArpoError):
            log.error("%s (%s): %s", task.id, task.domain, found)
            continue
        _write(root / task.domain / f"{task.id}.json", {**record, "certificate": found})
        certified += holds(found)
        log.info("%s (%s) is %scertified", task.id, task.domain, "" if holds(found) else "NOT ")
    log.info("%d of %d tasks are certified", certified, len(scripted))
    return 0 if certified == len(scripted) else 1


def _write(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


@checked
def certify_templates(
    names: Sequence[str],
    make_env: Callable[[], RealDesktop],
    *,
    instances: AtLeastOne,
    first_seed: int = FIRST_SEED,
    path: Path = TEMPLATES,
) -> int:
    """Play instances of templates, write down how many of each are sound, and return 1 where not all are, else 0.

    The names are of templates or applications, or `all`; the file keeps the certificates of other templates.
    """
    templates = list({template.name: template for name in names for template in named(name)}.values())
    seeds = range(first_seed, first_seed + instances)
    scripted = [(template_task(template, seed), _scripts(template, seed)) for template in templates for seed in seeds]
    is_sound = True
    with closing(certificates(scripted, make_env, repeats=1)) as played:
        for template in templates:
            wrong, failed = [], []
            for seed, found in zip(seeds, played, strict=False):
                if isinstance(found, EnvError):
                    failed.append(f"{seed}: {found}")
                elif isinstance(found, ArpoError):
                    wrong.append(f"{seed}: {found}")
                elif not holds(found):
                    wrong.append(f"{seed}: {json.dumps(found)}")
            if failed:
                message = "%s is not certified anew: the desktops failed in %d of %d instances: %s"
                log.error(message, template.name, len(failed), instances, "; ".join(failed))
            if wrong or not failed:
                judged = instances - len(failed)
                add_certificate(path, template.name, {"instances": judged, "first_seed": first_seed, "faults": wrong})
                log.info("%s: %d instances, %s", template.name, judged, "; ".join(wrong) or "all sound")
            is_sound = is_sound and not wrong and not failed
    return 0 if is_sound else 1


def _scripts(template: Template, seed: int) -> Scripts:
    instance = template.instance(seed)
    near_misses = {name: read_script(script) for name, script in instance.near_misses.items()}
    return Scripts(read_script(instance.solution), near_misses)


def add_certificate(path: Path, name: str, certificate: dict[str, Any]) -> None:
    """Write the certificate of a template beside those of others, which another process may be writing."""
    with FileLock(f"{path}.lock"):
        others = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        _write(path, dict(sorted((others | {name: certificate}).items())))
