"""Trajectories and records of updates on disk: as written to the last bit, and what a crash leaves of them."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from arpo.errors import ArpoError
from arpo.rollout.storage import (
    TrajectoryStore,
    UpdatedGroup,
    UpdateRecord,
    forget_updates,
    read_update,
    store_of,
    update_path,
    write_update,
)
from tests.exchanges import with_exchanges
from tests.rollout.trajectories import foreign, make_trajectory


@pytest.fixture
def store(tmp_path):
    return TrajectoryStore(tmp_path)


def bare(trajectory):
    return replace(trajectory, screenshots={})


@pytest.mark.parametrize("fsync", [False, True])
def test_a_trajectory_comes_back_to_the_last_bit(tmp_path, fsync):
    store = TrajectoryStore(tmp_path, fsync=fsync)
    trajectory = make_trajectory()
    store.write(trajectory)
    (line,) = (tmp_path / "train" / "iteration_000003.jsonl").read_text().splitlines()
    assert json.loads(line)["outcome"] == "finished"
    (stored,) = TrajectoryStore(tmp_path).read("train", 3)
    assert stored == trajectory
    assert stored.duration_s == trajectory.duration_s  # which equality leaves out
    assert isinstance(stored.exchanges[0].response_ids, tuple)
    assert not stored.screenshots
    assert store.load_screenshots(stored).screenshots == trajectory.screenshots


def test_a_tree_of_exchanges_comes_back_with_all_pictures_that_it_shows(store):
    made = foreign()
    store.write(made)
    stored = TrajectoryStore(store.root).get(made.id)
    assert stored == made
    assert store.load_screenshots(stored).screenshots == made.screenshots
    store.screenshot_path(made.exchanges[4].pictures[0].key).unlink()
    assert store.lost_screenshots(stored) == [store.screenshot_path(made.exchanges[4].pictures[0].key)]


def test_the_id_says_where_a_trajectory_stands(store):
    for name in ("12/0/0", "eval-12/held_out/0/0"):
        store.write(make_trajectory(name))
    found = sorted(str(path.relative_to(store.root)) for path in store.root.glob("*/*.jsonl"))
    assert found == ["eval/iteration_000012.jsonl", "train/iteration_000012.jsonl"]
    assert store.get("eval-12/held_out/0/0").id == "eval-12/held_out/0/0"
    for name in ("probe", "/1/2", "12", "eval-x/1"):
        with pytest.raises(ArpoError, match="ids look like"):
            store.get(name)


def test_records_are_read_in_the_order_of_their_ids_and_the_later_of_two_counts(store):
    assert store.read("train", 3) == []
    assert not store.root.joinpath("train").exists()  # and looking creates nothing
    for name, reward in (("3/10/0", 0.0), ("3/2/0", 0.0), ("3/2/1", 0.5), ("3/2/0", 1.0)):
        store.write(make_trajectory(name, task_reward=reward))
    found = [(each.id, each.task_reward) for each in store.read("train", 3)]
    assert found == [("3/2/0", 1.0), ("3/2/1", 0.5), ("3/10/0", 0.0)]
    assert store.get("3/2/0").task_reward == 1.0
    with pytest.raises(ArpoError, match=r"3/1 is not in .*iteration_000003"):  # though another id begins so
        store.get("3/1")


def test_a_screenshot_is_stored_once(store):
    trajectory = make_trajectory("3/0/0", steps=1)
    store.write(trajectory)
    path = next(store.root.glob("screens/*/*.png"))
    assert path.relative_to(store.root / "screens") == Path(path.stem[:2]) / f"{path.stem}.png"
    before = path.stat()
    store.write(make_trajectory("3/0/1", steps=1))
    assert path.stat() == before
    assert path.read_bytes() == trajectory.screenshots[path.stem]


def test_lost_and_cut_screenshots_are_found(store):
    trajectory = make_trajectory(steps=2)
    store.write(trajectory)
    assert store.lost_screenshots(bare(trajectory)) == []
    (lost,) = store.root.glob(f"screens/*/{trajectory.last_screenshot}.png")
    lost.unlink()
    assert store.lost_screenshots(bare(trajectory)) == [lost]
    with pytest.raises(ArpoError, match=lost.stem):
        store.load_screenshots(bare(trajectory))
    for content in (b"", trajectory.screenshots[lost.stem][:-1]):
        lost.write_bytes(content)
        assert store.lost_screenshots(bare(trajectory)) == [lost]


def test_a_copy_of_a_file_that_somebody_made_beside_it_is_none_of_the_store(store):
    store.write(make_trajectory())
    (file,) = store.root.glob("train/*.jsonl")
    file.with_name(f"{file.stem} (copy).jsonl").write_bytes(file.read_bytes())
    assert len(store.iterations()) == 1


def test_a_run_s_folder_and_its_store_name_the_same_directory(tmp_path):
    assert store_of(tmp_path) == tmp_path  # nothing is inside: whoever reads it finds no episode
    (tmp_path / "trajectories").mkdir()
    assert store_of(tmp_path) == store_of(tmp_path / "trajectories") == tmp_path / "trajectories"


def test_the_episodes_of_an_iteration_and_of_later_ones_are_found(store):
    for name in ("3/0/0", "4/0/0", "10/0/0", "eval-4/v/0/0"):
        store.write(make_trajectory(name))
    assert list(store.finished(4)) == ["4/0/0", "10/0/0"]
    assert store.finished(11) == {}


def test_truncation_takes_what_later_policies_and_later_evaluations_left(store):
    for name, version in (("3/0/0", 2), ("4/0/0", 3), ("4/0/1", 4), ("10/0/0", 3), ("11/0/0", 4)):
        store.write(make_trajectory(name, policy_version=version))
    mixed = make_trajectory("10/0/1", policy_version=3)
    store.write(with_exchanges(mixed, policy_version=(3, 4)))
    for name in ("eval-3/v/0/0", "eval-4/v/0/0"):
        store.write(make_trajectory(name, policy_version=9))
    store.truncate(3, 3)
    left = sorted(str(path.relative_to(store.root)) for path in store.root.glob("*/*.jsonl"))
    kept = (("eval", 3), ("train", 3), ("train", 4), ("train", 10))
    assert left == [f"{part}/iteration_{number:06d}.jsonl" for part, number in kept]
    assert list(store.finished(3)) == ["3/0/0", "4/0/0", "10/0/0"]
    assert store.load_screenshots(store.get("10/0/0")).screenshots


def test_truncation_looks_at_iterations_that_may_be_undone_alone(store):
    for name in ("2/0/0", "1/0/0"):
        store.write(make_trajectory(name, policy_version=9))
    store.truncate(3, 3, first_iteration=2)
    assert list(store.finished(0)) == ["1/0/0"]


def test_a_record_cut_at_any_byte_is_dropped_and_repaired(tmp_path, caplog):
    store = TrajectoryStore(tmp_path)
    path = tmp_path / "train" / "iteration_000003.jsonl"
    for name in ("3/0/0", "3/0/1"):
        store.write(bare(make_trajectory(name, steps=1)))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in (11, *range(first + 1, len(whole))):
        path.write_bytes(whole[:end])
        left = ["3/0/0"] if end > first else []
        caplog.clear()
        assert [trajectory.id for trajectory in store.read("train", 3)] == left
        assert "crash cut" in caplog.text
        store.write(bare(make_trajectory("3/0/2", steps=1)))
        assert [trajectory.id for trajectory in store.read("train", 3)] == [*left, "3/0/2"]
        assert path.read_bytes().count(b"\n") == len(left) + 1


@pytest.mark.parametrize("line", [b"{}", b'{"id": "3/0/9"}', b"\x00\x00", b"[1]", b'"text"'])
def test_a_whole_line_that_is_no_record_is_an_error_with_its_place(store, line):
    store.write(make_trajectory())
    with (store.root / "train" / "iteration_000003.jsonl").open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(ArpoError, match=r"iteration_000003.jsonl, line 2 is not a trajectory"):
        store.read("train", 3)


def test_reading_leaves_the_files_of_a_living_writer_alone(store, tmp_path):
    store.write(make_trajectory())
    half = tmp_path / "screens" / ".partial" / "half.png"
    half.write_bytes(b"half")
    reader = TrajectoryStore(tmp_path)
    reader.read("train", 3)
    assert half.exists()
    reader.write(make_trajectory("3/0/2"))  # the next run's first write clears away what the last run left
    assert not half.exists()


def test_threads_share_a_store(store):
    def write(place):
        store.write(make_trajectory("3/{}/{}".format(*place), shade=place[1]))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, product(range(8), range(20))))
    assert len(store.read("train", 3)) == 160


@contextmanager
def files_of_at_most(size):
    """A limit that is to `write` what a full disk is: the first part goes through, the rest does not."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_is_said_and_loses_nothing(store):
    store.write(make_trajectory("3/0/0"))
    size = (store.root / "train" / "iteration_000003.jsonl").stat().st_size
    said = r"cannot store trajectory 3/0/1 in .*iteration_000003.*free space"
    with files_of_at_most(size + 100), pytest.raises(ArpoError, match=said) as error:
        store.write(make_trajectory("3/0/1"))
    assert error.value.__cause__.errno == errno.EFBIG
    assert [trajectory.id for trajectory in store.read("train", 3)] == ["3/0/0"]
    store.write(make_trajectory("3/0/1"))
    assert [trajectory.id for trajectory in store.read("train", 3)] == ["3/0/0", "3/0/1"]


