"""The record of an update on disk."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from safetensors.numpy import save

from arpo.errors import ArpoError
from arpo.rollout.updates import (
    UpdatedGroup,
    UpdateRecord,
    forget_updates,
    read_update,
    update_path,
    write_update,
)

NAN = float("nan")


def make_record(iteration: int = 3) -> UpdateRecord:
    return UpdateRecord(
        iteration=iteration,
        policy_version=iteration,
        groups=(UpdatedGroup("task \ud83d", ("3/0/0", "1/2/0"), (1,)), UpdatedGroup("other", ("3/1/0",))),
        left_out=("3/0/1",),
        advantages=np.array([-0.1, 1 / 3, 0.0], dtype=np.float32),
        offsets=np.array([0, 2, 3, 5], dtype=np.int64),
        numbers={
            "logprobs": np.array([-0.1, -0.2, -0.3, NAN, NAN], dtype=np.float32),
            "entropy": np.array([NAN, NAN, 0.5, NAN, 0.25], dtype=np.float32),
        },
    )


def test_a_record_comes_back_as_it_was_to_the_last_bit(tmp_path):
    written = make_record()
    write_update(tmp_path, written)
    read = read_update(update_path(tmp_path, 3))
    assert (read.iteration, read.policy_version, read.groups) == (3, 3, written.groups)
    assert read.left_out == ("3/0/1",)
    assert read.advantages.tobytes() == written.advantages.tobytes()
    assert {name: values.tobytes() for name, values in read.numbers.items()} == {
        name: values.tobytes() for name, values in written.numbers.items()
    }


def test_the_numbers_of_a_trajectory_are_its_own_and_what_was_not_computed_is_not_among_them():
    record = make_record()
    assert {name: values.tolist() for name, values in record.tokens(0).items()} == {
        "logprobs": pytest.approx([-0.1, -0.2])
    }
    assert {name: len(values) for name, values in record.tokens(1).items()} == {"logprobs": 1, "entropy": 1}
    assert record.tokens(2)["entropy"][1] == 0.25


@pytest.mark.parametrize("content", [b"", b"half a file", b"\xff" * 40])
def test_a_file_that_is_no_record_is_told_as_such(tmp_path, content):
    path = update_path(tmp_path, 3)
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ArpoError, match=r"iteration_000003\.safetensors is not the record of an update"):
        read_update(path)


def test_a_record_that_was_cut_is_told_as_such(tmp_path):
    write_update(tmp_path, make_record())
    path = update_path(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ArpoError, match="is not the record of an update"):
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


@pytest.mark.parametrize(
    ("change", "head"),
    [
        ({"offsets": np.array([0, 2, 5], dtype=np.int64)}, {}),
        ({"offsets": np.array([0, 2, 3, 5], dtype=np.float32)}, {}),
        ({"offsets": np.array([0, 3, 2, 5], dtype=np.int64)}, {}),
        ({"offsets": np.zeros((4, 1), dtype=np.int64)}, {}),
        ({"advantages": np.zeros((3, 2), dtype=np.float32)}, {}),
        ({"advantages": np.zeros(2, dtype=np.float32)}, {}),
        ({"logprobs": np.zeros(4, dtype=np.float32)}, {}),
        ({}, {"groups": [{"task_id": "t", "members": [1, 2, 3], "injected": []}]}),
        ({}, {"groups": [{"task_id": "t", "members": ["1/0/0"], "injected": []}]}),
        ({}, {"groups": {}}),
        ({}, {"iteration": "three"}),
    ],
)
def test_a_record_whose_parts_do_not_fit_is_told_as_such(tmp_path, change, head):
    record = make_record()
    path = update_path(tmp_path, 3)
    path.parent.mkdir()
    tensors = {"advantages": record.advantages, "offsets": record.offsets, **record.numbers}
    whole = {"iteration": 3, "policy_version": 3, "left_out": [], "groups": [asdict(group) for group in record.groups]}
    path.write_bytes(save(tensors, metadata={"update": json.dumps(whole)}))
    assert read_update(path).offsets.tolist() == [0, 2, 3, 5]
    path.write_bytes(save(tensors | change, metadata={"update": json.dumps(whole | head)}))
    with pytest.raises(ArpoError, match="is not the record of an update"):
        read_update(path)
