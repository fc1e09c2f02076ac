from pathlib import Path

import pytest

from arpo.errors import ConfigError
from arpo.inference.checkpoint import checkpoint_shapes
from arpo.inference.pump import checked
from arpo.models.policy import Policy


def test_the_policys_tensors_are_exactly_the_checkpoints(tiny_model: Path) -> None:
    given = list(checked(Policy(tiny_model).checkpoint_tensors(), checkpoint_shapes(tiny_model)))
    assert {name for name, _ in given} == set(checkpoint_shapes(tiny_model))


def test_a_directory_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no \\*\\.safetensors"):
        checkpoint_shapes(tmp_path)