def test_a_screenshot_that_did_not_fit_is_never_taken_for_one(store):
    trajectory = make_trajectory()
    with files_of_at_most(10), pytest.raises(ArpoError, match="File too large"):
        store.write(trajectory)
    store.write(trajectory)
    assert store.load_screenshots(bare(trajectory)).screenshots == trajectory.screenshots


def test_a_missing_permission_is_said_with_its_path(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ArpoError, match="file"):
        TrajectoryStore(tmp_path / "file" / "store").write(make_trajectory())


WRITER = """
import itertools, sys
from arpo.rollout.storage import TrajectoryStore
from tests.rollout.trajectories import make_trajectory

store = TrajectoryStore(sys.argv[1])
for number in itertools.count():
    trajectory = make_trajectory(f"3/0/{number}", steps=40, shade=number % 200)
    print(f"begin {number}", flush=True)
    store.write(trajectory)
    print(f"end {number}", flush=True)
"""


@pytest.mark.parametrize("lines", [1, 2, 17, 30, 41])
def test_a_killed_writer_loses_at_most_the_record_in_flight(tmp_path, lines):
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    said = [writer.stdout.readline() for _ in range(lines)]
    os.kill(writer.pid, signal.SIGKILL)
    said += writer.stdout.readlines()
    writer.wait()
    ended = {int(line.split()[1]) for line in said if line.startswith("end")}
    begun = {int(line.split()[1]) for line in said if line.startswith("begin")}
    store = TrajectoryStore(tmp_path)
    stored = {int(trajectory.id.split("/")[2]) for trajectory in store.read("train", 3)}
    assert ended <= stored <= begun
    for trajectory in store.read("train", 3):
        assert len(store.load_screenshots(trajectory).screenshots) == 41
    store.write(make_trajectory("3/1/0"))
    assert len(store.read("train", 3)) == len(stored) + 1
    assert list((tmp_path / "screens" / ".partial").iterdir()) == []


