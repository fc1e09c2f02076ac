"""Which episodes stand side by side."""

from arpo.apps.viewer.groups import Updates, natural, show_groups
from arpo.apps.viewer.records import Records
from arpo.rollout.updates import update_path
from tests.apps.viewer.support import make_episode, make_group, small_run, write_numbers, write_run


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


def test_without_a_record_members_stand_by_number(tmp_path):
    store = write_run(tmp_path, [make_episode(f"0/0/{member}") for member in (10, 2, 0)])
    group = groups_of(store.root)["0/0"]
    assert ids(group) == ["0/0/0", "0/0/2", "0/0/10"]
    assert group.update is None
    assert all(member.advantage is None and not member.left_out for member in group.members)


def test_a_member_that_is_not_on_disk_is_left_out_and_the_numbers_of_the_others_stay_theirs(tmp_path):
    members = make_group(0, 0, 1.0, 0.0, 0.5)
    store = write_run(tmp_path, [members[0], members[2]])
    write_numbers(store, 0, [members])
    group = groups_of(store.root)["0/0"]
    assert [(member.episode.id, member.number, member.advantage) for member in group.members] == [
        ("0/0/0", 0, 0.75),
        ("0/0/2", 2, 0.25),
    ]


def test_a_group_of_which_nothing_learned_is_on_disk_is_shown_as_if_there_were_no_record(tmp_path):
    members = make_group(0, 0, 1.0, 0.0, 0.5)
    store = write_run(tmp_path, [members[2]])
    write_numbers(store, 0, [members[:2]])
    group = groups_of(store.root)["0/0"]
    assert [(member.episode.id, member.left_out) for member in group.members] == [("0/0/2", False)]
    assert group.update is None


def test_records_of_updates_are_read_once_and_again_when_they_change(tmp_path):
    store = small_run(tmp_path)
    updates = Updates(store.root)
    updates.refresh()
    known = updates.records[0]
    updates.refresh()
    assert updates.records[0] is known
    assert [record.iteration for record in updates.records] == [0, 1]
    assert all(record.numbers == {} for record in updates.records)
    whole = updates.whole(updates.records[1])
    assert set(whole.numbers) == {"old_logprobs", "logprobs", "old_entropy", "entropy"}
    update_path(store.root, 0).write_bytes(b"half")
    updates.refresh()
    assert [broken.file for broken in updates.broken] == ["updates/iteration_000000.safetensors"]
    assert [record.iteration for record in updates.records] == [1]
    known = updates.records[0]
    update_path(store.root, 1).unlink()
    updates.refresh()
    assert updates.records == []
    assert known.iteration == 1


def test_ids_sort_as_people_count():
    assert sorted(["10/2", "9/10", "9/9"], key=natural) == ["9/9", "9/10", "10/2"]
    assert sorted(["eval-10/a/0", "eval-9/a/0"], key=natural) == ["eval-9/a/0", "eval-10/a/0"]
