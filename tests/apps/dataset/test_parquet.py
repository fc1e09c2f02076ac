"""Episodes as Parquet; what needs pyarrow is left out where it is not installed."""

import builtins
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from arpo.__main__ import main
from arpo.apps.dataset import parquet
from arpo.apps.dataset.parquet import export_parquet, restore
from arpo.datamodules.examples import read_examples, successes
from arpo.errors import ArpoError, ConfigError
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Trajectory, screenshot_key
from tests.rollout.trajectories import make_png, make_trajectory, scripted


@pytest.fixture
def run(tmp_path: Path) -> Path:
    store = TrajectoryStore(tmp_path / "run" / "trajectories")
    for number, name in enumerate(("0/0/0", "0/0/1", "2/0/0", "eval-2/held_out/0/0")):
        store.write(make_trajectory(name, steps=number + 1, task_reward=number % 2))
    return tmp_path / "run"


def test_what_was_stored_is_what_is_read_back(run, tmp_path, monkeypatch):
    pq = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(parquet, "ROWS", 2)  # two groups of rows
    export_parquet(run, tmp_path / "made")
    table = pq.read_table(tmp_path / "made" / "data" / "train.parquet")
    rows = table.to_pylist()
    store = TrajectoryStore(run / "trajectories")
    assert [row["id"] for row in rows] == ["0/0/0", "0/0/1", "2/0/0"]
    for row in rows:
        stored = store.load_screenshots(store.get(row["id"]))
        assert (row["task_reward"], row["seed"], row["outcome"]) == (stored.task_reward, stored.seed, "finished")
        for step, told in zip(stored.steps, row["steps"], strict=True):
            assert told["screenshot"]["bytes"] == stored.screenshots[step.screenshot]
        for exchange, told in zip(stored.exchanges, row["exchanges"], strict=True):
            assert tuple(told["sampler_logprobs"]) == exchange.sampler_logprobs
            assert tuple(told["response_ids"]) == exchange.response_ids
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["last_screenshot"] == {"_type": "Image"}
    assert pq.read_table(tmp_path / "made" / "data" / "eval.parquet").num_rows == 1
    assert (tmp_path / "made" / "README.md").exists()


def test_groups_of_rows_are_small_enough_to_be_read_whole(tmp_path, monkeypatch):
    """Arrow puts no more than 2 GiB of pictures into a nested column: 64 episodes of 35 screenshots of 1 MiB."""
    pq = pytest.importorskip("pyarrow.parquet")
    store = TrajectoryStore(tmp_path / "run" / "trajectories")
    for number, (steps, size) in enumerate([(1, 100), (1, 100), (3, 4000), (9, 4000), (1, 100), (2, 3000), (1, 100)]):
        made = make_trajectory(f"0/0/{number}", steps=steps, shade=20 * number)
        store.write(replace(made, screenshots={key: os.urandom(size) for key in made.screenshots}))
    monkeypatch.setattr(parquet, "GROUP_BYTES", 20_000)
    export_parquet(tmp_path / "run", tmp_path / "made")
    file = pq.ParquetFile(tmp_path / "made" / "data" / "train.parquet")
    groups = [file.read_row_group(n) for n in range(file.num_row_groups)]
    # 16,000 bytes of pictures and some words fit beside two small rows, 40,000 fit nowhere
    assert [group.num_rows for group in groups] == [3, 1, 3]
    assert [group.nbytes <= 20_000 for group in groups] == [True, False, True]
    assert [row["id"] for group in groups for row in group.to_pylist()] == [f"0/0/{n}" for n in range(7)]


def test_the_folder_loads_as_a_dataset_with_pictures(run, tmp_path):
    datasets = pytest.importorskip("datasets")
    export_parquet(run, tmp_path / "made")
    loaded = datasets.load_dataset(str(tmp_path / "made"), cache_dir=str(tmp_path / "cache"))
    assert {split: len(loaded[split]) for split in loaded} == {"train": 3, "eval": 1}
    last = loaded["train"][2]
    assert (last["id"], len(last["steps"])) == ("2/0/0", 3)
    assert last["steps"][0]["screenshot"].size == (4, 4)


def test_a_split_whose_only_record_was_cut_is_left_out(run, tmp_path):
    pytest.importorskip("pyarrow")
    (cut,) = (run / "trajectories" / "eval").iterdir()
    cut.write_bytes(cut.read_bytes()[:-5])
    assert list(export_parquet(run, tmp_path / "made")) == ["train"]
    assert [path.name for path in (tmp_path / "made" / "data").iterdir()] == ["train.parquet"]
    for path in (run / "trajectories" / "train").iterdir():
        path.write_bytes(b"")
    with pytest.raises(ConfigError, match="holds no episodes"):
        export_parquet(run, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_what_cannot_be_exported_leaves_nothing_behind(run, tmp_path, caplog):
    assert main(["episodes", str(tmp_path), "--to", "parquet"]) == 2
    assert "holds no episodes: name the folder of a run" in caplog.text
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="there exists: name another folder with --out"):
        export_parquet(run, tmp_path / "there")
    pytest.importorskip("pyarrow")
    next((run / "trajectories" / "screens").glob("*/*.png")).unlink()
    with pytest.raises(ArpoError, match="has lost its screenshot"):
        export_parquet(run, tmp_path / "made")
    assert not list(tmp_path.glob("made*"))


