"""The way from a trainer to its rollouts."""

from types import SimpleNamespace

import lightning as L
import pytest

from arpo.errors import ConfigError
from arpo.rollout.hooks import runtime_of


class RollingOut(L.LightningDataModule):
    """A data module whose runtime is a string."""

    runtime = "the engine and the environments"


def test_a_data_module_that_rolls_out_has_the_runtime():
    assert runtime_of(SimpleNamespace(datamodule=RollingOut())) == RollingOut.runtime


def test_a_callback_of_rollouts_beside_other_data_says_so():
    with pytest.raises(ConfigError, match="needs a data module that rolls out, got LightningDataModule"):
        runtime_of(SimpleNamespace(datamodule=L.LightningDataModule()))
