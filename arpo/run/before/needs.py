"""The check that containers of our image can set up OSWorld's tasks: without a network, and most without VS Code."""

import logging
from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf

from arpo.envs.osworld.needs import IN_A_CONTAINER, Need, need_of
from arpo.errors import ConfigError, EnvError, first_of
from arpo.host.containers import ask_engine
from arpo.host.environment import cluster_address
from arpo.run.preflight import ENGINE_TIMEOUT_S
from arpo.types import Task

log = logging.getLogger(__name__)

CONTAINER = "arpo.envs.osworld.machine.container"
LABEL = "arpo.vscode"
"""Of an image that has VS Code."""


def check_needs(cfg: DictConfig, tasks: Sequence[Task]) -> None:
    """Check that the containers of a run can set up all its tasks.

    In a Ray cluster the images are those of the nodes, and VS Code is taken to be in them.

    Args:
        cfg: The configuration, with `env=osworld`.
        tasks: Those that are run.
    """
    if OmegaConf.select(cfg, "env.make_env.machine._target_") != CONTAINER:
        return
    needs = {task.id: need_of(task) for task in tasks}
    if not set(needs.values()) - set(IN_A_CONTAINER):
        return
    image, with_vs_code = image_of(cfg), bool(cluster_address()) or has_vs_code(image_of(cfg))
    unmet = [need for need in Need if need not in IN_A_CONTAINER and not (with_vs_code and need is Need.VS_CODE)]
    unready = {need: sorted(name for name, found in needs.items() if found is need) for need in unmet}
    if any(unready.values()):
        words = "; ".join(f"{need} ({first_of(names)})" for need, names in unready.items() if names)
        other = f"tasks=osworld_128_{'vscode' if with_vs_code else 'containers'}"
        raise ConfigError(
            f"{sum(map(len, unready.values()))} of {len(tasks)} tasks need what containers of {image} do not have: "
            f"{words}. Take a list without them, such as {other}, or OSWorld's own machine, env=osworld, or for VS "
            "Code an image that has it (docs/osworld.md). A task file of your own that needs less may say "
            f'"needs": "{Need.FILES}"'
        )


def image_of(cfg: DictConfig) -> str:
    """Return the image of the containers of a run."""
    return str(OmegaConf.select(cfg, "env.make_env.machine.image"))


def has_vs_code(image: str) -> bool:
    """Return whether the Docker engine has an image with VS Code; where no engine answers, the log says that."""
    try:
        return LABEL in (ask_engine(image, ENGINE_TIMEOUT_S).labels or {})
    except EnvError as error:
        log.warning("cannot tell whether %s has VS Code: %s", image, error)
        return False
