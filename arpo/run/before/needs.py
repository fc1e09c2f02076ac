"""The check that containers of our image can set up OSWorld's tasks: without a network, and most without VS Code."""

from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf

from arpo.envs.osworld.needs import IN_A_CONTAINER, Need, need_of
from arpo.errors import ConfigError, EnvError
from arpo.host.containers import ask_engine
from arpo.host.environment import cluster_address
from arpo.run.build import build
from arpo.run.folder import rank

CONTAINER = "arpo.envs.osworld.machine.container"
LABEL = "arpo.vscode"
"""Of an image that has VS Code."""
MOST_SHOWN = 5
INSTEAD = {
    Need.VS_CODE: "build an image that has it (docs/osworld.md, VS Code)",
    Need.WEB: "run them in OSWorld's own machine, env=osworld",
}


def check_needs(cfg: DictConfig, lists: Sequence[str]) -> None:
    """Check that the containers of a run can set up all its tasks.

    In a Ray cluster the images are those of the nodes, and VS Code is taken to be in them.

    Args:
        cfg: The configuration.
        lists: The lists of tasks that are run.

    Raises:
        ConfigError: With the tasks, what they need, and what to do.
    """
    if OmegaConf.select(cfg, "env.make_env.machine._target_") != CONTAINER or rank() != 0:
        return
    tasks = {task.id: task for name in lists for task in build(cfg.tasks[name]) or ()}
    needs = {name: need_of(task) for name, task in tasks.items()}
    image = str(cfg.env.make_env.machine.image)
    if Need.VS_CODE in needs.values() and (cluster_address() or has_vs_code(image)):
        needs = {name: need for name, need in needs.items() if need is not Need.VS_CODE}
    for need in Need:
        names = sorted(name for name, found in needs.items() if found is need)
        if not names or need in IN_A_CONTAINER:
            continue
        shown = ", ".join(names[:MOST_SHOWN]) + ", …" * (len(names) > MOST_SHOWN)
        raise ConfigError(
            f"{len(names)} of {len(tasks)} tasks need {need}, which containers of {image} do not have ({shown}): "
            f"{INSTEAD.get(need, 'leave them out')}, or take a list without them, such as "
            f'tasks=osworld_128_containers; a task file of your own that needs less may say "needs": "{Need.FILES}"'
        )


def has_vs_code(image: str) -> bool:
    """Return whether the Docker engine has an image with VS Code; not, where no engine answers."""
    try:
        return LABEL in (ask_engine(image).labels or {})
    except EnvError:
        return False
