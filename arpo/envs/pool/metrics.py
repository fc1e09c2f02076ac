"""The counters of a pool, under their metric names."""

from collections import defaultdict

FAULT_KINDS = ("reset", "step", "evaluate", "timeout", "crash", "screenshot", "guest")
TIMED_CALLS = ("reset", "step", "evaluate")

Counters = defaultdict[str, float]
"""Counts and seconds since a pool was made, by metric name; every value only grows."""


def new_counters() -> Counters:
    """Return the counters of a pool at 0, so that a metric is there before its first event."""
    names = [*(f"fault_{kind}" for kind in FAULT_KINDS), *(f"{call}_calls" for call in TIMED_CALLS)]
    names += ["episodes", "restarts", "restart_failures", "recycled", "lost"]
    names += [f"{activity}_s" for activity in ("busy", "restart", *TIMED_CALLS)]
    return defaultdict(float, {f"env/{name}": 0.0 for name in names})
