"""The folder that opens in a browser, that its numbers are the trainer's, and what the index has beside episodes."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from arpo.apps.viewer import site as viewer
from arpo.apps.viewer.site import RunData, Site
from arpo.errors import ConfigError
from arpo.evaluation.run_folder import read_folder
from arpo.rollout.storage import TrajectoryStore, read_update, update_path, write_update
from arpo.types import Picture, screenshot_key
from tests.apps.viewer.support import (
    chunk_of,
    index_of,
    make_episode,
    make_group,
    make_png,
    numbers_of,
    read_script,
    small_run,
    write_numbers,
    write_run,
)
from tests.modules.conftest import fit, loaded_policy, make_module, make_policy, rows, sampled_logprobs  # noqa: F401
from tests.modules.conftest import make_group as trained_group  # noqa: F401


def written(out):
    return {path.relative_to(out).as_posix(): path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}


def test_the_pictures_of_an_exchange_are_in_the_chunk_though_no_step_shows_them(tmp_path):
    made, png = make_episode(), make_png(200)
    other = Picture(screenshot_key(png), 168, 210)
    exchanges = [replace(each, pictures=(*each.pictures, other)) for each in made.exchanges]
    shown = {**made.screenshots, other.key: png}
    write_run(tmp_path, [replace(made, exchanges=tuple(exchanges), screenshots=shown)])
    Site([tmp_path], tmp_path / "view").write()
    assert sorted(key for key, *_ in chunk_of(tmp_path / "view", "0/0")["pictures"]) == sorted(shown)


def named(number, group):
    members = tuple(replace(t, id=f"0/{number}/{member}") for member, t in enumerate(group.trajectories))
    return replace(group, trajectories=members)


def test_the_numbers_in_the_viewer_are_the_trainers(make_module, make_policy, trained_group, tmp_path):  # noqa: F811
    """Advantages, log-probabilities and ratios of a group, computed once more from the record alone."""
    groups = [named(0, trained_group(1.0, 0.0, 0.0, first=0)), named(1, trained_group(0.0, 1.0, first=3))]
    module = make_module(minibatches=2, optimizer=partial(torch.optim.SGD, lr=0.05))
    module.measures_after = True
    before = make_module()
    before.policy.load_state_dict(module.policy.state_dict())
    store = write_run(tmp_path, [t for group in groups for t in group.trajectories])
    fit(module, groups)
    write_update(store.root, module.last_update)
    Site([tmp_path], tmp_path / "view").write()
    index = index_of(tmp_path / "view")["episodes"]
    ratios = []
    for number, group in enumerate(groups):
        members = chunk_of(tmp_path / "view", f"0/{number}")["members"]
        for position, (trajectory, member) in enumerate(zip(group.trajectories, members, strict=True)):
            at = index["id"].index(trajectory.id)
            rewards = np.array([t.task_reward for t in group.trajectories])
            expected = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
            assert index["advantage"][at] == pytest.approx(expected[position], abs=1e-6)
            numbers = numbers_of(member)
            record = store.load_screenshots(store.get(trajectory.id))
            assert numbers["old_logprobs"] == pytest.approx(sampled_logprobs(before, record), abs=1e-6, rel=1e-6)
            assert numbers["after_logprobs"] == pytest.approx(sampled_logprobs(module, record), abs=1e-6, rel=1e-6)
            assert numbers["logprobs"].tolist() == rows(module, "logprobs")[number, position].tolist()
            ratios += np.exp(numbers["logprobs"] - numbers["old_logprobs"]).tolist()
    assert sorted(ratios) == pytest.approx(sorted(module.last_update.ratios().tolist()), abs=1e-6)


def test_a_group_that_begins_with_the_replay_of_another_task_is_one_of_its_own_task(tmp_path):
    old = [replace(each, task_id="other") for each in make_group(0, 0, 1.0)]
    new = [replace(each, task_id="own") for each in make_group(3, 0, 0.0, 0.0)]
    store = write_run(tmp_path, [*old, *new])
    write_numbers(store, 3, [[old[0], new[1]]], g0=0)
    Site([tmp_path], tmp_path / "view").write()
    index = index_of(tmp_path / "view")
    numbers = zip(index["groups"]["key"], index["groups"]["task"], strict=True)
    assert {key: index["tasks"][number][0] for key, number in numbers} == {"0/0": "other", "3/0": "own"}


def test_everything_that_is_written_once_is_written_again_only_where_it_changes(tmp_path):
    store = small_run(tmp_path)
    site = Site([tmp_path], tmp_path / "view")
    assert site.write()
    assert not site.write()
    before = written(tmp_path / "view")
    store.write(make_episode("1/1/2"))
    assert site.write()
    changed = {name for name, time in written(tmp_path / "view").items() if before.get(name) != time}
    group = index_of(tmp_path / "view")["groups"]
    chunk = group["file"][group["key"].index("1/1")]
    assert changed == {f"data/a/g/{chunk}.js", "data/a/t/train-1.js", "data/a/index.js", "data/site.js"}


def test_a_chunk_stays_for_the_index_before_the_last_one_and_no_longer(tmp_path):
    store = write_run(tmp_path, make_group(0, 0, 1.0))
    site = Site([tmp_path], tmp_path / "view")
    names = []
    for member in range(1, 4):
        site.write()
        names += index_of(tmp_path / "view")["groups"]["file"]
        store.write(make_episode(f"0/0/{member}"))
    assert len(set(names)) == 3
    assert {path.stem for path in (tmp_path / "view" / "data" / "a" / "g").iterdir()} == set(names[1:])


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("metrics.jsonl", '{"step": 1, "policy/entropy": 0.5}\n', "curves"),
        ("run.json", '{"starts": [{"status": "running"}]}', "origin"),
        ("eval/iteration_000001.json", "{", "broken"),
    ],
)
def test_a_file_beside_the_episodes_that_changes_is_shown(tmp_path, name, text, shown):
    small_run(tmp_path)
    site = Site([tmp_path], tmp_path / "view", live=True)
    site.write()
    assert not index_of(tmp_path / "view")[shown]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    assert site.write()
    found = index_of(tmp_path / "view")
    assert found[shown]
    if shown == "broken":
        assert found[shown] == [["", 0, f"{name} is broken", ""]]


def test_what_is_written_while_the_viewer_looks_is_shown_at_the_next_look(tmp_path):
    members = make_group(0, 0, 1.0, 0.0)
    store = write_run(tmp_path, members[:1])

    class Busy(RunData):
        """A run that ends an episode while the viewer notes the times of its files."""

        def _stamps(self):
            if not any(member.id == members[1].id for member in store.read("train", 0)):
                store.write(members[1])
            return super()._stamps()

    site = Site([tmp_path], tmp_path / "view", live=True)
    site.runs = [Busy(tmp_path, "a", tmp_path / "view")]
    site.write()
    site.write()
    assert index_of(tmp_path / "view")["episodes"]["id"] == ["0/0/0", "0/0/1"]


def test_of_two_runs_one_may_go_on_alone(tmp_path):
    stores = [write_run(tmp_path / name, make_group(0, 0, 1.0)) for name in ("one", "two")]
    site = Site([tmp_path / "one", tmp_path / "two"], tmp_path / "view", live=True)
    assert site.write()
    assert not site.write()
    before = written(tmp_path / "view")
    stores[1].write(make_episode("0/0/1"))
    assert site.write()
    changed = {name for name, time in written(tmp_path / "view").items() if before.get(name) != time}
    assert {"data/site.js", "data/b/index.js"} <= changed
    assert not any(name.startswith("data/a/") for name in changed)


def test_what_was_said_lies_beside_it_for_the_search(tmp_path):
    store = write_run(tmp_path, make_group(3, 0, 1.0, 0.0))
    site = Site([tmp_path], tmp_path / "view", live=True)
    site.write()
    texts = tmp_path / "view" / "data" / "a" / "t" / "train-3.js"
    said = "Thought: I look.\nAction: click(start_box='(10,20)')\nThought: I look.\nAction: finished()"
    assert read_script(texts)[0] == ["3/0", 0, said]
    assert [row[:2] for row in read_script(texts)] == [["3/0", 0], ["3/0", 1]]
    store.write(make_episode("3/1/0"))
    site.write()
    assert [row[:2] for row in read_script(texts)] == [["3/0", 0], ["3/0", 1], ["3/1", 0]]


def test_a_chunk_that_is_lost_or_whose_update_was_taken_again_is_written_again(tmp_path):
    store, out = small_run(tmp_path / "run"), tmp_path / "view"
    site = Site([tmp_path / "run"], out)
    site.write()
    files = [path for path in out.rglob("*") if path.is_file()]
    assert not [path.name for path in files if str(tmp_path) in path.read_text()]  # says where the run lay
    chunk = next((out / "data" / "a" / "g").iterdir())
    whole = chunk.read_bytes()
    chunk.unlink()
    Site([tmp_path / "run"], out).write()
    assert chunk.read_bytes() == whole
    record = read_update(update_path(store.root, 0))
    write_update(store.root, replace(record, numbers={"logprobs": record.numbers["logprobs"] - 1}))
    site.write()
    numbers = numbers_of(chunk_of(out, "0/0")["members"][0])
    assert list(numbers) == ["logprobs"]
    assert numbers["logprobs"].tolist() == (record.tokens(0)["logprobs"] - 1).tolist()


def test_what_holds_no_episodes_is_told_from_what_is_not_there(tmp_path):
    write_run(tmp_path / "outputs" / "x" / "default", make_group(0, 0, 1.0))
    (tmp_path / "empty").mkdir()
    (tmp_path / "warm").mkdir()
    (tmp_path / "warm" / "config.yaml").touch()
    (tmp_path / "file").touch()
    for run, said in {
        "nowhere": "there is no folder .*nowhere: name that of a run, as outputs/arpo_miniwob/default",
        "file": "there is no folder",
        "empty": "holds no episodes: name the folder of a run",
        "warm": "holds no episodes: none has ended yet, or",
        "outputs": "but runs: name one of them, as .*outputs/x/default$",
        "outputs/x": "but runs: name one of them, as .*outputs/x/default$",
    }.items():
        with pytest.raises(ConfigError, match=said):
            Site([tmp_path / run], tmp_path / "view")


def test_a_store_alone_can_be_looked_at_and_one_of_broken_lines_alone(tmp_path):
    store: TrajectoryStore = small_run(tmp_path)
    Site([store.root], tmp_path / "elsewhere").write()
    assert index_of(tmp_path / "elsewhere")["screens"] == "../trajectories/screens"
    (tmp_path / "broken" / "trajectories" / "train").mkdir(parents=True)
    (tmp_path / "broken" / "trajectories" / "train" / "iteration_000000.jsonl").write_text("{}\n")
    Site([tmp_path / "broken"], tmp_path / "view").write()
    assert index_of(tmp_path / "view")["broken"][0][:2] == ["train/iteration_000000.jsonl", 1]


def test_the_index_has_curves_evaluations_and_the_last_start_of_a_run_as_far_as_their_files_are_whole(tmp_path):
    files = read_folder(tmp_path)
    assert (viewer.threshold_of(files.config), viewer.model_of(files.config, tmp_path)) == (0.5, None)
    assert (viewer.curves_of(files), viewer.evaluations_of(files), viewer.origin_of(files)) == ({}, [], [])
    lines = [{"step": 1, "policy/entropy": 0.5}, {"step": 2, "policy/entropy": 9}, {"step": 2, "policy/entropy": 0.25}]
    text = "\n".join(map(json.dumps, lines)) + '\nnot json\n{"step": 3, "policy/entropy": NaN}\n{"step": 4, "pol'
    (tmp_path / "metrics.jsonl").write_text(text)
    assert viewer.curves_of(read_folder(tmp_path)) == {"policy/entropy": [[1, 0.5], [2, 0.25]]}
    overall = {"success_rate": 0.5, "interval_low": 0.25, "interval_high": 0.75, "episodes": 8}
    judged = tmp_path / "eval"
    judged.mkdir()
    (judged / "iteration_000010.json").write_text(json.dumps({"held_out": {"overall": overall, "lost": 1}}))
    (judged / "iteration_000020.json").write_text("{")
    (judged / "iteration_000030.json").write_text(json.dumps({"held_out": {"overall": {"success_rate": 0.5}}}))
    (tmp_path / "results.json").write_text(json.dumps({"tasks": {"overall": overall, "lost": 0}}))
    rows = [[10, "held_out", 0.5, 0.25, 0.75, 8, 1], [0, "tasks", 0.5, 0.25, 0.75, 8, 0]]
    assert viewer.evaluations_of(read_folder(tmp_path)) == rows
    last = {"command": ["train.py", "seed=1,2"], "git": {"commit": "abc"}, "status": "finished"}
    (tmp_path / "run.json").write_text(json.dumps({"starts": [{"command": ["old.py"]}, last]}))
    origin = [["command", "python train.py seed=1,2"], ["commit", "abc"], ["status", "finished"]]
    assert viewer.origin_of(read_folder(tmp_path)) == origin


def test_the_model_is_found_from_where_the_run_was_started(tmp_path):
    run, model = tmp_path / "outputs" / "x" / "default", tmp_path / "outputs" / "warm" / "policy"
    run.mkdir(parents=True)
    model.mkdir(parents=True)
    (model / "tokenizer.json").touch()
    text = "model: {path: outputs/warm/policy}\nrollout: {settings: {success_threshold: 0.25}}\n"
    (run / "config.yaml").write_text(text)
    config = read_folder(run).config
    assert (viewer.threshold_of(config), viewer.model_of(config, run)) == (0.25, model)


def test_a_configuration_that_is_no_yaml_or_names_nothing_breaks_nothing(tmp_path):
    for text in (
        "{",
        "model: 5",
        "[1]",
        "model: {path: nowhere}",
        f"model: {{path: {'long' * 2000}}}",
        "rollout: {settings: {success_threshold: .nan}}",
        f"rollout: {{settings: {{success_threshold: 1{'0' * 400}}}}}",
    ):
        (tmp_path / "config.yaml").write_text(text)
        config = read_folder(tmp_path).config
        assert (viewer.threshold_of(config), viewer.model_of(config, tmp_path)) == (0.5, None)
