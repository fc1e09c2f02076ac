"""A choice of tasks by what a policy makes of them, from its configuration to a group of `conf/tasks`."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from arpo.display.live import showing
from arpo.display.progress_line import evaluation_line
from arpo.display.tables import print_table
from arpo.evaluation.selection import chosen_config, select_tasks
from arpo.evaluation.settings import EvaluationSettings
from arpo.host.files import write_atomically
from arpo.rollout.runtime import RolloutRuntime
from arpo.run.build import build
from arpo.types import Task

log = logging.getLogger(__name__)


def select(cfg: DictConfig, runtime: RolloutRuntime, tasks: Mapping[str, Sequence[Task]]) -> None:
    """Choose from each list, write the tasks that stay as a group of `conf/tasks`, and print a table a list."""
    run_dir = Path(cfg.paths.run_dir)
    groups: Any = OmegaConf.to_container(cfg.tasks, resolve=False)
    settings: EvaluationSettings = build(cfg.evaluation)
    judged = {}
    for name, listed in tasks.items():
        with showing(lambda: evaluation_line(runtime.status())):
            selection = select_tasks(runtime, listed, build(cfg.selection), settings, name=name)
        groups = chosen_config(groups, name, selection.kept)
        judged[name] = selection.to_json()
        print_table(selection.table(), title=name, caption=f"{len(selection.kept)} of {len(listed)} tasks are kept")
    write_atomically(run_dir / "selection.json", json.dumps(judged, indent=1))
    header = (
        f"# Tasks chosen by {settings.rollouts_per_task} attempts of {cfg.checkpoint} at each; see selection.json.\n"
    )
    write_atomically(run_dir / "selected.yaml", header + OmegaConf.to_yaml(groups))
    log.info("copy %s to conf/tasks/NAME.yaml and train with tasks=NAME", run_dir / "selected.yaml")
