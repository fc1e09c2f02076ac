"""Episodes and updates read from disk while a run writes them, and the groups that they stand in."""

import json

import pytest

from arpo.apps.viewer.records import Records, Updates, read_episode, show_groups
from arpo.rollout.storage import TrajectoryStore, update_path
from tests.apps.viewer.support import make_episode, make_group, small_run, write_numbers, write_run
from tests.exchanges import with_exchanges


@pytest.fixture
def store(tmp_path):
    return write_run(tmp_path, make_group(0, 0, 1.0, 0.0))


@pytest.fixture
def records(store):
    return read(store)


def read(store: TrajectoryStore) -> Records:
    records = Records(store.root)
    records.refresh()
    return records


def path_of(store: TrajectoryStore):
    return store.root / "train" / "iteration_000000.jsonl"


def test_the_facts_of_an_episode_are_those_of_its_record_its_policies_and_of_one_id_the_later_counts(store, records):
    episode = records.episodes["0/0/1"]
    kept = store.get("0/0/1")
    assert (episode.split, episode.iteration, episode.group) == ("train", 0, "0/0")
    for name in ("task_id", "domain", "instruction", "seed", "task_reward", "format_reward"):
        assert getattr(episode.facts, name) == getattr(kept, name)
    assert (episode.facts.outcome, episode.steps, episode.tokens) == ("terminated", 2, 6)
    assert json.loads(records.line(episode))["id"] == "0/0/1"
    store.write(with_exchanges(make_episode("0/0/2"), policy_version=(4, 7)))
    store.write(make_episode("0/0/3", actions=()))
    store.write(make_episode("0/0/1", task_reward=0.5))
    records = read(store)
    found = [(records.episodes[id].oldest, records.episodes[id].newest) for id in ("0/0/2", "0/0/3")]
    assert found == [(4, 7), (0, 0)]
    assert records.episodes["0/0/1"].facts.task_reward == 0.5


def test_only_what_is_new_is_read_again(store, records):
    before = records.episodes["0/0/0"]
    records.refresh()
    assert records.episodes["0/0/0"] is before
    store.write(make_episode("0/0/2"))
    store.write(make_episode("eval-1/held_out/0/0"))
    records.refresh()
    assert list(records.episodes) == ["eval-1/held_out/0/0", "0/0/0", "0/0/1", "0/0/2"]
    assert records.episodes["eval-1/held_out/0/0"].group == "eval-1/held_out/0"


def test_a_record_counts_once_it_is_whole(store, records):
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


def test_a_file_that_a_resumed_run_wrote_anew_is_read_anew(store, records):
    old = records.episodes["0/0/1"]
    store.truncate(0, -1)
    assert not path_of(store).exists()
    assert records.line(old) is None
    TrajectoryStore(store.root).write(make_episode("0/0/9", instruction="longer " * 300))
    records.refresh()
    assert list(records.episodes) == ["0/0/9"]
    assert records.line(old) is None  # the place holds something else now


