"""The check of every constructor's arguments, by its signature and by building what is cheap to build."""

import inspect
import json
import pydoc
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import SchemaError

from arpo.bounds import requirement
from arpo.errors import ConfigError
from arpo.host.environment import cluster_address
from arpo.host.trial import on_trial
from arpo.run.build import REFUSALS, build
from arpo.run.choices import CONF
from arpo.run.overrides import near

Node = Mapping[str, Any]

LIGHT = (
    "arpo.agent.",
    "arpo.datamodules.demonstrator.",
    "arpo.envs.",
    "arpo.host.",
    "arpo.rollout.settings.",
    "arpo.rollout.storage.",
    "builtins.",
    "datetime.",
)
"""Beginnings of targets that are imported without torch."""
READS_MODEL = "arpo.models.tokenization.ChatTokenizer"
"""The one constructor that reads the checkpoint, which a warm start may have to write first."""


def check_arguments(cfg: DictConfig, rooms: tuple[str, ...] = ("",)) -> None:
    """Check by its signature the arguments of every constructor of some rooms, also of one that is called later."""
    nodes = [(place, node) for place, node in _nodes(cfg) if node["_target_"].startswith(rooms)]
    name = OmegaConf.select(cfg, "preset_of.name")
    preset = OmegaConf.load(CONF / "preset" / f"{name}.yaml") if name else OmegaConf.create()
    lines = [line for place, node in nodes for line in _lines(place, node, preset)]
    if lines:
        listed = "\n".join(f"  - {line}" for line in lines)
        raise ConfigError(f"the configuration has keys that do not fit:\n{listed}")


def try_constructors(cfg: DictConfig, rooms: tuple[str, ...] = ("",), parts: tuple[str, ...] = ()) -> None:
    """Try every constructor of some rooms and parts whose arguments are known: it checks values, starts nothing."""
    # What others contain comes first, wherever it stands: its own key is the one that a person can change.
    for place, node in sorted(_nodes(cfg), key=lambda item: len(list(_targets(item[1])))):
        if parts and place.partition(".")[0] not in parts:
            continue
        if all(target.startswith(rooms) and target != READS_MODEL for target in _targets(node)) and _is_whole(node):
            with on_trial():
                build({**node, "_partial_": False}, place, (*REFUSALS, TypeError))


def _is_whole(node: Node) -> bool:
    """Return whether a constructor can be called here with what the configuration says."""
    target = pydoc.locate(node["_target_"])
    if node.get("_partial_") and node["_target_"].startswith("arpo.envs.") and cluster_address():
        return False  # it runs on other nodes, which have what it looks for
    parameters = _parameters(target) if callable(target) else None
    return parameters is None or _needed(parameters) <= set(node)


def _nodes(cfg: DictConfig | ListConfig, place: str = "", resolved: Any = None) -> Iterator[tuple[str, Node]]:
    """Yield everything that has a target with the key where it is written, outer nodes first.

    Interpolations are slow: what stands in a node is resolved together with it, once.
    """
    if isinstance(cfg, DictConfig) and "_target_" in cfg:
        if cfg["_target_"] is None:
            return
        resolved = OmegaConf.to_container(cfg, resolve=True) if resolved is None else resolved
        yield place, resolved
    keys: Iterable[Any] = cfg if isinstance(cfg, DictConfig) else range(len(cfg))
    for key in keys:
        written = not OmegaConf.is_interpolation(cfg, key) and not OmegaConf.is_missing(cfg, key)
        if written and OmegaConf.is_config(cfg[key]):
            inner = resolved if resolved is None else resolved[key]
            yield from _nodes(cfg[key], f"{place}.{key}" if place else str(key), inner)


def _targets(tree: object) -> Iterator[str]:
    """Yield the targets of a node and of everything inside."""
    if isinstance(tree, Mapping):
        if isinstance(tree.get("_target_"), str):
            yield tree["_target_"]
        tree = list(tree.values())
    for value in tree if isinstance(tree, list) else ():
        yield from _targets(value)


def _lines(place: str, node: Node, preset: Any) -> Iterator[str]:
    target = pydoc.locate(node["_target_"])  # None where there is nothing: building it has the better message
    parameters = _parameters(target) if callable(target) else None
    if parameters is None:
        return
    given = {str(key): value for key, value in node.items() if not str(key).startswith("_")}
    free = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for key, value in given.items():
        if key in parameters:
            yield from _type_lines(f"{place}.{key}", value, parameters[key].annotation)
        elif not free:
            set_by = OmegaConf.select(preset, f"{place}.{key}") is not None and preset.preset_of.name
            cure = f"; preset={set_by} sets it: leave out the preset, or this choice of {place.partition('.')[0]}"
            known = f"{near(key, parameters)}{node['_target_']} has {', '.join(parameters)}"
            yield f"{place}.{key}: {known}{cure if set_by else ''}"
    if not node.get("_partial_"):
        for key in _needed(parameters) - set(given):
            yield f"{place}.{key} is missing: {node['_target_']} needs it"


def _parameters(target: Callable[..., object]) -> Mapping[str, inspect.Parameter] | None:
    try:
        return inspect.signature(target, eval_str=True).parameters
    except NameError:  # an annotation that exists for type checkers only
        return inspect.signature(target).parameters
    except ValueError:  # some built-in types have no signature that Python can read
        return None


def _needed(parameters: Mapping[str, inspect.Parameter]) -> set[str]:
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {key for key, value in parameters.items() if value.default is value.empty and value.kind not in kinds}


def _type_lines(place: str, value: object, annotation: Any) -> Iterator[str]:
    """Yield what is wrong with a plain value by its annotation; a nested node is the business of its own signature."""
    if annotation is inspect.Parameter.empty or isinstance(annotation, str) or any(_targets(value)):
        return
    try:
        # As JSON, because YAML has the same types: a list may become a tuple, a text a path, and 1 a float.
        kind: TypeAdapter[Any] = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
        kind.validate_json(json.dumps(value), strict=True)
    except (PydanticUserError, SchemaError):  # an annotation that pydantic cannot read
        return
    except ValidationError as error:
        wishes = []
        for problem in error.errors():
            if problem["type"] in ("missing", "too_long"):  # pydantic names only what the end of a list lacks
                wishes.append(f"should be a list that fits {inspect.formatannotation(annotation)}")
            elif problem["type"] == "needs_python_object":
                wishes.append("should be a node with a _target_")
            elif problem["type"] == "callable_type":
                wishes.append("should be a node with a _target_ that makes a function, or be left out")
            else:
                wishes.append(f"should {requirement(problem)}")
        yield f"{place}={value} {' or '.join(dict.fromkeys(wishes))}"
