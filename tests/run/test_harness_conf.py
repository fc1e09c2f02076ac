"""The choices of `harness=`: what a foreign agent changes in a run, and where methods keep their own."""

import pytest

from arpo.run.build import compose

FOREIGN = ["harness=command", "harness.argv=[true]"]


@pytest.mark.parametrize(
    ("words", "aggregation"),
    [
        ([], "sequence"),
        (FOREIGN, "episode"),
        (["harness=function", "harness.function=mine.play"], "episode"),
        ([*FOREIGN, "module.objective.aggregation=token"], "token"),
        ([*FOREIGN, "method=cispo"], "token"),
    ],
)
def test_an_episode_of_a_foreign_agent_weighs_the_same_however_it_forks(words, aggregation):
    cfg = compose("train", ["experiment=smoke", "paths.run_dir=run", *words])
    assert cfg.module.objective.get("aggregation", "token") == aggregation  # CISPO has its own in its class
    assert (cfg.rollout.harness is None) == (not words)
