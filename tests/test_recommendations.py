"""Every key that a message or a page recommends exists, with the value that it recommends: each is composed."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import hydra
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from arpo.run.build import register_resolvers

ROOT = Path(__file__).parent.parent
CONF = ROOT / "conf"
PAGES = [*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docker/*.md")]
GROUPS = {path.name for path in CONF.iterdir() if path.is_dir()} - {"hydra"}
HEADS = GROUPS | {
    "experience",
    "iterations",
    "resume",
    "seed",
    "source",
    "teacher",
    "threads",
    "warmstart",
    "checkpoint",
    "export",
    "lists",
    "selection",
}
"""What an override of ours begins with."""
OVERRIDE = re.compile(r"(?<![\w.{/%-])([a-z_]+(?:\.[a-z_0-9]+)*=[^\s,;:()\"'`]+|[a-z_]+(?:\.[a-z_0-9]+)+)")
ELSEWHERE = {"env.step", "model.embed_tokens.weight", "model.language_model", "model.safetensors", "model.visual"}
ELSEWHERE |= {"model.make.context", "model.make.hidden", "model.language_model.embed_tokens.weight", "model.tiny"}
"""Names of methods and tensors that look like keys, and keys that a rehearsal adds itself."""
READERS_OWN = {"env=mine", "tasks=mine", "callbacks.mine={_target_"}
"""Files that a reader is about to write."""
BASES = (
    ("train", "experiment=arpo_subset32"),
    ("train", "experiment=arpo_subset32", "trainer=ddp"),
    ("train", "experiment=arpo_miniwob", "logger=wandb"),
    ("train", "experiment=arpo_desktop32"),
    ("train", "experiment=warmstart_miniwob"),
    ("train", "experiment=offline_dpo"),
    (
        "train",
        "experiment=smoke",
        "method=c3po",
        "module.objective.budget=120",
        "entropulse=on",
        "curriculum=stages",
        "replay=adapr",
    ),
    ("train", "experiment=smoke", "method=ui_tars2"),
    ("train", "experiment=smoke", "method=gigpo"),
    ("train", "experiment=distillation"),
    ("train", "experiment=smoke", "method=ui_s1", "env=recorded", "tasks=recorded"),
    ("select", "experiment=smoke"),
)
"""Whole configurations that have every key of ours between them."""


def messages(path: Path) -> Iterator[str]:
    """Every string that the code may say, with an ellipsis for what varies."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    described = [
        node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    silent = {id(node.value) for node in described}
    silent |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.value


def overrides_in(texts: Iterator[str]) -> Iterator[str]:
    for text in texts:
        for found in OVERRIDE.findall(text):
            name = found.partition("=")[0]
            if name.partition(".")[0] in HEADS and not name.endswith((".py", ".json")):
                yield found.rstrip(".")


@cache
def recommended() -> set[str]:
    found = {override for path in ROOT.glob("arpo/**/*.py") for override in overrides_in(messages(path))}
    for page in PAGES:
        found |= set(overrides_in(iter(re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")))))
    return found - ELSEWHERE - READERS_OWN


@cache
def compose(config: str, *overrides: str) -> DictConfig:
    register_resolvers()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose(config, [*overrides, "paths.run_dir=run"])


def bases_with(name: str) -> list[tuple[str, str]]:
    """The configurations that have a key."""
    parent, _, last = name.rpartition(".")
    found = []
    for base in BASES:
        node = OmegaConf.select(compose(*base), parent) if parent else compose(*base)
        if isinstance(node, DictConfig) and last in list(node):  # `in` alone leaves out what has no value yet
            found.append(base)
    return found


def check(override: str) -> None:
    name, _, value = override.partition("=")
    concrete = bool(value) and not re.search(r"[A-Z…]{2,}|…", value)
    if name in GROUPS:
        assert not concrete or (CONF / name / f"{value}.yaml").is_file(), f"there is no {override}"
        return
    assert bases_with(name), f"there is no key {name}"
    if concrete:
        assert not OverridesParser.create().parse_override(override).is_sweep_override(), f"{override} is several runs"


def test_what_is_recommended_exists():
    wrong = []
    for override in sorted(recommended()):
        try:
            check(override)
        except (AssertionError, HydraException) as error:
            wrong.append(f"{override}: {error}")
    assert wrong == []


@pytest.mark.long
def test_what_is_recommended_composes():
    values = {text: text.partition("=")[2] for text in recommended() if "=" in text}
    for override in sorted(text for text, value in values.items() if not re.search(r"[A-Z…]{2,}|…", value)):
        name = override.partition("=")[0]
        whole = ("plan" if name in {"gpu", "architecture"} else "train", "experiment=arpo_subset32")
        compose(*(whole if name in GROUPS else bases_with(name)[0]), override)


def test_recommendations_are_found_in_messages_and_on_pages():
    found = recommended()
    assert {"resume=auto", "engine=fleet", "rollout.settings.max_context", "replay=off"} <= found
    assert len(found) > 50


@pytest.mark.parametrize("wrong", ["datamodule=rollout", "rollout.group_size", "module.lr=1", "iterations=many,few"])
def test_a_recommendation_that_leads_nowhere_would_be_found(wrong):
    with pytest.raises((AssertionError, HydraException)):
        check(wrong)
