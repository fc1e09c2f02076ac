"""The check of a whole run: who makes it."""

from pathlib import Path

import pytest

from arpo.errors import ConfigError
from arpo.run.build import compose
from arpo.run.check import check_callbacks, check_training


def test_of_the_processes_of_a_node_only_the_first_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cfg = compose("train", ["experiment=smoke", "iterations=0", f"paths.run_dir={tmp_path}/run"])
    monkeypatch.setenv("LOCAL_RANK", "1")
    check_training(cfg)
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(ConfigError, match="iterations must be a whole number of at least 1, got 0"):
        check_training(cfg)


@pytest.mark.parametrize("experiment", ["arpo_miniwob", "offline_rs", "offline_dpo"])
def test_a_run_that_asks_its_engine_anything_sends_it_the_policy(experiment: str) -> None:
    check_callbacks(compose("train", [f"experiment={experiment}"]))
    with pytest.raises(ConfigError, match=r"no callback sends the policy to the engine, .* callbacks\.weight_sync"):
        check_callbacks(compose("train", [f"experiment={experiment}", "~callbacks.weight_sync"]))
