"""What the version before there were exchanges has stored: `old_records.jsonl` is written by its code."""

import json
import shutil
from pathlib import Path

import pytest

from arpo.apps.dataset.card import row, trajectory_of
from arpo.apps.viewer.records import Records
from arpo.rollout.storage import TrajectoryStore
from tests.rollout.trajectories import make_trajectory

FILE = Path(__file__).parent / "old_records.jsonl"
PICTURE = 9


def blind(ids):
    return tuple(each for each in ids if each != PICTURE)


@pytest.fixture
def store(tmp_path):
    shutil.copy(FILE, tmp_path / "iteration_000003.jsonl")
    (tmp_path / "train").mkdir()
    (tmp_path / "iteration_000003.jsonl").rename(tmp_path / "train" / "iteration_000003.jsonl")
    store = TrajectoryStore(tmp_path)
    store.blind = blind
    return store


CONTEXTS = {
    "3/0/0": [(1, 2, 9, 3), (1, 2, 9, 3, 10, 11, 7, 4, 9, 3), (1, 2, 9, 3, 10, 11, 7, 4, 9, 3, 12, 13, 7, 4, 9, 3)],
    # a window of one screenshot
    "3/0/1": [(1, 2, 9, 3), (1, 2, 3, 10, 11, 7, 4, 9, 3), (1, 2, 3, 10, 11, 7, 4, 3, 12, 13, 7, 4, 9, 3)],
    # an expert's answers, (20, 7) and (21, 7), in the place of the first two responses
    "3/0/2": [(1, 2, 9, 3), (1, 2, 9, 3, 20, 7, 4, 9, 3), (1, 2, 9, 3, 20, 7, 4, 9, 3, 21, 7, 4, 9, 3)],
    "3/0/3": [(1, 2, 9, 3), (1, 2, 9, 3, 20, 7, 4, 9, 3), (1, 2, 3, 20, 7, 4, 9, 3, 21, 7, 4, 9, 3)],
}
"""What the engine read before each response, by hand: responses are (10, 11, 7), (12, 13) and (14, 7)."""
SEQUENCES = {"3/0/0": [[0, 1, 2]], "3/0/1": [[0], [1], [2]], "3/0/2": [[0], [1], [2]], "3/0/3": [[0], [1], [2]]}


def test_a_record_of_the_version_before_has_the_contexts_that_its_engine_read(store):
    assert {made.id for made in store.read("train", 3)} == {*CONTEXTS, "3/0/4"}
    for name, contexts in CONTEXTS.items():
        made = store.get(name)
        assert [made.context(number)[0] for number in range(3)] == contexts
        assert [own for _, own in made.sequences()] == SEQUENCES[name]
        assert made.has_a_step_an_exchange
        assert [each.response_ids for each in made.exchanges] == [(10, 11, 7), (12, 13), (14, 7)]
        assert made.exchanges[1].sampler_logprobs == (-1.1, -1.2)
        assert [each.policy_version for each in made.exchanges] == [5, 6, 7]
        for number, exchange in enumerate(made.exchanges):
            seen = [step.screenshot for step in made.steps[: number + 1]]
            assert [picture.key for picture in made.context(number)[1]] == seen[-contexts[number].count(PICTURE) :]
            assert exchange.finish == ""  # it was not noted
    assert [step.patch for step in store.get("3/0/2").steps] == ["expert 0", "expert 1", ""]


def test_a_script_of_the_version_before_has_no_exchanges(store):
    made = store.get("3/0/4")
    assert (made.exchanges, [step.exchange for step in made.steps]) == ((), [None] * 3)
    assert made.steps[2].response == "response 2"


def test_without_the_run_s_tokenizer_a_window_leaves_texts_alone(store):
    store.blind = None
    assert store.get("3/0/1").exchanges == ()
    assert store.get("3/0/1").steps[1].response == "response 1"
    assert len(store.get("3/0/2").exchanges) == 3


def test_what_a_crash_undid_is_removed_from_old_records_with_a_window_too(store):
    store.truncate(3, 6)  # version 7 answered last in all but the script
    assert [made.id for made in store.read("train", 3)] == ["3/0/4"]


def test_old_records_are_shown_and_old_datasets_are_read(store):
    records = Records(store.root)
    records.refresh()
    assert records.broken == []
    episode = records.episodes["3/0/2"]
    assert (episode.steps, episode.tokens, episode.oldest, episode.newest) == (3, 7, 5, 7)
    shown = json.loads(records.line(episode))
    assert [exchange["response_ids"] for exchange in shown["exchanges"]] == [[10, 11, 7], [12, 13], [14, 7]]
    today = make_trajectory(steps=2)
    old = row(today)
    for step, exchange in zip(old["steps"], old.pop("exchanges"), strict=True):
        step |= {name: exchange[name] for name in ("response_ids", "sampler_logprobs", "policy_version")}
        step |= {"prompt_ids": exchange["added_ids"], "patch_ids": []}
        del step["exchange"]
    del old["pictures"]
    back = trajectory_of({**old, "instruction": today.instruction})
    assert [back.context(number)[0] for number in range(2)] == [today.context(number)[0] for number in range(2)]
