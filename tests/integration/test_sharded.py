"""`train.py experiment=smoke trainer=fsdp` on two ranks, vLLM in its actor: killed once, resumed, and it learns."""

from statistics import fmean

import pytest
import torch

from arpo.models.policy import Policy
from arpo.run.evaluate import policy_directory
from tests.integration.runs import Run

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]

TWO_RANKS = ("trainer=fsdp", "trainer.devices=2", "trainer.accelerator=cpu", "engine=fleet", "engine.num_gpus=0")
KILLED_AFTER = 5


@pytest.fixture(scope="module")
def run(smoke, tmp_path_factory):
    """The finished run."""
    run = smoke.again(tmp_path_factory.mktemp("sharded") / "run", *TWO_RANKS)
    try:
        run.start()
        run.wait_for_rollout(KILLED_AFTER)
        run.process.kill()
        run.wait()
        assert [path.name for path in run.checkpoints][-1] == f"iteration_{KILLED_AFTER:06d}.ckpt"
        assert run.go("resume=auto") == 0, run.said
        yield run
    finally:
        run.end()


def test_engine_and_trainer_agree_after_every_sync_and_success_rises(run: Run, smoke):
    assert [line["step"] for line in run.metrics] == list(range(smoke.iterations + 1))
    assert all(line["engine/logprob_gap_max"] <= 1e-4 for line in run.metrics[1:])
    rates = [line["rollout/success_rate"] for line in run.metrics[1:]]
    assert fmean(rates[-3:]) >= fmean(rates[:3]) + 0.25
    run.assert_nothing_left()


def test_the_policy_of_a_sharded_checkpoint_is_exported_by_one_process(run: Run, smoke, tmp_path):
    trained = Policy(policy_directory(run.checkpoints[-1], tmp_path / "policy"))
    first = Policy(smoke.policy)
    pairs = list(zip(trained.parameters(), first.parameters(), strict=True))
    assert all(not torch.equal(now, then) for now, then in pairs)
