"""Two processes that warm start see the demonstrations that one sees, and one of them collects."""

import json

import pytest

from tests.invariant.running import run_module


@pytest.mark.long
@pytest.mark.slow
def test_two_ranks_see_the_demonstrations_of_one_which_are_collected_once(tmp_path):
    run_module("demonstrations", tmp_path)
    alone, *several = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one.0", "ddp.0", "ddp.1")]
    assert len(alone) == 12
    assert several == [alone, alone]
    for way in ("one", "ddp"):
        lines = (tmp_path / way / "demonstrations/demonstration/iteration_000000.jsonl").read_text().splitlines()
        assert len(lines) == 40
    assert (tmp_path / "ddp/model/tokenizer.json").read_bytes() == (tmp_path / "one/model/tokenizer.json").read_bytes()
