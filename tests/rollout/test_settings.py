import math

import pytest

from arpo.errors import ConfigError
from arpo.rollout.settings import RolloutSettings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group_size": 0}, "group_size must be at least 1, got 0"),
        ({"min_group_size": 5}, "min_group_size=5 is above group_size=4"),
        ({"max_context": 40}, "max_context=40 must be above max_tokens=40"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"temperature": math.nan}, "temperature must be above 0 and finite, got nan"),
        ({"temperature": math.inf}, "temperature must be above 0 and finite, got inf"),
        ({"success_threshold": 1.0}, r"success_threshold must lie in \[0, 1\), got 1.0"),
        ({"success_threshold": math.nan}, r"success_threshold must lie in \[0, 1\), got nan"),
        ({"stall_s": math.inf}, "stall_s must be finite, got inf"),
        ({"max_policy_lag": -1}, "max_policy_lag must be finite and not negative, got -1"),
        ({"max_policy_lag": math.inf}, "max_policy_lag must be finite and not negative, got inf"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_actions": 0}, "max_actions must be at least 1, got 0"),
        ({"order": "first"}, "order must be one of submitted, finished, got .first."),
        ({"stall_s": 0.0}, "stall_s must be above 0, got 0"),
        ({"image_window": 0}, "image_window must be at least 1, got 0"),
    ],
)
def test_numbers_that_cannot_work_are_refused(change, message):
    numbers = {"group_size": 4, "max_steps": 4, "max_tokens": 40, "max_context": 2000}
    with pytest.raises(ConfigError, match=message):
        RolloutSettings(**(numbers | change))
