"""The counters of a pool, under their metric names."""

from collections import Counter

FAULT_KINDS = ("reset", "step", "evaluate", "timeout", "crash", "screenshot", "guest")
TIMED_CALLS = ("reset", "step", "evaluate")


class PoolMetrics:
    """Counts and seconds since a pool was made; every value only grows."""

    def __init__(self) -> None:
        names = [*(f"fault_{kind}" for kind in FAULT_KINDS), *(f"{call}_calls" for call in TIMED_CALLS)]
        names += ["episodes", "restarts", "restart_failures", "recycled", "lost"]
        self._counts = Counter(dict.fromkeys(names, 0))
        self._seconds = dict.fromkeys(("busy", "restart", *TIMED_CALLS), 0.0)

    def count(self, name: str) -> None:
        """Count one event."""
        self._counts[name] += 1

    def add_call(self, method: str, seconds: float) -> None:
        """Add one call of an environment, however it ended."""
        if method in TIMED_CALLS:
            self._counts[f"{method}_calls"] += 1
            self._seconds[method] += seconds

    def add_restart(self, name: str, seconds: float) -> None:
        """Count an environment that is back, and add the time since it was taken out."""
        self._counts[name] += 1
        self._seconds["restart"] += seconds

    def add_lease(self, seconds: float) -> None:
        """Add the time that one lease lasted."""
        self._seconds["busy"] += seconds

    def as_dict(self, running_s: float) -> dict[str, float]:
        """Return all values under their metric names.

        Args:
            running_s: Seconds that the leases that have not ended have lasted until now, together.
        """
        metrics = {f"env/{name}": float(count) for name, count in self._counts.items()}
        metrics |= {f"env/{name}_s": seconds for name, seconds in self._seconds.items()}
        metrics["env/busy_s"] += running_s
        return metrics
