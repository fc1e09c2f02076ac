"""The check of OSWorld's tasks: machines can set them up, and their files are there or can be fetched."""

from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf

from arpo.run.before.downloads import check_downloads
from arpo.run.before.needs import check_needs
from arpo.run.build import build
from arpo.run.folder import rank

ENVIRONMENT = "arpo.envs.osworld.env.OSWorldEnv"


def check_osworld(cfg: DictConfig, lists: Sequence[str]) -> None:
    """Check that OSWorld's environments of a run can set up all its tasks; other environments have nothing to check.

    Args:
        cfg: The configuration.
        lists: The lists of tasks that are run.
    """
    if OmegaConf.select(cfg, "env.make_env._target_") != ENVIRONMENT or rank() != 0:
        return
    # Read once: each reading logs the tasks that it leaves out.
    tasks = list({task.id: task for name in lists for task in build(cfg.tasks[name]) or ()}.values())
    check_needs(cfg, tasks)
    check_downloads(cfg, tasks)
