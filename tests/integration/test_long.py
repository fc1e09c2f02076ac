"""The whole loop in bfloat16, as the 7B runs it: 1080p, windowed vision, caches, checks; narrow, and with few steps.

`benchmarks/long_loop.py` runs it with fifteen screenshots and for longer.
"""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from arpo.errors import WeightSyncError
from arpo.models.policy import LoraSettings
from tests.integration.long import TOLERANCE, LongEngine, OldEyes, OneBehind, learn, write_talker

LORA = OmegaConf.load(Path(__file__).parents[2] / "conf/model/qwen2_5_vl_7b.yaml")
SCREENSHOTS = 3

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.engine,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:.*sync_dist"),
]


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def talker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_talker(tmp_path_factory.mktemp("talker"), request.param)


def test_a_sound_run_passes_every_check(talker, tmp_path):
    run = learn(talker, tmp_path, LongEngine, screenshots=SCREENSHOTS, iterations=2)
    assert all(metrics["rollout/steps"] > 1 for metrics in run.metrics)  # the policy is understood
    assert all(metrics["engine/logprob_gap_mean"] <= TOLERANCE / 4 for metrics in run.metrics)
    assert run.steps[-1] >= 1  # there was something to sync


@pytest.mark.parametrize("engine", [OldEyes, OneBehind])
def test_whatever_is_stale_ends_the_run(talker, tmp_path, engine):
    with pytest.raises(WeightSyncError, match="the engine holds other weights than those that it was sent"):
        learn(talker, tmp_path, engine, screenshots=SCREENSHOTS, iterations=3)


def test_the_engine_s_update_is_the_trainer_s_within_5_percent_after_a_step_of_lora(talker, tmp_path):
    lora = LoraSettings(LORA.policy.lora.rank, LORA.policy.lora.alpha)
    assert lora.rank == 32
    run = learn(talker, tmp_path, LongEngine, screenshots=1, iterations=3, rate=LORA.learning_rate, lora=lora)
    # a group without signal has no step
    after_one = next(metrics for steps, metrics in zip(run.steps, run.metrics, strict=True) if steps == 1)
    assert after_one["engine/update_error"] <= 0.05
