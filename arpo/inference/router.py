"""The choice of a replica for each request: an episode stays where its prefix and its screenshots are cached."""

from collections import Counter, OrderedDict

from arpo.errors import EngineGoneError, check_at_least

SLACK = 4
"""Requests that a replica may have in flight beyond twice as many as the least busy one before conversations leave."""
MOST_HOMES = 8192
"""Conversations that are remembered: several times as many as there are environments."""


class Router:
    """A table of conversations and the replicas that they stay with; nothing but counting, and no I/O.

    A conversation without a home goes to the replica with the fewest requests in flight, of equal ones to that with
    the fewest conversations. It stays there until the replica is gone or clearly busier than another: more in flight
    than twice as many as the least busy one, plus four. Moving is dear: the new replica computes the whole history
    again, up to fifteen screenshots and 40,000 tokens, while its own requests wait. Staying is cheap, because batched
    requests are answered nearly as fast as single ones. So small differences, which come and go, must move nothing.

    Args:
        replicas: How many there are; they are numbered from 0.

    Raises:
        ConfigError: If there is none.
    """

    def __init__(self, replicas: int) -> None:
        check_at_least(1, replicas=replicas)
        self._in_flight = dict.fromkeys(range(replicas), 0)
        self._homes: OrderedDict[str, int] = OrderedDict()
        self._guests: Counter[int] = Counter()

    @property
    def alive(self) -> list[int]:
        """The replicas that take requests."""
        return list(self._in_flight)

    def take(self, conversation: str = "") -> int:
        """Return the replica for the next request of a conversation, and count the request until `give_back`.

        Args:
            conversation: Its name; requests without one have no home.

        Raises:
            EngineGoneError: If every replica is gone.
        """
        if not self._in_flight:
            raise EngineGoneError("every replica of the fleet is gone")
        home = self._homes.pop(conversation, None)
        chosen = self._choose(home)
        if conversation:
            self._settle(conversation, home, chosen)
        self._in_flight[chosen] += 1
        return chosen

    def give_back(self, replica: int) -> None:
        """Count a request as answered."""
        if replica in self._in_flight:
            self._in_flight[replica] -= 1

    def remove(self, replica: int) -> None:
        """Send nothing to a replica any more; its conversations find another home. Idempotent."""
        self._in_flight.pop(replica, None)

    def _choose(self, home: int | None) -> int:
        least = min(self._in_flight, key=lambda replica: (self._in_flight[replica], self._guests[replica]))
        if home in self._in_flight and self._in_flight[home] <= 2 * self._in_flight[least] + SLACK:
            return home
        return least

    def _settle(self, conversation: str, home: int | None, chosen: int) -> None:
        if home is not None:
            self._guests[home] -= 1
        self._guests[chosen] += 1
        self._homes[conversation] = chosen  # at the end: the first one is that which was silent the longest
        if len(self._homes) > MOST_HOMES:
            _, forgotten = self._homes.popitem(last=False)
            self._guests[forgotten] -= 1
