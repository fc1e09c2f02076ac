import json

from arpo.apps.dataset.card import Census, data_card
from arpo.apps.dataset.columns import STEP, TRAJECTORY
from arpo.types import Outcome
from tests.rollout.trajectories import make_trajectory


def census():
    made = Census()
    for number, (reward, outcome) in enumerate(
        [(1.0, Outcome.FINISHED), (0.0, Outcome.MAX_STEPS), (0.5, Outcome.FINISHED)]
    ):
        made.add(make_trajectory(f"0/0/{number}", task_id=f"task{number % 2}", task_reward=reward, outcome=outcome))
    return made


def test_a_card_says_how_many_there_are_and_how_they_ended(tmp_path):
    card = data_card("a run", {"train": census()}, tmp_path)
    # 3 episodes of 2 steps; only the first reward lies above 0.5
    assert "| train | 3 | 6 | 33.3% | 2 | 1 | finished 2, max_steps 1 |" in card
    assert "  - split: train\n    path: data/train.parquet\n" in card
    assert card.startswith("---\nconfigs:\n")


def test_a_card_shows_how_to_load_a_split_that_exists_and_says_what_a_script_made(tmp_path):
    card = data_card("a run", {"demonstration": census()}, tmp_path)
    assert 'load_dataset("FOLDER")["demonstration"]' in card
    assert "Those of the split `demonstration` are a script's" in card
    assert "a script's" not in data_card("a run", {"eval": census(), "train": census()}, tmp_path)
    assert '["train"]' in data_card("a run", {"eval": census(), "train": census()}, tmp_path)


def test_a_card_explains_every_column(tmp_path):
    card = data_card("a run", {"train": census()}, tmp_path)
    for name in (*TRAJECTORY, *STEP):
        assert f"| `{name}` |" in card


def test_a_card_names_the_command_and_the_commit_of_the_run(tmp_path):
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
