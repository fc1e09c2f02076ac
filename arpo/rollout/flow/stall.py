"""A watch over those who wait for rollouts: a wait without end becomes an error that names who waits for whom."""

import concurrent.futures
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from arpo.envs.pool.pool import EnvPool
from arpo.errors import RolloutError
from arpo.host.threads import BackgroundLoop
from arpo.rollout.runner import EpisodeRunner

_T = TypeVar("_T")

LOOKS_A_STALL = 10
"""How often the signs of life are looked at within `stall_s`."""
LONGEST_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class StallDetector:
    """A watch over a loop, and over what lives on it; used from the trainer's thread."""

    loop: BackgroundLoop
    runner: EpisodeRunner
    pool: EnvPool
    stall_s: float
    """Seconds without a sign of life that are too long."""

    def result(self, future: "concurrent.futures.Future[_T]", who: Callable[[], str]) -> _T:
        """Return what a future on the loop gives; blocks.

        Args:
            future: What is waited for.
            who: Says who waits, and for what.

        Raises:
            RolloutError: If the loop has ended, or nothing happened for `stall_s`; it says who waits for whom.
        """
        began = time.monotonic()
        look_s = min(self.stall_s / LOOKS_A_STALL, LONGEST_LOOK_S)
        while not concurrent.futures.wait([future], timeout=look_s).done:
            if not self.loop.running:
                raise RolloutError(self._said(who(), "the event loop of the rollouts has ended"))
            if time.monotonic() - max(began, self.runner.activity.last) > self.stall_s:
                raise RolloutError(self._said(who(), self._culprit()))
        if future.cancelled():  # the end of a loop cancels what runs on it
            raise RolloutError(self._said(who(), "the event loop of the rollouts has ended"))
        return future.result()

    def _culprit(self) -> str:
        activity, queued = self.runner.activity, sum(self.runner.turns.queued().values())
        if not self.loop.answers():
            return "the event loop of the rollouts does not answer, because something blocks its thread"
        causes = {
            "the engine has not taken the new weights": activity.updates,
            f"the engine owes {activity.requests} answers": activity.requests,
            f"{activity.env_calls} calls to environments do not return": activity.env_calls,
            f"{activity.held} episodes wait until the engine serves the next policy version": activity.held,
            f"{queued} episodes wait for an environment, and none becomes free": queued or self.pool.states()["busy"],
        }
        found = (cause for cause, is_there in causes.items() if is_there)
        return next(found, "no episode runs, and the collector begins none")

    def _said(self, who: str, culprit: str) -> str:
        states = {state: count for state, count in self.pool.states().items() if count}
        activity = self.runner.activity
        return (
            f"{who}, and nothing has happened for {time.monotonic() - activity.last:.0f} s (stall_s="
            f"{self.stall_s:g}): {culprit}. Environments: {states}, {activity.env_calls} calls in flight; engine: "
            f"{activity.requests} requests in flight; episodes queued: {self.runner.turns.queued()}; held for "
            f"the next policy version: {activity.held}. See in the log what failed last; resume=auto goes on from the "
            "last checkpoint, and a larger stall_s waits longer"
        )
