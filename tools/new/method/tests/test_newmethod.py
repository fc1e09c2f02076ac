"""The numbers of newmethod by hand, and whether its configuration fits together."""

import pytest
from newmethod.method import NewMethod

from arpo.run.arguments import check_arguments
from arpo.run.build import compose
from arpo.types import Exchange, Group, Outcome, Step, Task, Trajectory


def trajectory(task_reward: float, tokens: int) -> Trajectory:
    """Return an episode of one step with so many sampled tokens."""
    exchange = Exchange(None, (1,), (), (2,) * tokens, (0.0,) * tokens, policy_version=0)
    step = Step("screen", 1, 1, "response", exchange=0)
    return Trajectory("0/0/0", "task", "", "", 0, (step,), Outcome.FINISHED, task_reward, 0.0, (exchange,))


def test_every_sampled_token_has_the_advantage_of_its_trajectory():
    """Rewards 1, 0, 0, 1 have the mean 0.5, so with α = 2 advantages are 2 * 0.5 = 1 and -1."""
    group = Group(Task("task", ""), tuple(trajectory(*each) for each in ((1.0, 2), (0.0, 1), (0.0, 3), (1.0, 1))))
    (credits,) = NewMethod(scale=2.0).checked_credits([group])
    assert [credit.advantages.tolist() for credit in credits] == [[1.0, 1.0], [-1.0], [-1.0, -1.0, -1.0], [1.0]]


def test_the_configuration_fits_the_constructors():
    """Check it as a run does before anything starts."""
    check_arguments(compose("train", ["experiment=smoke", "method=newmethod", "paths.run_dir=run"]))


def test_a_scale_of_nothing_is_refused():
    """Check that a bound in a signature is one."""
    with pytest.raises(ValueError, match="scale must be above 0, got 0"):
        NewMethod(scale=0)
