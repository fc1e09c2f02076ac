"""A run in containers is refused for tasks that containers cannot set up, before anything starts."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

from arpo.errors import ConfigError, EnvError
from arpo.host.containers import EngineFacts
from arpo.run.before import needs
from arpo.run.before.needs import has_vs_code
from arpo.run.before.osworld import check_osworld
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
    monkeypatch.setattr(
        needs, "ask_engine", lambda image, timeout_s: EngineFacts("mine", Path("/"), images.get(image))
    )
    return images


WEB = "live web (web0, web1, web2, web3, web4, …)"
REFUSED = (
    "{} of {} tasks need what containers of {} do not have: {}. Take a list without them, such as tasks={}, or "
    "OSWorld's own machine, env=osworld, or for VS Code an image that has it (docs/osworld.md). A task file of your "
    'own that needs less may say "needs": "files"'
)


def refusal(cfg, lists):
    with pytest.raises(ConfigError) as refused:
        check_osworld(cfg, lists)
    return str(refused.value)


def test_all_that_is_not_met_is_said_at_once_and_the_lists_that_are_run_alone_are_looked_at(run, labels):
    cfg = run(train=["bare"], held_out=["code", "bare", *(f"web{index}" for index in range(7))])
    check_osworld(cfg, ["train"])
    wanted = REFUSED.format(8, 9, "arpo/desktop:full", f"VS Code (code); {WEB}", "osworld_128_containers")
    assert refusal(cfg, ["train", "held_out"]) == wanted


def test_vs_code_is_what_the_label_of_the_image_says(run, labels):
    wanted = REFUSED.format(1, 2, "arpo/desktop:full", "VS Code (code)", "osworld_128_containers")
    assert refusal(run(train=["bare", "code"]), ["train"]) == wanted
    labels["mine"] = {"arpo.vscode": "0123"}
    check_osworld(run("env.make_env.machine.image=mine", train=["bare", "code"]), ["train"])
    wanted = REFUSED.format(1, 2, "mine", "live web (web0)", "osworld_128_vscode")
    assert refusal(run("env.make_env.machine.image=mine", train=["code", "web0"]), ["train"]) == wanted


def test_no_image_and_no_engine_have_no_vs_code(monkeypatch, labels, caplog):
    assert not has_vs_code("absent")

    def silent(image, timeout_s):
        raise EnvError("guest", "no Docker engine answers")

    monkeypatch.setattr(needs, "ask_engine", silent)
    assert not has_vs_code("arpo/desktop:full")
    assert "cannot tell whether arpo/desktop:full has VS Code: no Docker engine answers" in caplog.text


def test_a_virtual_machine_has_all(run, labels):
    check_osworld(run(env="osworld", train=["code", "web0"]), ["train"])


def test_the_images_of_other_nodes_are_not_looked_at_and_no_node_has_the_web(run, labels, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    check_osworld(run(train=["bare", "code"]), ["train"])
    with pytest.raises(ConfigError, match=r"1 of 2 tasks need .*: live web \(web0\)\. "):
        check_osworld(run(train=["code", "web0"]), ["train"])
    monkeypatch.setenv("RANK", "1")
    check_osworld(run(train=["web0"]), ["train"])


def test_a_task_that_is_left_out_is_said_once(run, labels, tmp_path, caplog):
    account = {"type": "googledrive", "parameters": {}}
    record = {"instruction": "Do it.", "config": [account], "evaluator": {"func": "exact_match"}}
    (tmp_path / "examples" / "os" / "account.json").write_text(json.dumps(record))
    cfg = run(train=["bare", "account"])
    cfg.tasks = {"train": {**cfg.tasks.train, "skip_unsupported": True}}
    check_osworld(cfg, ["train"])
    assert caplog.text.count("account.json: config[0].type 'googledrive'") == 1


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
    with pytest.raises(ConfigError, match=r"1 of 1 tasks need .*: live web \(web0\)\. "):
        check(cfg)
    assert not (tmp_path / "run").exists()


def test_an_evaluation_looks_at_the_lists_that_it_plays_alone(run, labels, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    looked_at = []
    monkeypatch.setattr("arpo.run.check.check_osworld", lambda _, lists: looked_at.append(list(lists)))
    words = [f"checkpoint={tmp_path}", "lists=[train]"]
    with suppress(ConfigError):  # that is no model
        check_evaluation(run(*words, kind="evaluate", train=["bare"], held_out=["web0"]))
    assert looked_at == [["train"]]
