"""OSWorld's tasks are refused where machines cannot set them up, or where files are missing that cannot be fetched."""

import json
import logging
import socket
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from arpo.envs.osworld.files import FileCache
from arpo.errors import ConfigError, EnvError
from arpo.host.containers import EngineFacts
from arpo.run import osworld
from arpo.run.build import compose
from arpo.run.check import check_evaluation, check_training
from arpo.run.osworld import has_vs_code, osworld_tasks_can_be_set_up
from arpo.run.rules import check_rules
from tests.envs.osworld.guest import running_web


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
        "account": {"config": [{"type": "googledrive", "parameters": {}}]},
        **{f"web{index}": {"config": [tabs]} for index in range(7)},
    }

    def make(*words, kind="train", env="osworld_container", urls=(), **lists):
        files = [{"url": url, "path": f"{index}.txt"} for index, url in enumerate(urls)]
        late = {"config": [{"type": "download", "parameters": {"files": files}}]}
        for name, config in (configs | {"late": late}).items():
            record = {"instruction": "Do it.", **config, "evaluator": {"func": "exact_match"}}
            (folder / f"{name}.json").write_text(json.dumps(record))
        places = [f"paths.run_dir={tmp_path}/run", f"paths.osworld_disk={tmp_path}"]
        cfg = compose(kind, ["experiment=smoke", f"env={env}", "engine=hf", *places, *words])
        cfg.requires, cfg.env.make_env.cache = {}, str(tmp_path / "cache")
        loader = {"_target_": "arpo.envs.osworld.tasks.osworld_tasks", "root": str(tmp_path), "skip_unsupported": True}
        cfg.tasks = {name: loader | {"ids": {"os": ids}} for name, ids in lists.items()}
        return cfg

    return make


@pytest.fixture
def labels(monkeypatch):
    """The labels of each image of an engine that knows no other."""
    images = {"arpo/desktop:full": {}}
    monkeypatch.setattr(
        osworld, "ask_engine", lambda image, timeout_s: EngineFacts("mine", Path("/"), images.get(image))
    )
    return images


