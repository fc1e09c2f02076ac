"""Certificates of OSWorld's tasks: `python -m arpo tasks certify ID …` plays the scripts and writes down the scores.

A task's scripts and its certificate are one file: `arpo/envs/osworld/certificates/APPLICATION/ID.json`, or
`APPLICATION/ID.json` in the folder of `--scripts`.
"""

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tenacity

from arpo.agent.actions import Action
from arpo.envs.guest.certificate import RealDesktop, certify, holds, read_scripts
from arpo.envs.guest.client import Guest
from arpo.envs.protocol import StepResult
from arpo.errors import ArpoError, ConfigError, EnvError
from arpo.host.files import write_atomically
from arpo.types import Observation, Task

log = logging.getLogger(__name__)

RESETS = 3
"""How often a task is set up before it is given up: on a busy machine, an application may come too late."""
ROOT = Path(__file__).parents[1] / "envs" / "osworld" / "certificates"


class Patient:
    """A desktop that another one replaces when a task cannot be set up there.

    Args:
        make_env: Starts a desktop.
    """

    def __init__(self, make_env: Callable[[], RealDesktop]) -> None:
        self._make_env = make_env
        self._env = make_env()

    @property
    def guest(self) -> Guest:
        """The client of its guest server."""
        return self._env.guest

    @tenacity.retry(
        retry=tenacity.retry_if_exception_type(EnvError),
        stop=tenacity.stop_after_attempt(RESETS),
        before_sleep=tenacity.before_sleep_log(log, logging.WARNING),
        reraise=True,
    )
    def reset(self, task: Task) -> Observation:
        """Set a task up, and if that fails again on a new desktop."""
        try:
            return self._env.reset(task)
        except EnvError:
            self.replace()
            raise

    def replace(self) -> None:
        """Go on with a new desktop."""
        self._env.close()
        self._env = self._make_env()

    def step(self, action: Action) -> StepResult:
        """Perform an action."""
        return self._env.step(action)

    def evaluate(self) -> float:
        """Return the score."""
        return self._env.evaluate()

    def close(self) -> None:
        """Remove the desktop."""
        self._env.close()


def record_of(task: Task, root: Path = ROOT) -> dict[str, Any]:
    """Return the scripts of a task, and its certificate if it has one; empty where there is neither."""
    path = _path(task, root)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def is_certified(task: Task, root: Path = ROOT) -> bool:
    """Return whether a certificate says that a task's solution scores 1, and all else 0."""
    certificate = record_of(task, root).get("certificate")
    return certificate is not None and holds(certificate)


def certify_each(
    tasks: Sequence[Task], make_env: Callable[[], RealDesktop], *, repeats: int, root: Path = ROOT
) -> int:
    """Play the scripts of tasks, and write a certificate beside those of each.

    Args:
        tasks: Those without scripts are left out; an infeasible one needs none in the folder of the package.
        make_env: Starts a desktop.
        repeats: How often a solution is played.
        root: The folder of the scripts.

    Returns:
        The exit status: 1 where a task was not certified.
    """
    scripted = [task for task in tasks if record_of(task, root) or (task.infeasible and root == ROOT)]
    if not scripted:
        raise ConfigError(f"none of {len(tasks)} tasks has a script in {root}")
    env = Patient(make_env)
    certified = 0
    try:
        for task in scripted:
            record, path = record_of(task, root), _path(task, root)
            try:
                certificate = certify(env, task, read_scripts(record), repeats=repeats, tell=log.info)
            except ArpoError as error:
                log.error("%s (%s): %s", task.id, task.domain, error)  # noqa: TRY400 - a sentence, no trace
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({**record, "certificate": certificate}, indent=1, ensure_ascii=False)
            write_atomically(path, text + "\n")
            certified += holds(certificate)
            log.info("%s (%s) is %scertified", task.id, task.domain, "" if holds(certificate) else "NOT ")
    finally:
        env.close()
    log.info("%d of %d tasks are certified", certified, len(scripted))
    return 0 if certified == len(scripted) else 1


def _path(task: Task, root: Path) -> Path:
    return root / task.domain / f"{task.id}.json"
