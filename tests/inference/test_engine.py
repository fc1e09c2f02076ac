"""The figures that an engine's counters become."""

import pytest

from arpo.inference.engine import figures


def test_sums_become_rates_and_shares() -> None:
    grown = {
        "engine/replica_0/in_flight_s": 30.0,
        "engine/replica_0/waiting_s": 5.0,
        "engine/replica_0/tokens": 400.0,
        "engine/replica_0/prompt_tokens": 1000.0,
        "engine/replica_0/cached_prompt_tokens": 750.0,
        "engine/replica_0/requests": 7.0,
        "engine/steps": 3.0,
        "env/tokens": 2.0,
    }
    assert figures(grown, elapsed_s=10.0) == {
        "engine/replica_0/in_flight": 3.0,  # 30 / 10
        "engine/replica_0/waiting": 0.5,  # 5 / 10
        "engine/replica_0/tokens_per_s": 40.0,  # 400 / 10
        "engine/replica_0/prompt_cached": 0.75,  # 750 / 1000
        "engine/replica_0/requests": 7.0,
        "engine/steps": 3.0,
        "env/tokens": 2.0,
    }


@pytest.mark.parametrize("pictures", [{}, {"engine/pictures": 0.0, "engine/cached_pictures": 0.0}])
def test_a_share_of_nothing_is_none(pictures: dict[str, float]) -> None:
    assert figures(pictures, elapsed_s=1.0) == {}
