"""A guest, or a browser, that lies: it costs the deadline and some memory, and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.envs.guest.hostile import ATTACKS, Price

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
DEADLINE_S = 0.5
GRACE_S = 1.0
MOST_MEBIBYTES = 64
ATTEMPTS = 3
"""A busy machine adds its own to the seconds of a call; a call without a deadline is never quick enough."""


def measure(*words):
    """Measure outside of this process, which has other things in memory."""
    command = [sys.executable, "-m", "tests.envs.guest.hostile", str(DEADLINE_S), *words]
    said = subprocess.check_output(command, cwd=ROOT, text=True)
    return {price.what: price for price in (Price(**json.loads(line)) for line in said.splitlines())}


@pytest.fixture(scope="module")
def prices():
    """What every lie cost."""
    return measure()


@pytest.mark.parametrize("what", [attack.what for attack in ATTACKS])
def test_a_lie_costs_the_deadline_and_is_an_environment_error(prices, what):
    price = prices[what]
    for _ in range(ATTEMPTS - 1):
        if price.seconds > DEADLINE_S + GRACE_S:
            price = measure(what)[what]
    assert price.seconds <= DEADLINE_S + GRACE_S, price
    assert price.mebibytes <= MOST_MEBIBYTES, price
    assert price.is_answer or price.result.startswith("EnvError: "), price


def test_no_lie_has_the_name_of_another():
    assert len({attack.what for attack in ATTACKS}) == len(ATTACKS) >= 40
