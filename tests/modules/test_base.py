"""What every module shares, and how callbacks come by it."""

import lightning as L
import pytest

from arpo.errors import ConfigError
from arpo.modules.base import PolicyModule


def test_a_module_that_trains_a_policy_is_given_to_callbacks_as_what_it_is(make_module):
    module = make_module()
    assert PolicyModule.of(module) is module


def test_a_module_without_a_policy_is_refused_by_its_name():
    with pytest.raises(
        ConfigError, match=r"expected a module that trains a policy, a PolicyModule, got LightningModule$"
    ):
        PolicyModule.of(L.LightningModule())


def test_the_weight_of_the_format_reward_is_that_of_the_objective(make_module):
    assert make_module(format_weight=0.25).format_weight == 0.25
