"""The rule that a run which goes on is the one that its folder holds."""

import inspect
import pydoc
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from arpo.run.rules import FlatConfig

MAY_DIFFER = re.compile(
    # length, name, places, logs and checks of a run
    r"name|iterations|resume|paths|logger|hydra|checks"
    # where it began: policy, demonstrations and successes are copied into the folder at the first start
    r"|warmstart|experience|replay\.pool\.directories"
    # the machine that it runs on, as after a move or a lack of memory: no state of the run depends on it
    r"|requires|threads|gpus|serving_gpus|engine"
    r"|trainer\.(?!strategy|precision|gradient|accumulate|limit_train).*|trainer\.strategy\.(?!_target_).*"
    r"|env\.(parts\.[^.]+\.)?((?!make_env|parts).*|make_env\.(machine|cache|grader_python|tabs|\w*timeout_s))"
    r"|rollout\.settings\.(stall_s|max_attempts)"
    r"|module\.micro_batch_tokens|(.*\.)?(attention|gradient_checkpointing|offload_activations|mlp_chunk|logits_chunk)"
    # what looks on: callbacks keep nothing that an update reads, but for `replay` and `entropulse`, compared elsewhere
    r"|callbacks|evaluation"
    # copies of other parts, by interpolation
    r"|module\.policy|rollout\.(?!settings).*|datamodule\.((collector|demonstrator)\.)?(pool|runtime)"
)
"""Keys, with all below them, in which the starts of one run may differ; every other one makes another run."""
MOST_SHOWN = 5
UNKNOWN = object()
"""Stands for the value of a key that one of two configurations lacks, where no constructor has a default for it."""


def the_folder_holds_the_same_run(chosen: FlatConfig) -> Iterator[str]:
    """Check that a run which goes on has the configuration that its folder was written with.

    A key that one lacks has its constructor's default; without one, an older version knew no such option.
    """
    run_dir, resume = Path(chosen["paths.run_dir"]), chosen["resume"]
    stored = run_dir / "config.yaml"
    if resume is None or not stored.exists() or not any(Path(chosen["paths.checkpoints"]).glob("iteration_*")):
        return
    try:
        before = _plain(OmegaConf.load(stored), resolve=False)  # it was resolved, and `${` is a text in it
    except (OSError, yaml.YAMLError, ValueError) as error:
        yield f"{stored} cannot be read, and it says what the run was: {error}"
        return
    now = _plain(chosen.cfg)
    found = list(differences(before, now))
    if "datamodule.source" in chosen and before.get("iterations") != now["iterations"]:
        found.append(("iterations", before.get("iterations"), now["iterations"]))  # they share out datamodule.steps
    lines = [f"  - {key}: {_short(old)} there, {_short(new)} now" for key, old, new in found[:MOST_SHOWN]]
    lines += [f"  - and {len(found) - MOST_SHOWN} more"] if len(found) > MOST_SHOWN else []
    if lines:
        yield (
            f"resume={resume}: {run_dir} holds a run of another configuration:\n"
            + "\n".join(lines)
            + "\nGo on with the overrides of that run, or start a new one with paths.output=DIR"
        )


def differences(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each key in which two configurations are not of one run, with both values."""
    if key and MAY_DIFFER.fullmatch(key):
        return
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        if UNKNOWN not in (old, new) and old != new:
            yield key, old, new
        return
    targets = old.get("_target_"), new.get("_target_")
    if targets[0] != targets[1]:
        known = None if targets[0] is None else pydoc.locate(targets[0])
        if known is None or known is not pydoc.locate(str(targets[1])):  # else it is there under its former name
            if targets[0] is None or known is not None:  # else an older version had it elsewhere
                yield f"{key}._target_", *targets
            return
        old = {**old, "_target_": targets[1]}
    for name in dict.fromkeys([*old, *new]):
        there, here = (node[name] if name in node else _default(node, name) for node in (old, new))
        yield from differences(there, here, f"{key}.{name}" if key else str(name))


def _default(node: Mapping[str, Any], name: str) -> Any:
    """Return the value of an argument that a node leaves to its constructor."""
    target = pydoc.locate(str(node.get("_target_", "")))
    if not callable(target):
        return UNKNOWN
    argument = inspect.signature(target).parameters.get(name)
    default = UNKNOWN if argument is None or argument.default is argument.empty else argument.default
    return list(default) if isinstance(default, tuple) else default


def _plain(cfg: Any, *, resolve: bool = True) -> Any:
    """Return a configuration as plain values, its own folders by their names: a run may be moved."""
    plain = OmegaConf.to_container(cfg, resolve=resolve)
    if not isinstance(plain, dict) or not isinstance(plain.get("paths"), dict):
        raise ValueError("it is not the configuration of a run")  # noqa: TRY004 - of a file
    folders = [plain["paths"][name] for name in ("run_dir", "output") if name in plain["paths"]]
    return _without(plain, [str(folder) for folder in folders])


def _without(value: Any, folders: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _without(member, folders) for name, member in value.items()}
    if isinstance(value, list):
        return [_without(member, folders) for member in value]
    if isinstance(value, str):
        for folder in folders:
            if value == folder or value.startswith(f"{folder}/"):
                return "…" + value.removeprefix(folder)
    return value


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
