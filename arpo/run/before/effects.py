"""The check that what a person typed has an effect: some part of the run reads it."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from arpo.errors import ConfigError
from arpo.run.before.words import CONF
from arpo.run.build import method_of

log = logging.getLogger(__name__)

PARTS = ("callbacks", "datamodule", "logger", "module", "trainer")
OTHERS = ("hydra", "iterations", "name", "paths", "requires", "resume", "seed", "threads", "warmstart")
"""Keys that the programs themselves read; whatever else is read, one of these names in an interpolation."""
REFERENCE = re.compile(r"\$\{(?:oc\.select:)?(\.*)([A-Za-z_][\w.]*)(?=[},])")
READERS = {
    "experience": "replay=pool reads it",
    "source": "experiment=offline_rs, offline_dpo or offline_kto, and tasks=recorded read it",
    "gpus": "layout=split and layout=colocated read it",
}
"""Choices that read what the usual run does not."""


def _is_nothing(cfg: DictConfig, key: str) -> bool:
    return not OmegaConf.select(cfg, key)


CONDITIONS: tuple[tuple[str, Callable[[DictConfig], bool], str], ...] = (
    (
        r"module\.(reference|objective\.kl)",
        lambda cfg: (
            "objective" not in cfg.module
            or not _is_nothing(cfg, "module.objective.kl_coefficient")
            or not cfg.module.objective._target_.startswith("arpo.")
        ),  # a method of one's own may ask for a reference
        "only the KL term reads it: set module.objective.kl_coefficient above 0",
    ),
    (
        r"module\.teacher",
        lambda cfg: method_of(cfg).needs.teacher,
        "the method of this run has no teacher: take method=distillation",
    ),
    (
        r"module\.critic(_rate|\..*)?",
        lambda cfg: method_of(cfg).asks.values,
        "the method of this run has no critic: take one that has, such as method=ppo",
    ),
    (
        r"module\.replayed_old_logprobs",
        lambda cfg: not _is_nothing(cfg, "replay._target_"),
        "nothing is replayed: choose replay=on",
    ),
    (
        r"module\.(replayed_old_logprobs|objective\.(clip_low|clip_high|dual_clip|level))",
        lambda cfg: method_of(cfg).has_ratio,
        "the method of this run compares no old log-probabilities with new ones: take another method",
    ),
    (
        r"module\.objective\.std",
        lambda cfg: cfg.module.objective.get("estimator", "grpo") in ("grpo", "step_grpo"),
        "this module.objective.estimator divides by no deviation: take grpo or step_grpo",
    ),
    (
        r"rollout\.settings\.order",
        lambda cfg: not _is_nothing(cfg, "rollout.settings.max_policy_lag"),
        "rollouts do not run ahead: set rollout.settings.max_policy_lag to 1 or more",
    ),
    (
        r"engine\.max_unavailable",
        lambda cfg: cfg.engine.get("sync") == "rolling",
        "all engines are updated at once: set engine.sync=rolling",
    ),
    (
        r"engine\.(make_engine\.)?(max_num_seqs|max_batch)",
        lambda cfg: not cfg.deterministic,
        "one request runs at a time: set deterministic=false",
    ),
    (
        r"env\.make_env\.thought",
        lambda cfg: not _is_nothing(cfg, "env.make_env.patches"),
        "no action of the expert takes the place of a wrong one: set env.make_env.patches to 1 or more",
    ),
    (
        r"datamodule\.collector\.demonstrator\.(habit|rules)",
        lambda cfg: cfg.datamodule.collector.demonstrator.success_rate != 1,
        "the script makes no mistakes: set datamodule.collector.demonstrator.success_rate below 1",
    ),
    (
        r"datamodule\.collector\.demonstrator\.habit",
        lambda cfg: not cfg.datamodule.collector.demonstrator.rules,
        "every mistake follows a rule: set datamodule.collector.demonstrator.rules=false",
    ),
)
"""Regular expressions of keys, what must hold for them to have an effect, and what to say where it does not."""


def check_effects(cfg: DictConfig, words: Sequence[str], *, others: bool = False) -> None:
    """Check that every word has an effect on a training; one that says nothing, or what is usual, needs none.

    Args:
        cfg: The configuration that the words have made.
        words: Overrides.
        others: Whether other jobs are given the same words, which may have an effect there: they are logged then.
    """
    lines = [f"  - {word}: {reason}, or leave it out" for word in words if (reason := _unread(cfg, word))]
    said = "these words would change nothing of this run:\n" + "\n".join(lines)
    if lines and not others:
        raise ConfigError(said)
    if lines:
        log.warning("%s", said)


def _unread(cfg: DictConfig, word: str) -> str | None:
    """Return why a word has no effect, None where it has one, or names a choice that is no part of its own."""
    key = word.partition("=")[0].lstrip("+~").replace("/", ".")
    value, usual = (OmegaConf.select(each, key) for each in (cfg, OmegaConf.load(CONF / "train.yaml")))
    if key.partition(".")[0] not in cfg or value in (None, "", []) or value == usual:
        return None
    if not any(key == read or f"{key}.".startswith(f"{read}.") or read.startswith(f"{key}.") for read in _read(cfg)):
        return f"nothing reads {key}; {READERS.get(key, 'take choices that do')}"
    return next((why for keys, holds, why in CONDITIONS if re.fullmatch(keys, key) and not holds(cfg)), None)


def _read(cfg: DictConfig) -> set[str]:
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