@pytest.fixture
def closed():
    """The address of a port at which nothing listens, and nothing else will."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def check(cfg, *lists):
    if lists:
        OmegaConf.update(cfg, "lists", list(lists), force_add=True)
    check_rules(cfg, [osworld_tasks_can_be_set_up])


def refusal(cfg, *lists):
    with pytest.raises(ConfigError) as refused:
        check(cfg, *lists)
    return str(refused.value)


# --- what containers lack ---

WEB = "live web (web0, web1, web2, web3, web4, …)"
NEEDS = (
    "{} of {} tasks need what containers of {} do not have: {}. Take a list without them, such as tasks={}, or "
    "OSWorld's own machine, env=osworld, or for VS Code an image that has it (docs/osworld.md). A task file of your "
    'own that needs less may say "needs": "files"'
)


def test_all_that_is_not_met_is_said_at_once_and_the_lists_that_are_run_alone_are_looked_at(run, labels):
    cfg = run(train=["bare"], held_out=["code", "bare", *(f"web{index}" for index in range(7))])
    check(cfg, "train")
    wanted = NEEDS.format(8, 9, "arpo/desktop:full", f"VS Code (code); {WEB}", "osworld_128_containers")
    assert refusal(cfg, "train", "held_out") == wanted


def test_vs_code_is_what_the_label_of_the_image_says_and_no_image_and_no_engine_have_none(
    run, labels, monkeypatch, caplog
):
    wanted = NEEDS.format(1, 2, "arpo/desktop:full", "VS Code (code)", "osworld_128_containers")
    assert refusal(run(train=["bare", "code"])) == wanted
    labels["mine"] = {"arpo.vscode": "0123"}
    check(run("env.make_env.machine.image=mine", train=["bare", "code"]))
    wanted = NEEDS.format(1, 2, "mine", "live web (web0)", "osworld_128_vscode")
    assert refusal(run("env.make_env.machine.image=mine", train=["code", "web0"])) == wanted
    assert not has_vs_code("absent")

    def silent(image, timeout_s):
        raise EnvError("guest", "no Docker engine answers")

    monkeypatch.setattr(osworld, "ask_engine", silent)
    assert not has_vs_code("arpo/desktop:full")
    assert "it is not known whether arpo/desktop:full has VS Code: no Docker engine answers" in caplog.text


def test_a_virtual_machine_has_all_and_images_of_other_nodes_are_not_looked_at_though_no_node_has_the_web(
    run, labels, monkeypatch
):
    check(run(env="osworld", train=["code", "web0"]))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    check(run(train=["bare", "code"]))
    assert "1 of 2 tasks need " in refusal(run(train=["code", "web0"]))
    monkeypatch.setenv("RANK", "1")
    check(run(train=["web0"]))


def test_an_evaluation_looks_at_the_lists_that_it_plays_alone_and_a_task_that_is_left_out_is_said_once(
    run, labels, tmp_path, caplog
):
    check(run(train=["bare", "account"]))
    assert caplog.text.count("account.json: config[0].type 'googledrive'") == 1
    (tmp_path / "config.json").write_text("{}")
    words = [f"checkpoint={tmp_path}", "lists=[train]"]
    check_evaluation(run(*words, kind="evaluate", train=["bare"], held_out=["web0"]))


# --- what must be downloaded ---

FILES = (
    "1 of 2 tasks lack files in {}/cache (late), and there is no network to fetch them by: run `python -m arpo "
    "tasks fetch` where there is one, and copy the folder here (ARPO_OSWORLD_CACHE), or leave these tasks out"
)
BOTH = {"env": "osworld", "train": ["bare", "late"]}


def test_without_a_network_the_tasks_are_named_and_the_command(run, closed, tmp_path):
    cfg = run(urls=(f"{closed}/a", f"{closed}/b", "no address"), **BOTH, easy=["bare"])
    assert refusal(cfg, "train", "easy") == FILES.format(tmp_path)
    check(cfg, "easy")  # a list that is not run


@pytest.mark.parametrize("status", [200, 404, 500])
def test_with_a_network_the_run_starts_and_the_log_says_what_will_be_fetched(run, closed, caplog, status):
    with running_web() as web, caplog.at_level(logging.INFO):
        web.status = status  # a server that says no is a network
        check(run(urls=(f"{closed}/a", web.url("/b")), **BOTH))  # one server of several is down
    said = [record.getMessage() for record in caplog.records if record.name.startswith("arpo")]
    assert [line.partition(" in ")[0] for line in said] == ["1 of 2 tasks lack files"]
    assert said[0].endswith("`python -m arpo tasks fetch` does it beforehand")
    assert web.asked == [("/b", "HEAD")]


def test_what_is_in_the_cache_needs_no_network(run, closed, tmp_path):
    cfg = run(urls=(f"{closed}/a",), **BOTH)
    place = FileCache(tmp_path / "cache").place(f"{closed}/a", "late", "0.txt")
    place.parent.mkdir(parents=True)
    place.write_text("here")
    check(cfg)
    place.write_text("<!doctype html><title>Quota exceeded</title>")
    assert refusal(cfg) == FILES.format(tmp_path)


def test_the_folders_of_other_nodes_and_other_environments_are_not_looked_at(run, closed, monkeypatch):
    cfg = run(urls=(f"{closed}/a",), **BOTH)
    for name, value in (("RANK", "1"), ("RAY_ADDRESS", "10.0.0.1:6379")):
        with monkeypatch.context() as later:
            later.setenv(name, value)
            check(cfg)
    cfg.env.make_env._target_ = "arpo.envs.desktop.env.DockerDesktop"
    check(cfg)


@pytest.mark.parametrize("what", ["needs", "files"])
@pytest.mark.parametrize(("kind", "check_all"), [("train", check_training), ("evaluate", check_evaluation)])
def test_a_training_and_an_evaluation_are_refused_before_anything_starts(
    run, labels, closed, tmp_path, kind, check_all, what
):
    (tmp_path / "config.json").write_text("{}")  # of a checkpoint, as far as anything looks before
    words = [f"checkpoint={tmp_path}", "lists=[train]"] if kind == "evaluate" else []
    wrong = {"train": ["web0"]} if what == "needs" else BOTH | {"urls": (f"{closed}/a",)}
    with pytest.raises(ConfigError, match="tasks need what containers" if what == "needs" else "tasks lack files"):
        check_all(run(*words, kind=kind, **wrong))
    assert not (tmp_path / "run").exists()
