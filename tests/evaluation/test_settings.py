import pytest

from arpo.errors import ConfigError
from arpo.evaluation.settings import EvaluationSettings


def test_greedy_is_allowed():
    assert EvaluationSettings(temperature=0.0).temperature == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rollouts_per_task": 0}, "rollouts_per_task must be at least 1, got 0"),
        ({"temperature": -0.1}, "temperature must be finite and not negative, got -0.1"),
        ({"temperature": float("nan")}, "temperature must be finite and not negative, got nan"),
        ({"temperature": float("inf")}, "temperature must be finite and not negative, got inf"),
        ({"protocol": "soft"}, "protocol must be one of hard, standard, got 'soft'"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        EvaluationSettings(**change)
