"""A sync that leaves a stale cache in vLLM ends the run before it can learn from it."""

import pytest

from arpo.envs.fake import fake_tasks
from arpo.errors import WeightSyncError
from arpo.inference.vllm import VllmEngine
from tests.integration.parts import Recorder, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.engine,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:.*sync_dist"),
]


class UnableToForget(VllmEngine):
    """Takes new weights and keeps the prefixes that it computed with the old ones."""

    def _reset_caches(self) -> None:
        # vLLM 0.32 empties one half of its encoder cache by itself and would end at the other half
        self._engine.reset_encoder_cache()


def learn(model, directory, engine, recorder=None):
    def make_engine(chat):
        return engine(model, max_model_len=1000, max_images=3, max_num_seqs=8)

    return train(
        model,
        directory,
        make_engine,
        replay=False,
        iterations=4,
        tasks=fake_tasks(4),
        probe_every=1,
        learning_rate=1e-3,
        callbacks=[recorder] if recorder else [],
    )


def test_a_sync_that_keeps_the_caches_is_caught_at_the_first_update(smoke, tmp_path):
    seen = Recorder()
    with pytest.raises(WeightSyncError, match=r"kept a prefix, multimodal or encoder cache"):
        learn(smoke.policy, tmp_path, UnableToForget, seen)
    assert seen.weights == []  # not one iteration was completed


def test_the_same_run_with_vllm_as_it_is_passes_every_probe(smoke, tmp_path):
    run = learn(smoke.policy, tmp_path, VllmEngine)
    assert all(metrics["engine/probe_gap"] <= 1e-4 for metrics in run.metrics)
    assert run.steps[-1] >= 4  # there was something to sync, twice or more: a sparse policy has groups without signal
