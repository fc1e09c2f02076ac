"""What a run asks of its model, without a model."""

import json

import pytest
from omegaconf import DictConfig, OmegaConf

from arpo.errors import ConfigError
from arpo.run.model import check_context


@pytest.fixture
def configuration(tmp_path):
    """Return a run with conversations of so many tokens and a model that was made for 100."""
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 100}))

    def make(max_context: int, **datamodule: object) -> DictConfig:
        return OmegaConf.create(
            {
                "model": {"path": str(tmp_path)},
                "rollout": {"settings": {"max_context": max_context}},
                "datamodule": datamodule,
            }
        )

    return make


def test_conversations_are_at_most_as_long_as_the_model_was_made_for(configuration):
    check_context(configuration(100))
    with pytest.raises(ConfigError, match="max_context=101 is above the 100 tokens"):
        check_context(configuration(101))


def test_a_warm_start_makes_its_own_model_and_may_have_longer_ones(configuration):
    check_context(configuration(101, make_model={}))
