"""The model card of an exported policy."""

import json

import pytest
import yaml

from arpo.errors import ConfigError
from arpo.evaluation.card import model_card
from arpo.evaluation.scores import Score

CONFIG = {
    "seed": 2,
    "iterations": 50,
    "warmstart": "warmstart_fake",
    "model": {"path": "outputs/warmstart_fake/default/policy"},
    "tasks": {"train": {"_target_": "arpo.envs.fake.fake_tasks", "count": 4}},
    "evaluation": {"rollouts_per_task": 4, "temperature": 0.6, "protocol": "hard"},
}


def score(name: str, episodes: int, successes: int) -> dict:
    return Score(name, episodes, successes, task_reward=0.5, steps=2.0, outcomes={}).to_json()


def evaluation(run, iteration: int, successes: int) -> None:
    result = {"overall": score("all", 8, successes), "domains": [score("click-test", 8, successes)]}
    (run / "eval").mkdir(exist_ok=True)
    (run / "eval" / f"iteration_{iteration:06d}.json").write_text(json.dumps({"held_out": result}))


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "arpo_fake" / "seed=2"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    start = {"command": ["train.py", "experiment=smoke", "lists=[a, b]"], "git": {"commit": "0123abc", "dirty": False}}
    (folder / "run.json").write_text(json.dumps({"starts": [start]}))
    return folder


def test_a_card_names_base_tasks_command_and_commit_below_a_header_that_a_hub_reads(run):
    card = model_card(run, 50)
    _, header, _ = card.split("---\n", 2)
    assert yaml.safe_load(header)["pipeline_tag"] == "image-text-to-text"
    assert "# arpo_fake seed=2, iteration 50\n" in card
    assert "Base: `outputs/warmstart_fake/default/policy`, which the warm start `warmstart_fake` wrote." in card
    assert "Made by `python train.py experiment=smoke 'lists=[a, b]'` at commit `0123abc`." in card
    assert "```yaml\n_target_: arpo.envs.fake.fake_tasks\ncount: 4\n```" in card
    (run / "config.yaml").write_text(yaml.safe_dump({"model": {"policy": {"path": "DIR"}}}))
    (run / "run.json").unlink()
    bare = model_card(run, 3)  # what was not recorded is left open
    assert "Base: `DIR`." in bare
    assert "Made by" not in bare
    assert "Not recorded." in bare


def test_the_success_stands_with_its_interval_beside_that_before_training(run):
    evaluation(run, 0, 2)
    evaluation(run, 50, 6)
    card = model_card(run, 50)
    # Wilson, n = 8, p = 0.75, z = 1.96: (0.75 + 0.240 ± 1.96 * sqrt(0.0234375 + 0.0150)) / 1.480 = 0.669 ± 0.260
    assert "| held_out: domain | episodes | success | 95 % interval | before training |" in card
    assert "| all | 8 | 75.0 % | 40.9 – 92.9 % | 25.0 % |" in card
    assert "| click-test | 8 | 75.0 % | 40.9 – 92.9 % | 25.0 % |" in card
    assert "`rollouts_per_task=4`, `temperature=0.6`, `protocol=hard`" in card


def test_an_evaluation_of_another_iteration_is_no_claim_about_this_policy(run):
    evaluation(run, 0, 2)
    evaluation(run, 50, 6)
    for iteration in (45, None):
        card = model_card(run, iteration)
        assert "This policy was not evaluated." in card
        assert "75.0 %" not in card
    first = model_card(run, 0)  # which is not compared with itself
    assert "| all | 8 | 25.0 % |" in first
    assert "before training" not in first


@pytest.mark.parametrize(
    "text", ["{", "5", "[1]", '{"held_out": 5}', '{"held_out": {}}', '{"held_out": {"overall": 1}}']
)
def test_a_broken_evaluation_is_named(run, text):
    evaluation(run, 50, 6)
    (run / "eval" / "iteration_000050.json").write_text(text)
    with pytest.raises(ConfigError, match=r"iteration_000050\.json is broken"):
        model_card(run, 50)
