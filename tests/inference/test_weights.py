from pathlib import Path

import pytest
import torch

from arpo.errors import ConfigError, WeightSyncError
from arpo.inference.weights import checked, checkpoint_shapes
from arpo.models.names import checkpoint_name
from arpo.models.policy import Policy

SHAPES = {"model.norm.weight": (4,), "visual.merger.weight": (2, 4)}


def test_module_names_and_checkpoint_names_are_the_same_tensor() -> None:
    assert checkpoint_name("model.language_model.norm.weight") == "model.norm.weight"
    assert checkpoint_name("model.visual.merger.weight") == "visual.merger.weight"
    assert checkpoint_name("lm_head.weight") == "lm_head.weight"


def test_the_policys_tensors_are_exactly_the_checkpoints(tiny_model: Path) -> None:
    given = list(checked(Policy(tiny_model).checkpoint_tensors(), checkpoint_shapes(tiny_model)))
    assert {name for name, _ in given} == set(checkpoint_shapes(tiny_model))


def test_a_missing_tensor_is_an_error_at_the_end() -> None:
    with pytest.raises(WeightSyncError, match=r"1 of 2 tensors are missing from the update: visual\.merger\.weight"):
        list(checked([("model.norm.weight", torch.zeros(4))], SHAPES))


def test_an_unknown_tensor_is_an_error() -> None:
    with pytest.raises(WeightSyncError, match=r"no tensor 'model\.nrm\.weight'"):
        list(checked([("model.nrm.weight", torch.zeros(4))], SHAPES))


def test_another_shape_is_an_error() -> None:
    with pytest.raises(WeightSyncError, match=r"is \(5,\), the model's is \(4,\)"):
        list(checked([("model.norm.weight", torch.zeros(5))], SHAPES))


def test_a_tied_output_layer_may_be_given_and_is_left_out() -> None:
    whole = [(name, torch.zeros(shape)) for name, shape in SHAPES.items()]
    assert [name for name, _ in checked([*whole, ("lm_head.weight", torch.zeros(9))], SHAPES)] == list(SHAPES)


def test_a_directory_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no \\*\\.safetensors"):
        checkpoint_shapes(tmp_path)
