"""Two places name the same numbers: a constructor for use in Python, the configuration for runs."""

import inspect
from pathlib import Path

import hydra
import pytest
from omegaconf import OmegaConf

from arpo.methods.grpo import GRPO
from arpo.modules.grpo import GRPOModule
from arpo.modules.offline.kto import KTOModule
from arpo.modules.sft import SFTModule
from arpo.replay import ReplayBuffer
from arpo.run.build import build, register_resolvers

CONF = Path(__file__).parents[2] / "conf"


def written(value):
    """The same in Python: an object that YAML names, a tuple that it writes as a list."""
    if isinstance(value, dict) and "_target_" in value:
        return build(value)
    return tuple(value) if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("constructor", "node", "overrides"),
    [
        (GRPOModule, "module", []),
        (GRPO, "module.objective", []),
        (ReplayBuffer, "replay.buffer", []),
        (SFTModule, "module", ["experiment=warmstart_fake"]),
        (KTOModule, "module", ["experiment=offline_kto"]),  # those of its method among them
    ],
)
def test_a_default_of_a_constructor_is_that_of_the_configuration(constructor, node, overrides):
    register_resolvers()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = hydra.compose("train", ["paths.run_dir=run", "model.path=somewhere", *overrides])
    configured = OmegaConf.to_container(OmegaConf.select(cfg, node), resolve=True)
    parameters = inspect.signature(constructor).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    assert defaults, "a constructor without defaults would prove nothing"
    shown = {name: written(value) for name, value in configured.items()}
    assert {name: shown.get(name) for name in defaults} == defaults  # what a file leaves out is None
