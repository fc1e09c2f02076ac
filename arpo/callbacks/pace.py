"""The pace of a run beside what the law of decoupling predicts for it."""

import logging
import time
from collections import deque
from statistics import fmean

import lightning as L
import psutil
from typing_extensions import override

from arpo.rollout.hooks import RolloutCallback, runtime_of
from arpo.rollout.law import Work, bounds, iteration_s, speedup
from arpo.types import RolloutBatch

log = logging.getLogger(__name__)

WINDOW = 16
"""Iterations whose times are averaged: an evaluation every ten of them is spread over them."""
BUSY = ("user", "nice", "system", "irq", "softirq")
"""The names of the times in which a core works, of those that the system tells."""


class Pace(RolloutCallback):
    """A log of how long an iteration takes, how long the law says, and how many times as fast as taking turns that is.

    From the run's own times (`arpo.rollout.law`), beginning with the second iteration:

    `time/iteration` from rollouts to the next rollouts, and `time/iteration_predicted`;
    `rollout/predicted_speedup` over taking turns, of this run's `max_policy_lag`, or of a lag of 1 where it takes
    turns; `bound/…` the least seconds of an iteration that each part of the system allows.

    It stands behind weight sync in the list of callbacks, so that an update ends with its sync. What a fleet could
    answer at most is not known to a run, so the engine is not among its bounds. That trainer, engine and environments
    share the driver's cores is: whatever is busy there counts. That they share a GPU, or another node's cores, is not,
    and a prediction from times that were measured while they took turns is too good then; as is that of a run with a
    lag whose bound are the cores, because its episodes were measured while they shared them.
    """

    def __init__(self) -> None:
        self._groups: deque[list[list[float]]] = deque(maxlen=WINDOW)
        self._updates: deque[float] = deque(maxlen=WINDOW)
        self._rests: deque[float] = deque(maxlen=WINDOW)
        self._iterations: deque[float] = deque(maxlen=WINDOW)
        self._drivers: deque[float] = deque(maxlen=WINDOW)
        self._arrived: float | None = None
        self._synced: float | None = None
        self._cores: deque[float] = deque(maxlen=WINDOW)
        self._busy_s: tuple[float, float] | None = None
        """Processor time so far: of the driver's event loop, and of a mean core of its machine."""
        self._prediction: dict[str, float] = {}

    @override
    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._synced is not None:
            self._rests.append(time.monotonic() - self._synced)

    @override
    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: object, batch_idx: int
    ) -> None:
        now = time.monotonic()
        if self._arrived is not None:
            self._iterations.append(now - self._arrived)
        self._arrived = now

    @override
    def on_rollout_end(self, trainer: L.Trainer, module: L.LightningModule, batch: RolloutBatch) -> None:
        self._groups.append(_episodes(batch))
        busy_s = runtime_of(trainer).run(_thread_s()), _core_s()
        if self._busy_s is not None:
            self._drivers.append(busy_s[0] - self._busy_s[0])
            self._cores.append(busy_s[1] - self._busy_s[1])
        self._busy_s = busy_s
        if self._iterations and self._groups[-1]:
            lag = runtime_of(trainer).settings.max_policy_lag
            self._predict(self._work(batch, runtime_of(trainer).pool.size), lag)
            module.log_dict(self._prediction, on_step=False, on_epoch=True, batch_size=1, rank_zero_only=True)

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        assert self._arrived is not None, "a batch ends after it has started"
        self._synced = time.monotonic()
        self._updates.append(self._synced - self._arrived)

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self._prediction:
            return
        parts = [name for name in self._prediction if name.startswith("bound/")]
        log.info(
            "an iteration took %.1f s, and the law of decoupling says %.1f s; a lag is worth %.2f times the pace of "
            "taking turns; the largest bound is that of %s",
            fmean(self._iterations),
            self._prediction["time/iteration_predicted"],
            self._prediction["rollout/predicted_speedup"],
            max(parts, key=self._prediction.__getitem__).removeprefix("bound/"),
        )

    def _predict(self, work: Work, lag: int) -> None:
        self._prediction = {
            "time/iteration": self._iterations[-1],
            "time/iteration_predicted": iteration_s(work, lag),
            "rollout/predicted_speedup": speedup(work, max(1, lag)),
        }
        known = {part: seconds for part, seconds in bounds(work, lag).items() if part != "engine"}
        self._prediction |= {f"bound/{part}": seconds for part, seconds in known.items()}

    def _work(self, batch: RolloutBatch, environments: int) -> Work:
        resets = batch.metrics["env/reset_calls"]
        return Work(
            groups=[group for groups in self._groups for group in groups],
            groups_per_iteration=len(self._groups[-1]),
            environments=environments,
            update_s=fmean(self._updates),
            rest_s=fmean(self._rests),
            reset_s=batch.metrics["env/reset_s"] / resets if resets else 0.0,
            driver_s=fmean(self._drivers),
            cores_s=fmean(self._cores),
        )


def _episodes(batch: RolloutBatch) -> list[list[float]]:
    """Return the seconds of every episode, by group; those of a replay buffer were played at another time."""
    played = [
        [t.duration_s for position, t in enumerate(group.trajectories) if position not in group.injected]
        for group in batch.groups
    ]
    return [group for group in played if group]


async def _thread_s() -> float:
    """Return the processor time of the thread that runs this: the event loop of engine and environments."""
    return time.thread_time()


def _core_s() -> float:
    """Return the processor time of this machine since it started, over its cores."""
    times = psutil.cpu_times()._asdict()
    return float(sum(times.get(name, 0.0) for name in BUSY)) / (psutil.cpu_count() or 1)
