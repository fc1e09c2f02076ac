"""The policy that `make train` starts from, made again by the command that its page names: is it as good?"""

import json
import os
import subprocess
import sys

import pytest

from arpo.run.warmstart import unpack
from tests.integration.conftest import short_directory
from tests.integration.runs import ROOT

pytestmark = [
    *(pytest.mark.slow, pytest.mark.long, pytest.mark.engine, pytest.mark.browser, pytest.mark.ray),
    pytest.mark.timeout(3600),
]

WARMSTART = "warmstart_habits"


def run(*command: str) -> None:
    """Run one of the scripts to its end, with a temporary directory of its own."""
    with short_directory() as sessions:
        environment = os.environ | {"TMPDIR": str(sessions), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *command], check=False, cwd=ROOT, env=environment, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_policy_made_again_succeeds_as_often_as_the_one_that_comes_with_the_code(tmp_path):
    run("train.py", f"experiment={WARMSTART}", f"paths.output={tmp_path}")
    unpack(WARMSTART, tmp_path / "shipped")
    policies = {"shipped": tmp_path / "shipped", "made": tmp_path / WARMSTART / "default" / "policy"}
    judged = {}
    for name, policy in policies.items():
        results = tmp_path / f"{name}_results"
        run("evaluate.py", "experiment=arpo_miniwob", f"checkpoint={policy}", f"hydra.run.dir={results}")
        judged[name] = json.loads((results / "results.json").read_text())
    for tasks in ("in_domain", "held_out"):
        shipped, made = (judged[name][tasks]["overall"] for name in policies)
        assert made["interval_low"] <= shipped["interval_high"], tasks
        assert shipped["interval_low"] <= made["interval_high"], tasks
