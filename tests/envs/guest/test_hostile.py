"""A guest, or a browser, that lies: it costs the deadline and some memory, and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.envs.guest.hostile import ATTACKS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
DEADLINE_S = 0.5
BOUND_S = 15.0
"""A call without a deadline of its own lasts for ever here; a busy machine adds seconds to one that has it."""
MOST_MEBIBYTES = 64


@pytest.fixture(scope="module")
def prices():
    command = [sys.executable, "-m", "tests.envs.guest.hostile", str(DEADLINE_S)]
    said = subprocess.check_output(command, cwd=ROOT, text=True)
    return {price["what"]: price for price in map(json.loads, said.splitlines())}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.what)
def test_a_lie_costs_the_deadline_and_is_an_environment_error(prices, attack):
    price = prices[attack.what]
    assert price["seconds"] <= BOUND_S, price
    assert price["mebibytes"] <= MOST_MEBIBYTES, price
    assert attack.is_answer or price["result"].startswith("EnvError: "), price
