"""A bound in a signature refuses a value by name, before the body of what it belongs to runs."""

import inspect
import math
from dataclasses import dataclass
from typing import Literal

import pytest

from arpo.bounds import AtLeastOne, NotNegative, NotNegativeInt, Positive, Share, Threshold, checked
from arpo.errors import ConfigError


@checked
@dataclass(frozen=True, slots=True)
class Settings:
    """One field for each kind of bound."""

    count: AtLeastOne = 1
    steps: NotNegativeInt = 0
    seconds: Positive | None = None
    weight: NotNegative = 0.0
    share: Share = 0.5
    threshold: Threshold = 0.5
    kind: Literal["mean", "sum", "none"] = "mean"
    sizes: tuple[AtLeastOne, ...] = ()
    label: str = ""


REFUSED = {
    "count must be at least 1, got 0": {"count": 0},
    "count must be a finite number, got inf": {"count": math.inf},
    "count must be a valid integer, got 1.5": {"count": 1.5},
    "steps must be at least 0, got -1": {"steps": -1},
    "seconds must be above 0, got 0": {"seconds": 0},
    "seconds must be a finite number, got inf": {"seconds": math.inf},
    "weight must be at least 0, got -0.5": {"weight": -0.5},
    "weight must be a finite number, got nan": {"weight": math.nan},
    "share must be at most 1, got 1.5": {"share": 1.5},
    "share must be at most 1, got nan": {"share": math.nan},
    "threshold must be below 1, got 1": {"threshold": 1},
    "kind must be 'mean', 'sum' or 'none', got 'median'": {"kind": "median"},
    r"sizes must be at least 1, got \(2, 0\)": {"sizes": (2, 0)},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_value_beyond_its_bound_is_refused_by_name(sentence):
    with pytest.raises(ConfigError, match=sentence):
        Settings(**REFUSED[sentence])


def test_values_signatures_and_python_s_messages_are_passed_on_unchanged():
    sizes = [2, 3]
    made = Settings(count=3, seconds=2, share=1, threshold=0, kind="sum", sizes=sizes, label=7)
    assert made.sizes is sizes
    assert made.label == 7
    assert type(made.seconds) is int

    @checked
    def scaled(factor: Positive) -> float:
        """Return twice a factor."""
        return 2 * factor

    assert scaled(2) == 4
    assert list(inspect.signature(scaled).parameters) == ["factor"]
    with pytest.raises(ConfigError, match="factor must be above 0, got -1"):
        scaled(-1)
    with pytest.raises(TypeError, match=r"scaled\(\) got an unexpected keyword argument 'other'"):
        scaled(other=1)
