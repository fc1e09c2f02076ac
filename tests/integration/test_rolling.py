"""Two replicas of vLLM on MiniWoB++ pages: a rolling sync loses nothing, and a step is of the version it names."""

from collections import Counter
from functools import partial
from itertools import chain

import lightning as L
import pytest
import torch
from typing_extensions import override

from arpo.envs.miniwob.env import MiniWobEnv
from arpo.envs.miniwob.tasks import miniwob_tasks
from arpo.inference.fleet import FleetEngine
from arpo.inference.vllm import VllmEngine
from arpo.methods.grpo import GRPO
from arpo.models.policy import Policy
from arpo.modules.grpo import GRPOModule
from arpo.rollout.hooks import runtime_of
from arpo.rollout.settings import RolloutSettings
from arpo.rollout.storage import TrajectoryStore
from tests.browser import needs_chromium
from tests.integration.parts import train
from tests.modules.conftest import sampled_logprobs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.engine,
    pytest.mark.ray,
    pytest.mark.browser,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:.*sync_dist"),
]

TOLERANCE = 1e-4
ITERATIONS = 5
TASKS = miniwob_tasks(["click-test-2", "click-color"], [1])
SETTINGS = RolloutSettings(group_size=4, max_steps=4, max_tokens=24, max_context=1024, max_policy_lag=1)


class CoinWob(MiniWobEnv):
    """Judges an episode by a coin, so that groups differ and every update changes the policy."""

    throws = 0

    @override
    def evaluate(self) -> float:
        super().evaluate()
        CoinWob.throws += 1
        return float(CoinWob.throws % 2)


class Counters(L.Callback):
    """Keeps what the replicas had counted in the end."""

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        runtime = runtime_of(trainer)
        runtime.run(runtime.engine.wait_until_idle())
        self.counters = runtime.counters()


@needs_chromium
def test_no_request_is_lost_and_every_step_has_the_log_probabilities_of_its_version(smoke, tmp_path):
    def make_engine(chat):
        options = {"max_model_len": 1024, "max_images": 4, "max_num_seqs": 8, "kv_cache_gb": 0.0625}
        return FleetEngine(partial(VllmEngine, smoke.policy, **options), replicas=2, sync="rolling")

    replicas = Counters()
    run = train(
        smoke.policy,
        tmp_path,
        make_engine,
        replay=False,
        iterations=ITERATIONS,
        tasks=TASKS,
        make_env=CoinWob,
        settings=SETTINGS,
        callbacks=[replicas],
    )
    store = TrajectoryStore(tmp_path / "trajectories")
    played = list(chain.from_iterable(store.read("train", iteration) for iteration in range(ITERATIONS)))

    # Nothing is lost, and nothing is counted twice: 5 iterations x 2 tasks x 4 episodes, one answer a step.
    assert len({trajectory.id for trajectory in played}) == len(played) == ITERATIONS * 2 * 4
    assert all(metrics["rollout/dropped_episodes"] == 0 for metrics in run.metrics)
    steps = sum(len(trajectory.steps) for trajectory in played)
    assert sum(replicas.counters[f"engine/replica_{number}/requests"] for number in range(2)) == steps
    assert all(replicas.counters[f"engine/replica_{number}/requests"] > 0 for number in range(2))
    assert replicas.counters["engine/restarts"] == 0

    assert all(run.changed(iteration) for iteration in range(1, ITERATIONS))

    # Each step's log-probabilities are those of the version that it names.
    module = GRPOModule(partial(Policy, smoke.policy), partial(torch.optim.AdamW, lr=0.0), GRPO())
    module.configure_model()
    worst, seen = Counter(), Counter()
    for version in range(ITERATIONS):  # the last update comes after the last rollout
        if version > 0:
            module.load_state_dict(run.weights[version - 1], strict=False)  # what is tied has one of its names
        for trajectory in played:
            if version not in {exchange.policy_version for exchange in trajectory.exchanges}:
                continue
            loaded = store.load_screenshots(trajectory)
            rest = iter(sampled_logprobs(module, loaded))
            for exchange in loaded.exchanges:
                pairs = [(next(rest), sampled) for sampled in exchange.sampler_logprobs]
                if exchange.policy_version == version:
                    seen[version] += 1
                    worst[version] = max(worst[version], *(abs(one - other) for one, other in pairs))
    assert sum(seen.values()) == steps
    assert len(seen) >= ITERATIONS - 1
    assert max(worst.values()) <= TOLERANCE
