"""Certificates of templates: `python -m arpo tasks certify env=desktop_full` plays fresh instances of each.

Of an instance the solution must score 1, and idleness, every near-miss and ending all programs 0. How many instances
of each template did so is written into `arpo/envs/desktop/templates/certificates.json`. A desktop that fails, and a
second one, are no fault of a template, which keeps the certificate that it has then, if it has one.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from arpo.apps.certify import Patient
from arpo.display.live import showing
from arpo.display.progress_line import Line
from arpo.envs.desktop.templates.lists import named, template_task
from arpo.envs.desktop.templates.template import Template
from arpo.envs.guest.certificate import RealDesktop, Scripts, certify, holds, read_script
from arpo.errors import BlamedError, EnvError, check_at_least
from arpo.host.files import write_atomically

log = logging.getLogger(__name__)

CERTIFICATES = Path(__file__).parents[1] / "envs" / "desktop" / "templates" / "certificates.json"
FIRST_SEED = 2_000_000
"""Of instances that are trained on and judged nowhere."""


def certify_templates(
    names: Sequence[str],
    make_env: Callable[[], RealDesktop],
    *,
    instances: int,
    first_seed: int = FIRST_SEED,
    path: Path = CERTIFICATES,
) -> int:
    """Play instances of templates and write down how many of them are sound.

    Args:
        names: Of templates or applications, or `all`.
        make_env: Starts a desktop that has their applications.
        instances: Of each template.
        first_seed: Of the instances.
        path: The file of the certificates; it keeps those of other templates.

    Returns:
        The exit status: 1 where an instance is not sound, or desktops failed.
    """
    check_at_least(1, instances=instances)
    templates = list({template.name: template for name in names for template in named(name)}.values())
    env = Patient(make_env)
    sound = True
    progress = Progress(instances * len(templates))
    try:
        with showing(progress.line):
            for template in templates:
                wrong: list[str] = []
                failed: list[str] = []
                progress.name = template.name
                for seed in range(first_seed, first_seed + instances):
                    try:
                        wrong += _faults(env, template, seed)
                    except BlamedError as error:
                        wrong.append(f"{seed}: {error}")
                    except EnvError as error:
                        failed.append(f"{seed}: {error}")
                    progress.done += 1
                numbers = {"instances": instances, "first_seed": first_seed}
                sound = _record(path, template.name, **numbers, wrong=wrong, failed=failed) and sound
    finally:
        env.close()
    return 0 if sound else 1


@dataclass(slots=True)
class Progress:
    """The instances that have been played."""

    instances: int
    """Of all templates."""
    done: int = 0
    name: str = ""
    """The template that is being played."""

    def line(self) -> Line:
        """Return the words of this moment."""
        return Line([f"{self.done} of {self.instances} instances", self.name], self.done / self.instances)


def _record(
    path: Path, name: str, *, instances: int, first_seed: int, wrong: Sequence[str], failed: Sequence[str]
) -> bool:
    """Write down what was found of a template, unless only desktops failed, and return whether it is sound."""
    if failed:
        words = "%s is not certified anew: the desktops failed in %d of %d instances: %s"
        log.error(words, name, len(failed), instances, "; ".join(failed))
    if wrong or not failed:
        judged = instances - len(failed)
        _write(path, {name: {"instances": judged, "first_seed": first_seed, "faults": wrong}})
        log.info("%s: %d instances, %s", name, judged, "; ".join(wrong) or "all sound")
    return not wrong and not failed


def _write(path: Path, certificates: dict[str, Any]) -> None:
    """Write certificates beside those of other templates, which another process may be writing."""
    with FileLock(f"{path}.lock"):
        others = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        text = json.dumps(dict(sorted((others | certificates).items())), indent=1, ensure_ascii=False)
        write_atomically(path, text + "\n")


def _faults(env: Patient, template: Template, seed: int) -> list[str]:
    """Return what is wrong with an instance.

    Raises:
        BlamedError: If its grader gives no score.
        EnvError: If a desktop fails, and then a second one.
    """
    instance = template.instance(seed)
    near_misses = {name: read_script(script) for name, script in instance.near_misses.items()}
    task, scripts = template_task(template, seed), Scripts(read_script(instance.solution), near_misses)
    try:
        found = certify(env, task, scripts, repeats=1, tell=log.debug)
    except EnvError as error:
        log.warning("%s, instance %d, begins anew on a second desktop: %s", template.name, seed, error)
        env.replace()
        found = certify(env, task, scripts, repeats=1, tell=log.debug)
    return [] if holds(found) else [f"{seed}: {json.dumps(found)}"]