def make_record(iteration=3):
    return UpdateRecord(
        iteration=iteration,
        policy_version=iteration,
        groups=(UpdatedGroup("task \ud83d", ("3/0/0", "1/2/0"), (1,)), UpdatedGroup("other", ("3/1/0",))),
        left_out=("3/0/1",),
        advantages=np.array([-0.1, 1 / 3, 0.0], dtype=np.float32),
        offsets=np.array([0, 2, 3, 5], dtype=np.int64),
        numbers={
            "logprobs": np.array([-0.1, -0.2, -0.3, np.nan, np.nan], dtype=np.float32),
            "entropy": np.array([np.nan, np.nan, 0.5, np.nan, 0.25], dtype=np.float32),
        },
    )


def test_a_record_comes_back_as_it_was_to_the_last_bit(tmp_path):
    written = make_record()
    write_update(tmp_path, written)
    read = read_update(update_path(tmp_path, 3))
    assert (read.iteration, read.policy_version, read.groups) == (3, 3, written.groups)
    assert read.left_out == ("3/0/1",)
    assert read.advantages.tobytes() == written.advantages.tobytes()
    said, found = ({name: row.tobytes() for name, row in each.numbers.items()} for each in (written, read))
    assert found == said


def test_the_numbers_of_a_trajectory_are_its_own_and_what_was_not_computed_is_not_among_them():
    record = make_record()
    (logprobs,) = record.tokens(0).values()
    assert logprobs.tolist() == pytest.approx([-0.1, -0.2])
    assert {name: len(values) for name, values in record.tokens(1).items()} == {"logprobs": 1, "entropy": 1}
    assert record.tokens(2)["entropy"][1] == 0.25


def test_a_file_that_is_no_record_or_was_cut_is_refused(tmp_path):
    write_update(tmp_path, make_record())
    path = update_path(tmp_path, 3)
    for content in (path.read_bytes()[:-8], b"", b"half a file", b"\xff" * 40):
        path.write_bytes(content)
        with pytest.raises(ArpoError, match=r"iteration_000003\.safetensors is not the record of an update"):
            read_update(path)


def test_a_disk_that_takes_nothing_is_an_error_with_a_way_out(tmp_path):
    (tmp_path / "updates").write_text("a file where the folder should be")
    with pytest.raises(ArpoError, match=r"cannot store what update 3 did .* '~callbacks\.update_log'"):
        write_update(tmp_path, make_record())


def test_what_a_resumed_run_takes_again_is_forgotten(tmp_path):
    for iteration in range(4):
        write_update(tmp_path, make_record(iteration))
    forget_updates(tmp_path, 2)
    assert [read_update(path).iteration for path in sorted((tmp_path / "updates").iterdir())] == [0, 1]
