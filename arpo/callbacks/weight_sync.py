"""The way of every new policy to the engine, which then proves that it serves it."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import lightning as L
import torch
from torch import Tensor
from typing_extensions import override

from arpo.errors import ArpoError, check_at_least, check_positive
from arpo.inference.exam import Exam
from arpo.inference.probe import Freshness, Watch, probe_trajectory, questions
from arpo.modules.base import PolicyModule
from arpo.rollout.hooks import attempt, broadcast, raise_everywhere, runtime_of
from arpo.rollout.runtime import RolloutRuntime
from arpo.types import Trajectory

_T = TypeVar("_T")

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.05}
"""Largest mean gap of log-probabilities between engine and trainer, by the format of the computation."""


class WeightSync(L.Callback):
    """A callback that sends the policy to the engine before the first iteration and after each, then probes it.

    The probe asks the engine a few fixed questions and compares its log-probabilities with the trainer's, of now and
    of the probe before (`arpo.inference.probe`). Because prompts and picture are always the same, an engine that kept
    a cache from before the update answers with the old policy and is caught here, not forty iterations later. Every
    replica of a fleet is asked, before it serves the new policy; with `sync: rolling` most of them while the trainer
    is at its next step already (`arpo.inference.exam`), and an error of theirs stops the run at its next request.

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
        self._watches: defaultdict[int, Watch] = defaultdict(Watch)
        self._resumed: Mapping[int, Watch] = {}
        self._exam: Exam | None = None

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"watches": {number: watch.state_dict() for number, watch in self._known().items()}}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resumed = {number: Watch.of_state(state) for number, state in state_dict["watches"].items()}

    @override
    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: object, batch_idx: int
    ) -> None:
        if self.colocated and batch_idx == 0 and trainer.is_global_zero:
            runtime = runtime_of(trainer)
            runtime.run(runtime.engine.sleep())

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._watches.clear()  # another training may have gone before
        self._exam = None
        self._sync(trainer, pl_module)
        # The engine has just proved that it loaded these weights; the next update is compared as if nothing had been.
        self._watches.update(self._resumed)
        self._resumed = {}

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        if not trainer.is_last_batch:  # offline, an iteration has several: nobody asks the engine in between
            return
        started = time.monotonic()
        probed = self._sync(trainer, pl_module)
        metrics = {"time/sync": time.monotonic() - started}
        if probed:  # of several replicas, the worst
            metrics["engine/probe_gap"] = max(replica.gap for replica in probed)
            metrics["engine/probe_gap_max"] = max(replica.largest_gap for replica in probed)
            metrics["engine/probe_evidence"] = min(replica.evidence for replica in probed)
            metrics["engine/probe_unjudged"] = float(max(watch.unjudged for watch in self._known().values()))
        error = PolicyModule.of(pl_module).policy.update_error()
        if error is not None:
            metrics["engine/update_error"] = error
        pl_module.log_dict(metrics, on_step=False, on_epoch=True, batch_size=1, rank_zero_only=True)

    def _known(self) -> dict[int, Watch]:
        """Return a copy of the watches, to which a replica's examination may add one at any time."""
        return dict(self._watches)

    def _sync(self, trainer: L.Trainer, pl_module: L.LightningModule) -> list[Freshness]:
        """Update the engine and have it examined; on every rank, because all gather the weights, and judge, together.

        Returns:
            What the examinations found, on global rank 0; of replicas that are examined later, at the next sync.
        """
        module = PolicyModule.of(pl_module)
        if self.colocated:  # before rank 0 wakes the engines of all the GPUs
            torch.cuda.empty_cache()
            trainer.strategy.barrier()
        tensors = module.policy.checkpoint_tensors()
        probes = self.probe_every > 0 and module.policy_version % self.probe_every == 0
        update: _Update | None = None
        last, self._exam = self._exam, None
        if trainer.is_global_zero:
            self._exam = self._prepare(trainer, module) if probes else None
            update = _Update.begin(runtime_of(trainer), tensors, module.policy_version, self._exam)
        else:
            for _ in tensors:
                pass
        error = self._judge(module, update) if probes else None
        self._finish(module, update, error)
        return [found for exam in (last, self._exam) if exam is not None for found in exam.unread()]

    def _prepare(self, trainer: L.Trainer, module: PolicyModule) -> Exam:
        requests = questions(module.policy.chat, self.probe_tokens, module.temperature)
        tolerance = self.tolerance or TOLERANCES[module.policy.dtype]
        return Exam(requests, tolerance, self._watches, fleet=len(runtime_of(trainer).engine.replicas) > 1)

    def _judge(self, module: PolicyModule, update: "_Update | None") -> Exception | None:
        """Have all ranks judge what the first replica answers; return why it does not answer, if it does not."""
        asked: list[Trajectory] = []
        error: Exception | None = None
        if self._exam is not None and update is not None:
            what = f"the trainer waits for the answers to the probe of policy version {module.policy_version}"
            answered = update.outcome(self._exam.first_answers(update.ended), what)
            responses, error = answered
            asked = list(map(probe_trajectory, self._exam.requests, responses or []))
        asked = broadcast(asked)
        opinions = module.sampled_logprobs(asked) if asked else []
        if self._exam is not None and asked:
            self._exam.judge(opinions)
        return error

    def _finish(self, module: PolicyModule, update: "_Update | None", error: Exception | None) -> None:
        """Wait for the engine, and stop every rank if it does not serve the policy."""
        if update is not None and error is None:
            what = f"the trainer waits until the engine serves policy version {module.policy_version}"
            _, error = update.outcome(update.ended, what)
        raise_everywhere(error)


@dataclass(frozen=True, slots=True)
class _Update:
    """An update of the engine, on rank 0; the other ranks gather its weights too, and hear of nothing before."""

    runtime: RolloutRuntime
    tensors: Iterator[tuple[str, Tensor]]
    ended: Future[None]

    @classmethod
    def begin(
        cls, runtime: RolloutRuntime, tensors: Iterator[tuple[str, Tensor]], version: int, exam: Exam | None
    ) -> Self:
        """Begin it; where that is impossible, it has ended in the error."""
        try:
            ended = runtime.begin_update(tensors, version, exam)
        except ArpoError as error:  # the event loop of the rollouts has died
            ended = Future()
            ended.set_exception(error)
        return cls(runtime, tensors, ended)

    def outcome(self, future: Future[_T], what: str) -> tuple[_T | None, Exception | None]:
        """Return what a future of the engine gives, or its error, which every rank is to hear of before it is raised.

        Raises:
            Exception: The error, at once, if the gathering itself stands still. No word reaches the others then; they
                are ended with this process, by whatever started them.
        """
        found, error = attempt(lambda: self.runtime.watch(future, lambda: what))
        try:
            for _ in self.tensors:  # which an engine has not read that failed: the others wait in the middle of them
                pass
        except Exception as broken:
            if error is None:
                raise
            raise error from broken
        return found, error
