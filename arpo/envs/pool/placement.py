"""The choice of a node for the next worker: each node has said how many environments its engine can take."""

from collections import Counter
from collections.abc import Callable, Mapping

from arpo.errors import ConfigError


class Placement:
    """A spread of workers over resources such as `docker:10.0.0.2`, each worth as many environments as its node said.

    It belongs to the event loop of its pool.

    Args:
        kind: The beginning of their names, such as `docker`.
        read: Returns everything that the cluster has now, by name; nodes come and go.
    """

    def __init__(self, kind: str, read: Callable[[], Mapping[str, float]]) -> None:
        self._prefix = f"{kind}:"
        self._read = read
        self._taken: Counter[str] = Counter()

    def take(self, count: int) -> str:
        """Return the resource with the most room, and take `count` of it.

        Raises:
            ConfigError: If no node has that much room; the message says what each has, and how a node offers more.
        """
        rooms = {
            name: capacity - self._taken[name]
            for name, capacity in self._read().items()
            if name.startswith(self._prefix)
        }
        best = max(rooms, key=lambda name: rooms[name], default=None)
        if best is None or rooms[best] < count:
            raise ConfigError(self._too_little(count, rooms))
        self._taken[best] += count
        return best

    def free(self, name: str, count: int) -> None:
        """Return to a node what was taken."""
        self._taken[name] -= count

    def _too_little(self, count: int, rooms: Mapping[str, float]) -> str:
        listed = ", ".join(f"{name} ({room:g} left)" for name, room in sorted(rooms.items())) or "none"
        example = f"ray start --address=HEAD:6379 --resources='{{\"{self._prefix}10.0.0.2\": 16}}'"
        return (
            f"no node of the cluster has room for {count} more environments; nodes with an engine: {listed}. "
            f"Start each with its address and number: {example}, or lower size or envs_per_worker"
        )
