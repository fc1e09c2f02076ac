"""Two checkpoints are told apart by what is in them, at the cost of a few blocks."""

from dataclasses import replace

import pytest

from arpo.agent.prompt import Prompt
from arpo.rollout.episode import EpisodeSpec
from arpo.rollout.runner import BLOCK, PLACES, model_fingerprint, sampling_fingerprint
from arpo.rollout.settings import RolloutSettings
from arpo.types import Task

SIZE = 4 * BLOCK * PLACES
"""A file that is read at every fourth block: at 0, 4 · BLOCK, 8 · BLOCK, …"""


@pytest.mark.parametrize("changed", [0, 4 * BLOCK * 100, 4 * BLOCK * (PLACES - 1)])
def test_a_change_at_the_beginning_or_far_inside_of_the_weights_is_seen(tmp_path, changed):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(SIZE))
    before = model_fingerprint(tmp_path)
    assert model_fingerprint(tmp_path) == before
    with weights.open("rb+") as file:
        file.seek(changed)
        file.write(b"\x01")
    assert model_fingerprint(tmp_path) != before


def test_an_episode_of_another_window_of_screenshots_stands_for_no_other():
    task = Task("t", "Click.")
    settings = RolloutSettings(group_size=1, max_steps=3, max_tokens=8, max_context=64, min_group_size=1)
    prints = {
        sampling_fingerprint(
            EpisodeSpec.of(task, replace(settings, image_window=window), id="0/0/0", seed=0), Prompt.compact(), "m"
        )
        for window in (None, 1, 2)
    }
    assert len(prints) == 3


def test_an_episode_under_another_bound_on_actions_stands_for_no_other_and_records_from_before_it_stay_good():
    task = Task("t", "Click.")
    settings = RolloutSettings(group_size=1, max_steps=3, max_tokens=8, max_context=64, min_group_size=1)
    specs = [EpisodeSpec.of(task, replace(settings, max_actions=bound), id="0/0/0", seed=0) for bound in (15, 16)]
    usual, other = (sampling_fingerprint(spec, Prompt.compact(), "m") for spec in specs)
    assert usual == "c16bd8c6d219abbd" != other  # as it was before there was a bound


def test_a_name_that_is_no_directory_stands_for_itself():
    assert model_fingerprint("ByteDance-Seed/UI-TARS-1.5-7B") == "ByteDance-Seed/UI-TARS-1.5-7B"
