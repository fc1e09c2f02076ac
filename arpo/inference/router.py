"""The choice of a replica for each request: an episode stays where its prefix and its screenshots are cached."""

from collections import Counter, OrderedDict

from arpo.errors import EngineGoneError

SLACK = 4
"""Requests that a replica may have in flight beyond twice as many as the least busy one before conversations leave."""
MOST_HOMES = 8192
"""Conversations that are remembered: several times as many as there are environments."""


class Router:
    """A table of conversations and the replicas that they stay with.

    A conversation without a home goes to the replica with the fewest requests in flight, of equal ones to that
    with the fewest conversations. While a replica is out, it goes by conversations alone, for that one has no
    requests: otherwise all that begin during a rolling update would live with the replica that was updated first.
    It stays there until the replica is gone or clearly busier than another: more in flight than twice as many as
    the least busy one, plus four. Moving is dear: the new replica computes the whole history again, up to fifteen
    screenshots and 40,000 tokens, while its own requests wait. Staying is cheap, because batched requests are
    answered nearly as fast as single ones. While a replica is out for an update, its conversations ask elsewhere and
    then come back, so that the load stays spread.
    """

    def __init__(self, replicas: int) -> None:
        self.in_flight = dict.fromkeys(range(replicas), 0)
        """The requests of each replica that are under way."""
        self._open = set(self.in_flight)
        self._versions = dict.fromkeys(self.in_flight, 0)
        self._gone: set[int] = set()
        self.homes: OrderedDict[str, int] = OrderedDict()
        """The replica of each conversation, of which the first was silent the longest."""
        self._guests: Counter[int] = Counter()

    @property
    def open(self) -> list[int]:
        """The replicas that take requests."""
        return sorted(self._open)

    @property
    def oldest(self) -> int:
        """The oldest version that a replica has which is there; the newest ever, where none is."""
        present = self._versions.keys() - self._gone
        return min((self._versions[replica] for replica in present), default=max(self._versions.values()))

    def serves(self, least_version: int) -> bool:
        """Return whether a replica takes requests that this policy version or a later one has to answer."""
        return bool(self._serving(least_version))

    def take(self, conversation: str = "", least_version: int = 0) -> int:
        """Return the replica for the next request of a conversation, and count the request until `give_back`.

        Requests without a conversation have no home. A replica with an older version than the least one is out for
        this conversation, as if its update had begun.

        Raises:
            EngineGoneError: If no replica takes such requests.
        """
        serving = self._serving(least_version)
        if not serving:
            raise EngineGoneError(f"no replica of the fleet takes requests for version {least_version} or later")
        chosen = self._least_busy(serving)
        if conversation:
            home = self.homes.get(conversation)
            if home is None or home in self._gone:
                present = set(self.in_flight) - self._gone
                by_guests = min(present, key=lambda replica: (self._guests[replica], replica))
                home = chosen if present == serving else by_guests
            if home in serving and self.in_flight[home] <= 2 * self.in_flight[chosen] + SLACK:
                chosen = home
            self._keep(conversation, chosen if home in serving else home)
        self.in_flight[chosen] += 1
        return chosen

    def give_back(self, replica: int) -> None:
        """Count a request as answered, or as called back."""
        self.in_flight[replica] -= 1

    def close(self, replica: int) -> None:
        """Send nothing to a replica until `reopen`; its conversations are guests elsewhere, and come back."""
        self._open.discard(replica)

    def remove(self, replica: int) -> None:
        """Send nothing to a replica whose caches are gone; its conversations find another home. Idempotent."""
        self.close(replica)
        self._gone.add(replica)

    def reopen(self, replica: int, version: int = 0) -> None:
        """Send requests to a replica again, or to the one that came in its place; it has weights of this version."""
        self._gone.discard(replica)
        self._open.add(replica)
        self._versions[replica] = version

    def _serving(self, least_version: int) -> set[int]:
        return {replica for replica in self._open if self._versions[replica] >= least_version}

    def _least_busy(self, replicas: set[int]) -> int:
        return min(replicas, key=lambda replica: (self.in_flight[replica], self._guests[replica], replica))

    def _keep(self, conversation: str, home: int) -> None:
        if conversation in self.homes:
            self._guests[self.homes[conversation]] -= 1
        self._guests[home] += 1
        self.homes[conversation] = home
        self.homes.move_to_end(conversation)
        if len(self.homes) > MOST_HOMES:
            _, forgotten = self.homes.popitem(last=False)
            self._guests[forgotten] -= 1