CHANGES = [
    {"steps": [{}]}, {"id": 3}, {"id": "nowhere"}, {"task_reward": float("nan")}, {"task_reward": True},
    {"task_reward": 10**400}, {"id": "1/0/0"}, {"id": "eval-0/0/0"}, {"id": f"{'9' * 300}/0/0"}, {"seed": "1"},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_record_of_another_shape_is_broken_and_the_others_are_read(store, change):
    lines = path_of(store).read_text().splitlines()
    wrong = json.dumps({**json.loads(lines[0]), **change})
    path_of(store).write_text("\n".join([lines[0], wrong, "{", lines[1]]) + "\n")
    records = read(store)
    assert list(records.episodes) == ["0/0/0", "0/0/1"]
    file = "train/iteration_000000.jsonl"
    assert [(broken.file, broken.line) for broken in records.broken] == [(file, 2), (file, 3)]
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
    odd, records = store.root / "train" / "iteration_000001.jsonl", read(store)
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


def groups_of(root):
    records, updates = Records(root), Updates(root)
    records.refresh()
    updates.refresh()
    return {group.key: group for group in show_groups(records.episodes, updates.records)}


def ids(group):
    return [member.episode.id for member in group.members]


def test_a_group_has_the_members_that_the_update_learned_from_then_those_it_left_out(tmp_path):
    groups = groups_of(small_run(tmp_path).root)
    assert list(groups) == ["0/0", "0/1", "1/0", "1/1", "eval-0/held_out/0", "eval-2/held_out/0"]
    group = groups["1/0"]
    assert ids(group) == ["1/0/0", "0/0/3", "1/0/2", "1/0/3", "1/0/1"]
    assert [member.injected for member in group.members] == [False, True, False, False, False]
    assert [member.left_out for member in group.members] == [False, False, False, False, True]
    assert [member.advantage for member in group.members] == [-0.25, 0.75, -0.25, -0.25, None]
    assert group.first.id == "1/0/0"
    # the second group of the first update stands behind the four members of the first; rewards less 0.25
    assert [(member.number, member.advantage) for member in groups["0/1"].members] == [(4, -0.25), (5, 0.75)]
    assert ids(groups["0/0"]) == ["0/0/0", "0/0/1", "0/0/2", "0/0/3"]  # whose member is replayed elsewhere


def test_a_group_that_begins_with_a_replay_is_of_its_own_iteration(tmp_path):
    old, new = make_group(0, 0, 1.0, 0.0), make_group(3, 0, 0.0, 0.0)
    store = write_run(tmp_path, [*old, *new])
    write_numbers(store, 3, [[old[0], new[1]]], g0=0)
    group = groups_of(store.root)["3/0"]
    assert ids(group) == ["0/0/0", "3/0/1", "3/0/0"]
    assert (group.first.id, group.first.iteration) == ("3/0/1", 3)


@pytest.mark.parametrize(
    ("stored", "learned", "found"),
    [
        ((0, 2), (0, 1, 2), [("0/0/0", 0, 0.75, False), ("0/0/2", 2, 0.25, False)]),
        ((2,), (0, 1), [("0/0/2", None, None, False)]),  # of which nothing learned is on disk
    ],
)
def test_a_member_that_is_not_on_disk_is_left_out_and_the_numbers_of_the_others_stay_theirs(
    tmp_path, stored, learned, found
):
    members = make_group(0, 0, 1.0, 0.0, 0.5)
    store = write_run(tmp_path, [members[number] for number in stored])
    write_numbers(store, 0, [[members[number] for number in learned]])
    group = groups_of(store.root)["0/0"]
    facts = [(member.episode.id, member.number, member.advantage, member.left_out) for member in group.members]
    assert facts == found
    assert (group.update is None) == (found[0][1] is None)


def test_groups_and_without_a_record_their_members_stand_as_people_count(tmp_path):
    names = ["eval-10/a/0/0", "10/2/0", "9/10/0", "9/9/10", "9/9/2", "9/9/0", "eval-9/a/0/0"]
    found = groups_of(write_run(tmp_path, map(make_episode, names)).root)
    assert list(found) == ["9/9", "9/10", "10/2", "eval-9/a/0", "eval-10/a/0"]
    assert ids(found["9/9"]) == ["9/9/0", "9/9/2", "9/9/10"]
    assert found["9/9"].update is None
    assert all(member.advantage is None and not member.left_out for member in found["9/9"].members)


def test_records_of_updates_are_read_once_and_again_when_they_change(tmp_path):
    store = small_run(tmp_path)
    updates = Updates(store.root)
    updates.refresh()
    known = updates.records[0]
    updates.refresh()
    assert updates.records[0] is known
    assert [record.iteration for record in updates.records] == [0, 1]
    assert all(record.numbers == {} for record in updates.records)
    assert set(updates.whole(updates.records[1]).numbers) == {"old_logprobs", "logprobs", "old_entropy", "entropy"}
    update_path(store.root, 0).write_bytes(b"half")
    updates.refresh()
    assert [broken.file for broken in updates.broken] == ["updates/iteration_000000.safetensors"]
    assert [record.iteration for record in updates.records] == [1]
    known = updates.records[0]
    update_path(store.root, 1).unlink()
    updates.refresh()
    assert updates.records == []
    assert known.iteration == 1
