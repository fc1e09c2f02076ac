"""The columns of a dataset, and the card that explains them."""

import json
from dataclasses import replace

import pytest

from arpo.apps.dataset.card import EXCHANGE, STEP, TRAJECTORY, Census, data_card, row, trajectory_of
from arpo.types import Outcome
from tests.rollout.trajectories import foreign, make_trajectory


def test_a_row_has_every_column_and_the_pictures_inside():
    trajectory = make_trajectory(steps=2, outcome=Outcome.MAX_STEPS)
    made = row(trajectory)
    assert made.keys() == TRAJECTORY.keys()
    assert (made["id"], made["outcome"], made["task_reward"], made["seed"]) == ("3/0/1", "max_steps", 1.0, 2**63 - 1)
    assert made["image_window"] is None
    for step, found in zip(trajectory.steps, made["steps"], strict=True):
        assert found.keys() == STEP.keys()
        assert found["screenshot"]["bytes"] == trajectory.screenshots[step.screenshot]
    for exchange, found in zip(trajectory.exchanges, made["exchanges"], strict=True):
        assert found.keys() == EXCHANGE.keys()
        assert tuple(found["response_ids"]) == (4, 151_645)
        assert tuple(found["sampler_logprobs"]) == exchange.sampler_logprobs  # to the last bit
    assert made["last_screenshot"]["path"] == f"{trajectory.last_screenshot}.png"
    assert row(replace(trajectory, last_screenshot=""))["last_screenshot"] is None  # it was not taken
    assert row(make_trajectory())["instruction"] == "click “red” ?"  # half a surrogate pair


def test_a_row_becomes_the_trajectory_that_it_was_made_of_and_one_without_a_column_is_refused():
    made = replace(make_trajectory(steps=2), instruction="plain")
    back = trajectory_of(row(made))
    assert back == made
    assert back.screenshots == made.screenshots
    with pytest.raises(ValueError, match="missing required field `instruction`"):
        trajectory_of({name: value for name, value in row(made).items() if name != "instruction"})


def test_a_tree_of_exchanges_comes_back_from_a_row_with_the_pictures_that_no_step_shows():
    made = foreign()
    assert len(row(made)["pictures"]) == 2
    back = trajectory_of(row(made))
    assert (back, back.screenshots) == (made, made.screenshots)


def census():
    made = Census()
    for number, (reward, outcome) in enumerate(
        [(1.0, Outcome.FINISHED), (0.0, Outcome.MAX_STEPS), (0.5, Outcome.FINISHED)]
    ):
        made.add(make_trajectory(f"0/0/{number}", task_id=f"task{number % 2}", task_reward=reward, outcome=outcome))
    return made


def test_a_card_counts_explains_every_column_and_names_the_command_and_the_commit_of_the_run(tmp_path):
    card = data_card("a run", {"train": census()}, tmp_path)
    # 3 episodes of 2 steps; only the first reward lies above 0.5
    assert "| train | 3 | 6 | 33.3% | 2 | 1 | finished 2, max_steps 1 |" in card
    assert "  - split: train\n    path: data/train.parquet\n" in card
    assert card.startswith("---\nconfigs:\n")
    assert all(f"| `{name}` |" in card for name in (*TRAJECTORY, *STEP, *EXCHANGE))
    script = data_card("a run", {"demonstration": census()}, tmp_path)
    assert 'load_dataset("FOLDER")["demonstration"]' in script
    assert "Those of the split `demonstration` are a script's" in script
    two = data_card("a run", {"eval": census(), "train": census()}, tmp_path)
    assert "a script's" not in two
    assert '["train"]' in two
    start = {"command": ["train.py", "experiment=smoke"], "git": {"commit": "0123abc", "dirty": False}}
    (tmp_path / "run.json").write_text(json.dumps({"starts": [{"command": ["old"], "git": None}, start]}))
    card = data_card("a run", {"train": census()}, tmp_path)
    assert "Made by `python train.py experiment=smoke` at commit `0123abc`." in card
    start["git"]["dirty"] = True
    (tmp_path / "run.json").write_text(json.dumps({"starts": [start | {"command": ["train.py", "lists=[a, b]"]}]}))
    changed = data_card("a run", {"train": census()}, tmp_path)
    assert "Made by `python train.py 'lists=[a, b]'` at commit `0123abc` with local changes." in changed
    assert "Made by" not in data_card("a run", {"train": census()}, tmp_path / "elsewhere")
    for broken in ("{", "[]", '{"starts": []}', '{"starts": [{}]}', '{"starts": [{"command": 5}]}'):
        (tmp_path / "run.json").write_text(broken)
        assert "Made by" not in data_card("a run", {"train": census()}, tmp_path)
