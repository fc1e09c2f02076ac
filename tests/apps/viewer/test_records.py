"""Episodes read from disk while somebody writes them."""

import json
from dataclasses import replace

import pytest

from arpo.apps.viewer.records import Records, read_episode
from arpo.rollout.storage import TrajectoryStore
from tests.apps.viewer.support import make_episode, make_group, write_run


@pytest.fixture
def store(tmp_path):
    return write_run(tmp_path, make_group(0, 0, 1.0, 0.0))


def path_of(store: TrajectoryStore):
    return store.root / "train" / "iteration_000000.jsonl"


def test_the_facts_of_an_episode_are_those_of_its_record(store):
    records = Records(store.root)
    records.refresh()
    episode = records.episodes["0/0/1"]
    kept = store.get("0/0/1")
    assert (episode.split, episode.iteration, episode.group) == ("train", 0, "0/0")
    for name in ("task_id", "domain", "instruction", "seed", "task_reward", "format_reward"):
        assert getattr(episode, name) == getattr(kept, name)
    assert (episode.outcome, episode.steps, episode.tokens) == ("terminated", 2, 6)
    assert json.loads(records.line(episode))["id"] == "0/0/1"


def test_an_episode_of_several_policies_has_the_oldest_and_the_newest_and_of_one_id_the_later_counts(store):
    episode = make_episode("0/0/2", version=4)
    store.write(replace(episode, steps=(episode.steps[0], replace(episode.steps[1], policy_version=7))))
    store.write(make_episode("0/0/3", actions=()))
    store.write(make_episode("0/0/1", task_reward=0.5))
    records = Records(store.root)
    records.refresh()
    found = [(records.episodes[id].oldest, records.episodes[id].newest) for id in ("0/0/2", "0/0/3")]
    assert found == [(4, 7), (0, 0)]
    assert records.episodes["0/0/1"].task_reward == 0.5


def test_only_what_is_new_is_read_again(store):
    records = Records(store.root)
    records.refresh()
    before = records.episodes["0/0/0"]
    records.refresh()
    assert records.episodes["0/0/0"] is before
    store.write(make_episode("0/0/2"))
    store.write(make_episode("eval-1/held_out/0/0"))
    records.refresh()
    assert list(records.episodes) == ["eval-1/held_out/0/0", "0/0/0", "0/0/1", "0/0/2"]
    assert records.episodes["eval-1/held_out/0/0"].group == "eval-1/held_out/0"


def test_a_record_counts_once_it_is_whole(store):
    records = Records(store.root)
    records.refresh()
    line = json.dumps({**json.loads(path_of(store).read_text().splitlines()[0]), "id": "0/0/7"}) + "\n"
    with path_of(store).open("a") as file:
        for part in (line[:100], line[100:-1]):
            file.write(part)
            file.flush()
            records.refresh()
            assert list(records.episodes) == ["0/0/0", "0/0/1"]
            assert records.torn == ["train/iteration_000000.jsonl"]
        file.write("\n")
        file.flush()
        records.refresh()
    assert list(records.episodes) == ["0/0/0", "0/0/1", "0/0/7"]
    assert records.torn == []


def test_a_file_that_a_resumed_run_wrote_anew_is_read_anew(store):
    records = Records(store.root)
    records.refresh()
    old = records.episodes["0/0/1"]
    store.truncate(0, -1)
    assert not path_of(store).exists()
    assert records.line(old) is None
    TrajectoryStore(store.root).write(make_episode("0/0/9", instruction="longer " * 300))
    records.refresh()
    assert list(records.episodes) == ["0/0/9"]
    assert records.line(old) is None  # the place holds something else now


@pytest.mark.parametrize(
    "change",
    [
        {"steps": [{}]},
        {"id": 3},
        {"id": "nowhere"},
        {"task_reward": float("nan")},
        {"task_reward": True},
        {"task_reward": 10**400},
        {"id": "1/0/0"},
        {"id": "eval-0/0/0"},
        {"id": f"{'9' * 300}/0/0"},
        {"seed": "1"},
    ],
    ids=str,
)
def test_a_record_of_another_shape_is_broken_and_the_others_are_read(store, change):
    lines = path_of(store).read_text().splitlines()
    wrong = json.dumps({**json.loads(lines[0]), **change})
    path_of(store).write_text("\n".join([lines[0], wrong, "{", lines[1]]) + "\n")
    records = Records(store.root)
    records.refresh()
    assert list(records.episodes) == ["0/0/0", "0/0/1"]
    assert [(broken.file, broken.line) for broken in records.broken] == [
        ("train/iteration_000000.jsonl", 2),
        ("train/iteration_000000.jsonl", 3),
    ]
    assert records.broken[1].text == "{"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"task_reward": 1.0', b'"task_reward": 1e999'),
        (b'"format_reward": 0.0', b'"format_reward": -1e999'),
        (b"Press", b"\xff"),
        (b"{", b"\xef\xbb\xbf{"),
        (b'"response_ids": [8', b'"response_ids": ["8"'),
        (b'"width": 168', b'"width": null'),
    ],
    ids=repr,
)
def test_bytes_that_are_no_text_or_no_number_are_broken(store, old, new):
    line = path_of(store).read_bytes().splitlines()[0]
    assert old in line
    with pytest.raises(ValueError, match=r"decode|BOM|Expected `"):
        read_episode(line.replace(old, new, 1), path_of(store), 0)


def test_a_file_that_cannot_be_read_is_broken_and_the_others_are_read(store):
    odd = store.root / "train" / "iteration_000001.jsonl"
    records = Records(store.root)
    records.refresh()
    odd.mkdir()
    records.refresh()
    records.refresh()
    assert list(records.episodes) == ["0/0/0", "0/0/1"]
    assert [(broken.file, broken.line) for broken in records.broken] == [("train/iteration_000001.jsonl", 0)]
    odd.rmdir()
    store.write(make_episode("1/0/0"))
    records.refresh()
    assert records.broken == []
    assert list(records.episodes) == ["0/0/0", "0/0/1", "1/0/0"]
