"""The choices of `harness=`: what a foreign agent changes in a run, and where methods keep their own."""

import pytest

from arpo.errors import ConfigError
from arpo.run.build import compose
from arpo.run.check import check_evaluation

FOREIGN = ["harness=command", "harness.argv=[env]"]


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


@pytest.mark.parametrize("words", [["policy_model=m"], FOREIGN])
def test_a_policy_behind_an_address_is_asked_by_a_foreign_agent_and_by_name(words):
    cfg = compose("evaluate", ["experiment=smoke", "paths.run_dir=run", "policy=https://host/v1", *words])
    with pytest.raises(ConfigError, match=r"add policy_model=NAME and harness=command or"):
        check_evaluation(cfg)


def test_a_policy_behind_an_address_needs_no_checkpoint():
    words = ["experiment=smoke", "paths.run_dir=run", "policy=https://host/v1", "policy_model=m", *FOREIGN]
    check_evaluation(compose("evaluate", words))
