"""The way of every new policy to the engine, which then proves that it serves it."""

import time
from collections.abc import Sequence

import lightning as L
from typing_extensions import override

from arpo.errors import check_at_least, check_positive
from arpo.inference.probe import Answer, Freshness, ask, freshness, probe_trajectory, questions
from arpo.modules.base import PolicyModule
from arpo.rollout.hooks import runtime_of
from arpo.rollout.runtime import RolloutRuntime
from arpo.types import Trajectory


class WeightSync(L.Callback):
    """A callback that sends the policy to the engine before the first rollout and after every update, then probes it.

    The probe asks the engine a few fixed questions and compares its log-probabilities with the trainer's, of now and
    of the probe before (`arpo.inference.probe`). Because prompts and picture are always the same, an engine that kept
    a cache from before the update answers with the old policy and is caught here, not forty iterations later.

    Args:
        tolerance: Largest mean gap of log-probabilities that the probe accepts, in nats: 1e-4 in float32, 0.05 in
            bfloat16, where two implementations of one model differ by 0.011 to 0.014.
        probe_tokens: Length of each of the probe's sixteen responses at most.
        probe_every: Probe at every n-th policy version; 0 never.

    Raises:
        ConfigError: If a number is impossible.
    """

    def __init__(self, *, tolerance: float = 1e-4, probe_tokens: int = 16, probe_every: int = 1) -> None:
        check_positive(tolerance=tolerance)
        check_at_least(1, probe_tokens=probe_tokens)
        check_at_least(0, probe_every=probe_every)
        self.tolerance = tolerance
        self.probe_tokens = probe_tokens
        self.probe_every = probe_every
        self._before: Sequence[Answer] = ()

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._before = ()  # another training may have gone before
        self._sync(trainer, pl_module)

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        started = time.monotonic()
        probed = self._sync(trainer, pl_module)
        metrics = {"time/sync": time.monotonic() - started}
        if probed is not None:
            metrics["engine/probe_gap"] = probed.gap
            metrics["engine/probe_gap_max"] = probed.largest_gap
            if probed.compared:
                metrics["engine/probe_older_share"] = probed.older / probed.compared
        error = PolicyModule.of(pl_module).policy.update_error()
        if error is not None:
            metrics["engine/update_error"] = error
        pl_module.log_dict(metrics, on_step=False, on_epoch=True, batch_size=1, rank_zero_only=True)

    def _sync(self, trainer: L.Trainer, pl_module: L.LightningModule) -> Freshness | None:
        """Update the engine and probe it; on every rank, because all gather the weights, and compute, together."""
        module = PolicyModule.of(pl_module)
        tensors = module.policy.checkpoint_tensors()
        probes = self.probe_every > 0 and module.policy_version % self.probe_every == 0
        asked: list[Trajectory] = []
        if trainer.is_global_zero:
            runtime = runtime_of(trainer)
            runtime.update_weights(tensors, module.policy_version)
            if probes:
                asked = self._ask(runtime, module)
        else:
            for _ in tensors:
                pass
        if not probes:
            return None
        answers = _answers(trainer.strategy.broadcast(asked), module)
        probed = freshness(answers, self._before)
        probed.check(self.tolerance)
        self._before = answers
        return probed

    def _ask(self, runtime: RolloutRuntime, module: PolicyModule) -> list[Trajectory]:
        requests = questions(module.policy.chat, self.probe_tokens, module.temperature)
        responses = runtime.run(ask(runtime.engine, requests))
        return [probe_trajectory(request, response) for request, response in zip(requests, responses, strict=True)]


def _answers(probes: Sequence[Trajectory], module: PolicyModule) -> list[Answer]:
    opinions = module.sampled_logprobs(probes)
    return [
        Answer(probe.steps[0].response_ids, probe.steps[0].sampler_logprobs, tuple(opinion))
        for probe, opinion in zip(probes, opinions, strict=True)
    ]