def test_a_package_that_is_missing_is_named(run, tmp_path, monkeypatch):
    whole = builtins.__import__

    def without_arrow(name, *arguments, **options):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return whole(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_arrow)
    with pytest.raises(ConfigError, match="need the package pyarrow, which is not installed: `uv pip install"):
        export_parquet(run, tmp_path / "made")


def test_a_dataset_becomes_the_store_that_it_was_made_of(run, tmp_path, caplog):
    pytest.importorskip("pyarrow")
    caplog.set_level("INFO")
    made, back = tmp_path / "made", tmp_path / "back"
    assert main(["episodes", str(run), "--to", "parquet", "--out", str(made)]) == 0
    assert main(["episodes", str(made), "--to", "store", "--out", str(back)]) == 0
    assert f"{back} holds 4 episodes: source={back}" in caplog.text
    before, after = TrajectoryStore(run / "trajectories"), TrajectoryStore(back)
    assert after.iterations() == before.iterations()
    for split, iteration in before.iterations():
        for trajectory in map(before.load_screenshots, before.read(split, iteration)):
            found = after.load_screenshots(after.get(trajectory.id))
            assert found.screenshots == trajectory.screenshots
            # a dataset holds no half of a character
            utf_8 = trajectory.instruction.encode(errors="replace").decode()
            assert found == replace(trajectory, instruction=utf_8)


def as_a_tree(trajectory: Trajectory) -> Trajectory:
    """The episode of a foreign agent: a branch, a root of another model, and a picture that is no step's screen."""
    picture = make_png(200)
    first = trajectory.exchanges[0]
    shown = replace(first.pictures[0], key=screenshot_key(picture))
    others = (replace(first, parent=0), replace(first, parent=None, pictures=(shown,), trained=False, delivered=1))
    return replace(
        trajectory,
        exchanges=(*trajectory.exchanges, *others),
        screenshots={**trajectory.screenshots, shown.key: picture},
    )


def test_a_hundred_episodes_through_datasets_are_the_same_demonstrations_foreign_agents_among_them(tmp_path):
    datasets = pytest.importorskip("datasets", reason="the extra `parquet` has it: uv pip install pyarrow datasets")
    store, kinds = TrajectoryStore(tmp_path / "stored"), (scripted, make_trajectory)
    for number in range(100):
        name = f"demonstration-0/{number}/0" if number % 2 else f"{number // 10}/{number}/0"
        facts = {"task_id": f"task-{number}", "task_reward": float(number % 3 > 0), "shade": number}
        made = replace(kinds[number % 2 == 0](name, **facts), instruction=f"Click on {number}.")
        store.write(as_a_tree(made) if number % 10 == 0 else made)
    export_parquet(store.root, tmp_path / "made")
    files = {path.stem: str(path) for path in (tmp_path / "made" / "data").iterdir()}
    loaded = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))
    (tmp_path / "again" / "data").mkdir(parents=True)
    for split, rows in loaded.items():  # as one filters and shares them
        rows.to_parquet(str(tmp_path / "again" / "data" / f"{split}.parquet"))
    assert restore(tmp_path / "again", tmp_path / "back") == 100
    back = TrajectoryStore(tmp_path / "back")
    before, after = (read_examples(each, successes, lambda each: each.task_reward > 0.5) for each in (store, back))
    assert len(before) == sum(number % 3 > 0 for number in range(100))
    assert after == before
    assert sum(not each.has_a_step_an_exchange for (each,) in after if each.exchanges) == 6  # tens, but 0, 30, 60, 90
    for (one,), (other,) in zip(before, after, strict=True):
        assert back.load_screenshots(other).screenshots == store.load_screenshots(one).screenshots


def test_what_is_no_dataset_is_refused_and_nothing_is_left(run, tmp_path, caplog):
    pq = pytest.importorskip("pyarrow.parquet")
    made, back = tmp_path / "made", tmp_path / "back"
    export_parquet(run, made)
    table = pq.read_table(made / "data" / "train.parquet")
    pq.write_table(table.drop_columns("instruction"), made / "data" / "train.parquet")
    assert main(["episodes", str(made), "--to", "store", "--out", str(back)]) == 2
    assert "train.parquet is not of a dataset of episodes: ValidationError: Object missing" in caplog.text
    (made / "data" / "train.parquet").write_bytes(b"PAR1 no")
    assert main(["episodes", str(made), "--to", "store", "--out", str(back)]) == 2
    assert main(["episodes", str(tmp_path), "--to", "store", "--out", str(back)]) == 2
    assert "holds no dataset" in caplog.text
    assert main(["episodes", str(made), "--to", "store", "--out", str(run)]) == 2
    assert not back.exists()
