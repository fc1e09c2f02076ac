"""The rule that each override has an effect: some part of the run reads it."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from arpo.errors import ConfigError
from arpo.run.choices import CONF
from arpo.run.rules import FlatConfig

log = logging.getLogger(__name__)

PARTS = ("callbacks", "datamodule", "logger", "module", "trainer")
OTHERS = ("checks", "hydra", "iterations", "name", "paths", "requires", "resume", "seed", "threads", "warmstart")
"""Keys that the programs themselves read; whatever else is read, one of these names in an interpolation."""
REFERENCE = re.compile(r"\$\{(?:oc\.select:)?(\.*)([A-Za-z_][\w.]*)(?=[},])")
READERS = {
    "experience": "replay=pool reads it",
    "source": "experiment=offline_rs, offline_dpo or offline_kto, and tasks=recorded read it",
    "gpus": "layout=split and layout=colocated read it",
}
"""Choices that read what the usual run does not."""


CONDITIONS: tuple[tuple[str, Callable[[FlatConfig], bool], str], ...] = (
    (
        r"module\.(reference|objective\.kl)",
        lambda chosen: (
            "module.objective" not in chosen
            or bool(chosen["module.objective.kl_coefficient"])
            or not chosen["module.objective._target_"].startswith("arpo.")
        ),  # a method of one's own may ask for a reference
        "only the KL term reads it: set module.objective.kl_coefficient above 0",
    ),
    (
        r"module\.teacher",
        lambda chosen: chosen.method.needs.teacher,
        "the method of this run has no teacher: take method=distillation",
    ),
    (
        r"module\.critic(_rate|\..*)?",
        lambda chosen: chosen.method.asks.values,
        "the method of this run has no critic: take one that has, such as method=ppo",
    ),
    (
        r"module\.replayed_old_logprobs",
        lambda chosen: chosen["replay._target_"] is not None,
        "nothing is replayed: choose replay=on",
    ),
    (
        r"module\.(replayed_old_logprobs|objective\.(clip_low|clip_high|dual_clip|level))",
        lambda chosen: chosen.method.has_ratio,
        "the method of this run compares no old log-probabilities with new ones: take another method",
    ),
    (
        r"module\.objective\.std",
        lambda chosen: chosen["module.objective.estimator"] in (None, "grpo", "step_grpo"),
        "this module.objective.estimator divides by no deviation: take grpo or step_grpo",
    ),
    (
        r"rollout\.settings\.order",
        lambda chosen: bool(chosen["rollout.settings.max_policy_lag"]),
        "rollouts do not run ahead: set rollout.settings.max_policy_lag to 1 or more",
    ),
    (
        r"engine\.max_unavailable",
        lambda chosen: chosen["engine.sync"] == "rolling",
        "all engines are updated at once: set engine.sync=rolling",
    ),
    (
        r"engine\.(make_engine\.)?(max_num_seqs|max_batch)",
        lambda chosen: not chosen["deterministic"],
        "one request runs at a time: set deterministic=false",
    ),
    (
        r"env\.make_env\.thought",
        lambda chosen: bool(chosen["env.make_env.patches"]),
        "no action of the expert takes the place of a wrong one: set env.make_env.patches to 1 or more",
    ),
    (
        r"datamodule\.collector\.demonstrator\.(habit|rules)",
        lambda chosen: chosen["datamodule.collector.demonstrator.success_rate"] != 1,
        "the script makes no mistakes: set datamodule.collector.demonstrator.success_rate below 1",
    ),
    (
        r"datamodule\.collector\.demonstrator\.habit",
        lambda chosen: not chosen["datamodule.collector.demonstrator.rules"],
        "every mistake follows a rule: set datamodule.collector.demonstrator.rules=false",
    ),
)
"""Regular expressions of keys, what must hold for them to have an effect, and what to say where it does not."""


def overrides_have_effects(chosen: FlatConfig) -> Iterator[str]:
    """Check that every override has an effect on a training; one of an empty or the usual value needs none.

    In a multirun it may have one in another job, and is logged.
    """
    if not HydraConfig.initialized():
        return
    hydra, read = HydraConfig.get(), _keys_read(chosen.cfg)
    for override in hydra.overrides.task:
        if why := _unread(chosen, read, override):
            if hydra.mode == RunMode.MULTIRUN:
                log.warning("%s changes nothing of this run: %s", override, why)
            else:
                yield f"{override}: {why}, or leave it out: as it is, it changes nothing of this run"


def _unread(chosen: FlatConfig, read: set[str], override: str) -> str | None:
    """Return the reason why an override has no effect, None where it has one, or names a choice that is no part."""
    key = override.partition("=")[0].lstrip("+~").replace("/", ".")
    value, usual = chosen[key], OmegaConf.select(OmegaConf.load(CONF / "train.yaml"), key)
    if key.partition(".")[0] not in chosen or value in (None, "", []) or value == usual:
        return None
    if not any(key == each or f"{key}.".startswith(f"{each}.") or each.startswith(f"{key}.") for each in read):
        return f"nothing reads {key}; {READERS.get(key, 'take choices that do')}"
    try:
        return next((why for keys, holds, why in CONDITIONS if re.fullmatch(keys, key) and not holds(chosen)), None)
    except ConfigError:  # of a method that cannot be made, whose arguments are checked by their names later
        return None


def _keys_read(cfg: DictConfig) -> set[str]:
    """Return the keys that a training reads, each with all below it."""
    raw: Any = OmegaConf.to_container(cfg, resolve=False)
    read: set[str] = set()
    waiting = [*PARTS, *OTHERS]
    while waiting:
        key = waiting.pop()
        if key not in read:
            read.add(key)
            node = raw
            for part in key.split("."):
                node = node.get(part) if isinstance(node, Mapping) else None
            waiting += _references(node)
    return read


def _references(node: object) -> Iterator[str]:
    """Yield the keys that interpolations below a node name; one that is relative names a part of what is read."""
    if isinstance(node, str):
        yield from (key for dots, key in REFERENCE.findall(node) if not dots)
    inner = node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
    for value in inner:
        yield from _references(value)
