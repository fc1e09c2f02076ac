"""A run whose tasks lack files starts where they can be fetched, and is refused where they cannot."""

import json
import logging
import socket

import pytest
from omegaconf import OmegaConf

from arpo.envs.osworld.files import FileCache
from arpo.errors import ConfigError
from arpo.run.before.osworld import check_osworld
from arpo.run.build import compose
from arpo.run.check import check_evaluation, check_training
from tests.envs.osworld.web import running_web

REFUSED = (
    r"1 of 2 tasks lack files in .*cache \(late\), and there is no network to fetch them by: run `python -m arpo "
    r"tasks fetch` where there is one, and copy the folder here \(ARPO_OSWORLD_CACHE\), or leave these tasks out"
)


@pytest.fixture
def web():
    with running_web() as web:
        yield web


@pytest.fixture
def nobody():
    """The address of a port where nobody listens, and nobody else will."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Makes the configuration of a run with two tasks, of which the second downloads some addresses."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    folder = tmp_path / "examples" / "os"
    folder.mkdir(parents=True)

    def make(*urls, env="arpo.envs.osworld.env.OSWorldEnv"):
        files = [{"url": url, "path": f"{index}.txt"} for index, url in enumerate(urls)]
        steps = [{"type": "download", "parameters": {"files": files}}]
        for name, config in (("soon", []), ("late", steps)):
            record = {"instruction": "Do it.", "config": config, "evaluator": {"func": "exact_match"}}
            (folder / f"{name}.json").write_text(json.dumps(record))
        loader = {"_target_": "arpo.envs.osworld.tasks.osworld_tasks", "root": str(tmp_path)}
        return OmegaConf.create(
            {
                "env": {"make_env": {"_target_": env, "cache": str(tmp_path / "cache")}},
                "tasks": {
                    "train": {**loader, "ids": {"os": ["soon", "late"]}},
                    "easy": {**loader, "ids": {"os": ["soon"]}},
                    "held_out": [],
                },
            }
        )

    return make


def test_without_a_network_the_tasks_are_named_and_the_command(run, nobody):
    with pytest.raises(ConfigError, match=REFUSED):
        check_osworld(run(f"{nobody}/a", f"{nobody}/b", "no address"), ["train", "easy", "held_out"])


def test_with_a_network_the_run_starts_and_the_log_says_what_will_be_fetched(run, web, nobody, caplog):
    with caplog.at_level(logging.INFO):
        check_osworld(run(f"{nobody}/a", web.url("/b")), ["train"])  # one server of several is down
    assert [
        record.getMessage().partition(" in ")[0] for record in caplog.records if record.name.startswith("arpo")
    ] == ["1 of 2 tasks lack files"]
    assert caplog.text.rstrip().endswith("`python -m arpo tasks fetch` does it beforehand")
    assert web.asked == [("/b", "HEAD")]


@pytest.mark.parametrize("status", [404, 405, 500])
def test_a_server_that_says_no_is_a_network(run, web, status):
    web.status = status
    check_osworld(run(web.url("/b")), ["train"])


def test_what_is_in_the_cache_needs_no_network(run, nobody, tmp_path):
    cfg = run(f"{nobody}/a")
    place = FileCache(tmp_path / "cache").place(f"{nobody}/a", "late", "0.txt")
    place.parent.mkdir(parents=True)
    place.write_text("here")
    check_osworld(cfg, ["train"])
    place.write_text("<!doctype html><title>Quota exceeded</title>")
    with pytest.raises(ConfigError, match=REFUSED):
        check_osworld(cfg, ["train"])


def test_a_list_that_is_not_run_and_an_environment_that_downloads_nothing_are_not_looked_at(run, nobody):
    check_osworld(run(f"{nobody}/a"), ["easy", "held_out"])
    check_osworld(run(f"{nobody}/a", env="arpo.envs.desktop.env.DockerDesktop"), ["train"])


def test_neither_are_the_folders_of_other_nodes(run, nobody, monkeypatch):
    with monkeypatch.context() as later:
        later.setenv("RANK", "1")
        check_osworld(run(f"{nobody}/a"), ["train"])
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    check_osworld(run(f"{nobody}/a"), ["train"])


@pytest.mark.parametrize(
    ("kind", "words", "check"),
    [
        ("train", ["engine=hf"], check_training),
        ("evaluate", ["engine=hf", "checkpoint={model}", "lists=[train]"], check_evaluation),
    ],
)
def test_a_training_and_an_evaluation_are_refused_before_anything_starts(run, nobody, tmp_path, kind, words, check):
    given = run(f"{nobody}/a")
    (tmp_path / "config.json").write_text("{}")  # of a checkpoint, as far as anybody looks before
    places = [f"paths.run_dir={tmp_path}/run", f"paths.osworld_disk={tmp_path}"]
    cfg = compose(kind, ["experiment=smoke", "env=osworld", *(word.format(model=tmp_path) for word in words), *places])
    cfg.requires, cfg.tasks, cfg.env.make_env.cache = {}, given.tasks, given.env.make_env.cache
    with pytest.raises(ConfigError, match=REFUSED):
        check(cfg)
    assert not (tmp_path / "run").exists()
