"""A run in containers is refused for tasks that containers cannot set up, before anything starts."""

import json
from pathlib import Path

import pytest

from arpo.errors import ConfigError, EnvError
from arpo.host.containers import EngineFacts
from arpo.run.before import needs
from arpo.run.before.needs import check_needs, has_vs_code
from arpo.run.build import compose
from arpo.run.check import check_evaluation, check_training

LOADER = "arpo.envs.osworld.tasks.osworld_tasks"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Makes the configuration of a run whose lists hold tasks of these names; a name says what its task needs."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    folder = tmp_path / "examples" / "os"
    folder.mkdir(parents=True)
    tabs = {"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["http://example.org"]}}
    configs = {
        "bare": {"config": []},
        "code": {"config": [], "related_apps": ["vscode"]},
        **{f"web{index}": {"config": [tabs]} for index in range(7)},
    }
    for name, config in configs.items():
        record = {"instruction": "Do it.", **config, "evaluator": {"func": "exact_match"}}
        (folder / f"{name}.json").write_text(json.dumps(record))

    def make(*words, kind="train", env="osworld_container", **lists):
        places = [f"paths.run_dir={tmp_path}/run", f"paths.osworld_disk={tmp_path}"]
        cfg = compose(kind, ["experiment=smoke", f"env={env}", "engine=hf", *places, *words])
        cfg.requires = {}
        cfg.tasks = {
            name: {"_target_": LOADER, "root": str(tmp_path), "ids": {"os": ids}} for name, ids in lists.items()
        }
        return cfg

    return make


@pytest.fixture
def labels(monkeypatch):
    """The labels of each image of an engine that knows no other."""
    images = {"arpo/desktop:full": {}}
    monkeypatch.setattr(needs, "ask_engine", lambda image: EngineFacts("mine", Path("/"), images.get(image)))
    return images


def test_tasks_of_the_live_web_are_named_in_part_and_the_list_that_is_run_alone_is_looked_at(run, labels):
    cfg = run(train=["bare"], held_out=["bare", *(f"web{index}" for index in range(7))])
    check_needs(cfg, ["train"])
    with pytest.raises(ConfigError) as refused:
        check_needs(cfg, ["train", "held_out"])
    assert str(refused.value) == (
        "7 of 8 tasks need live web, which containers of arpo/desktop:full do not have (web0, web1, web2, web3, web4, "
        "…): run them in OSWorld's own machine, env=osworld, or take a list without them, such as "
        'tasks=osworld_128_containers; a task file of your own that needs less may say "needs": "files"'
    )


def test_vs_code_is_what_the_label_of_the_image_says(run, labels):
    cfg = run(train=["bare", "code"])
    refused = r"1 of 2 tasks need VS Code, which containers of arpo/desktop:full do not have \(code\): build an image"
    with pytest.raises(ConfigError, match=refused):
        check_needs(cfg, ["train"])
    labels["mine"] = {"arpo.vscode": "0123"}
    check_needs(run("env.make_env.machine.image=mine", train=["bare", "code"]), ["train"])
    with pytest.raises(ConfigError, match="need live web, which containers of mine do not have"):
        check_needs(run("env.make_env.machine.image=mine", train=["code", "web0"]), ["train"])


def test_no_image_and_no_engine_have_no_vs_code(monkeypatch, labels):
    assert not has_vs_code("absent")

    def silent(image):
        raise EnvError("guest", "no Docker engine answers")

    monkeypatch.setattr(needs, "ask_engine", silent)
    assert not has_vs_code("arpo/desktop:full")


def test_a_virtual_machine_has_all(run, labels):
    check_needs(run(env="osworld", train=["code", "web0"]), ["train"])


def test_the_images_of_other_nodes_are_not_looked_at_and_no_node_has_the_web(run, labels, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    check_needs(run(train=["bare", "code"]), ["train"])
    with pytest.raises(ConfigError, match="1 of 2 tasks need live web"):
        check_needs(run(train=["code", "web0"]), ["train"])
    monkeypatch.setenv("RANK", "1")
    check_needs(run(train=["web0"]), ["train"])


@pytest.mark.parametrize(
    ("kind", "words", "check"),
    [
        ("train", [], check_training),
        ("evaluate", ["checkpoint={model}", "lists=[train]"], check_evaluation),
    ],
)
def test_a_training_and_an_evaluation_are_refused_before_anything_starts(run, labels, tmp_path, kind, words, check):
    (tmp_path / "config.json").write_text("{}")  # of a checkpoint, as far as anybody looks before
    cfg = run(*(word.format(model=tmp_path) for word in words), kind=kind, train=["web0"])
    with pytest.raises(ConfigError, match="1 of 1 tasks need live web"):
        check(cfg)
    assert not (tmp_path / "run").exists()
