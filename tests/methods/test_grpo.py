"""The credit of a group's tokens under GRPO and its relatives; the formulas are tested with `group_advantages`."""

import pytest

from arpo.methods.grpo import GRPO
from tests.methods.conftest import trajectory


def test_every_token_of_a_trajectory_has_its_advantage(make_group):
    group = make_group(trajectory("ab", 1.0, lengths=(2, 1)), trajectory("a", 0.0, lengths=(4,)))
    (credits,) = GRPO(estimator="dr_grpo").credits([group])  # 1 and 0 less their mean
    assert [credit.advantages.tolist() for credit in credits] == [[0.5] * 3, [-0.5] * 4]
    assert all(credit.returns is None for credit in credits)


def test_groups_are_not_compared_with_each_other(make_group):
    good, bad = (make_group(trajectory("a", reward), trajectory("a", reward)) for reward in (1.0, 0.0))
    for credits in GRPO().credits([good, bad]):
        assert [credit.advantages.tolist() for credit in credits] == [[0.0], [0.0]]


def test_step_grpo_counts_a_trajectory_once_a_step(make_group):
    # rewards over steps 1, 1, 1, 0: mean 3/4, deviation sqrt(3)/4
    group = make_group(trajectory("abc", 1.0), trajectory("a", 0.0))
    ((good, bad),) = GRPO(estimator="step_grpo").credits([group])
    assert good.advantages.tolist() == pytest.approx([3**-0.5] * 3, abs=1e-5)
    assert bad.advantages.tolist() == pytest.approx([-(3**0.5)], abs=1e-5)
