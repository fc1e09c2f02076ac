"""The way of every new policy to the engine, which then proves that it serves it."""

import time
from collections.abc import Sequence
from typing import Any

import lightning as L
import torch
from typing_extensions import override

from arpo.errors import check_at_least, check_positive
from arpo.inference.probe import Answer, Freshness, Watch, ask, probe_trajectory, questions
from arpo.modules.base import PolicyModule
from arpo.rollout.hooks import RolloutCallback, runtime_of
from arpo.rollout.runtime import RolloutRuntime
from arpo.types import RolloutBatch, Trajectory

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.05}
"""Largest mean gap of log-probabilities between engine and trainer, by the format of the computation."""


class WeightSync(RolloutCallback):
    """A callback that sends the policy to the engine before the first rollout and after every update, then probes it.

    The probe asks the engine a few fixed questions and compares its log-probabilities with the trainer's, of now and
    of the probe before (`arpo.inference.probe`). Because prompts and picture are always the same, an engine that kept
    a cache from before the update answers with the old policy and is caught here, not forty iterations later. Every
    replica of a fleet is asked.

    Where engine and trainer share their GPUs, the engine sleeps from the end of a rollout to the next sync: it frees
    its memory before the update begins, and takes it back, weights first, after the trainer has freed what it can.

    Args:
        tolerance: Largest mean gap of log-probabilities that the probe accepts, in nats; None is 1e-4 where the policy
            computes in float32, and 0.05 in bfloat16, where two implementations of one model differ by 0.011 to 0.014.
        probe_tokens: Length of each of the probe's 32 responses at most.
        probe_every: Probe at every n-th policy version; 0 never.
        colocated: Whether engine and trainer share their GPUs; rollouts cannot go on during an update then
            (`max_policy_lag` must be 0).

    Raises:
        ConfigError: If a number is impossible.
    """

    def __init__(
        self, *, tolerance: float | None = None, probe_tokens: int = 32, probe_every: int = 1, colocated: bool = False
    ) -> None:
        if tolerance is not None:
            check_positive(tolerance=tolerance)
        check_at_least(1, probe_tokens=probe_tokens)
        check_at_least(0, probe_every=probe_every)
        self.tolerance = tolerance
        self.probe_tokens = probe_tokens
        self.probe_every = probe_every
        self.colocated = colocated
        self._watches: Sequence[Watch] = ()
        self._resumed: Sequence[Watch] = ()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"watches": [watch.state_dict() for watch in self._watches]}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resumed = [Watch.of_state(state) for state in state_dict["watches"]]

    @override
    def on_rollout_end(self, trainer: L.Trainer, module: L.LightningModule, batch: RolloutBatch) -> None:
        if self.colocated:
            runtime = runtime_of(trainer)
            runtime.run(runtime.engine.sleep())

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._watches = ()  # another training may have gone before
        self._sync(trainer, pl_module)
        # The engine has just proved that it loaded these weights; the next update is compared as if nothing had been.
        self._watches, self._resumed = self._resumed or self._watches, ()

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        started = time.monotonic()
        probed = self._sync(trainer, pl_module)
        metrics = {"time/sync": time.monotonic() - started}
        if probed:  # of several replicas, the worst
            metrics["engine/probe_gap"] = max(replica.gap for replica in probed)
            metrics["engine/probe_gap_max"] = max(replica.largest_gap for replica in probed)
            metrics["engine/probe_evidence"] = min(replica.evidence for replica in probed)
            metrics["engine/probe_unjudged"] = float(max(watch.unjudged for watch in self._watches))
        error = PolicyModule.of(pl_module).policy.update_error()
        if error is not None:
            metrics["engine/update_error"] = error
        pl_module.log_dict(metrics, on_step=False, on_epoch=True, batch_size=1, rank_zero_only=True)

    def _sync(self, trainer: L.Trainer, pl_module: L.LightningModule) -> list[Freshness]:
        """Update the engine and probe it; on every rank, because all gather the weights, and compute, together."""
        module = PolicyModule.of(pl_module)
        if self.colocated:  # before rank 0 wakes the engines of all the GPUs
            torch.cuda.empty_cache()
            trainer.strategy.barrier()
        tensors = module.policy.checkpoint_tensors()
        probes = self.probe_every > 0 and module.policy_version % self.probe_every == 0
        asked: list[list[Trajectory]] = []
        if trainer.is_global_zero:
            runtime = runtime_of(trainer)
            runtime.update_weights(tensors, module.policy_version)
            if probes:
                asked = self._ask(runtime, module)
        else:
            for _ in tensors:
                pass
        return self._judge(trainer.strategy.broadcast(asked), module) if probes else []

    def _ask(self, runtime: RolloutRuntime, module: PolicyModule) -> list[list[Trajectory]]:
        """Return what every replica answers."""
        requests = questions(module.policy.chat, self.probe_tokens, module.temperature)
        replicas = runtime.run(ask(runtime.engine, requests))
        return [list(map(probe_trajectory, requests, responses)) for responses in replicas]

    def _judge(self, asked: list[list[Trajectory]], module: PolicyModule) -> list[Freshness]:
        """Return how fresh every replica is, and stop the run if one is not."""
        if len(self._watches) != len(asked):
            self._watches = [Watch() for _ in asked]
        tolerance = self.tolerance or TOLERANCES[module.policy.dtype]
        probed = []
        for number, (watch, replica) in enumerate(zip(self._watches, asked, strict=True)):
            found = watch.judge(_answers(replica, module))
            found.check(tolerance, "the engine" if len(asked) == 1 else f"engine {number} of the fleet")
            probed.append(found)
        return probed


def _answers(probes: Sequence[Trajectory], module: PolicyModule) -> list[Answer]:
    opinions = module.sampled_logprobs(probes)
    return [
        Answer(step.response_ids, step.sampler_logprobs, tuple(opinion))
        for (step,), opinion in zip((probe.steps for probe in probes), opinions, strict=True)
    ]
