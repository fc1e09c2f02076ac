"""The table of a fleet: who answers for a conversation, and when it moves."""

import pytest

from arpo.errors import EngineGoneError
from arpo.inference.router import MOST_HOMES, SLACK, Router


def test_conversations_are_spread_evenly_and_each_stays_where_it_is():
    router = Router(3)
    homes = {}
    for name in "abcdef":
        homes[name] = router.take(name)
        router.give_back(homes[name])  # an episode acts for longer than it asks
    assert sorted(homes.values()) == [0, 0, 1, 1, 2, 2]
    for name in "fedcba":
        assert router.take(name) == homes[name]
        router.give_back(homes[name])


def test_a_new_conversation_goes_to_the_replica_with_the_fewest_requests_in_flight():
    router = Router(2)
    assert [router.take("a"), router.take("a"), router.take("b")] == [0, 0, 1]
    assert router.take("c") == 1  # 2 against 1, though both have one conversation


def in_flight(*numbers):
    """A router whose replicas have so many requests in flight; conversation `home` is at replica 0."""
    router = Router(len(numbers))
    assert router.take("home") == 0
    router.give_back(0)
    for replica, number in enumerate(numbers):
        router.in_flight[replica] = number
    return router


# More than twice as many plus four: 0 allows 4, 1 allows 6, 3 allows 10.
@pytest.mark.parametrize(("least", "most"), [(0, SLACK), (1, 2 + SLACK), (3, 6 + SLACK)])
def test_a_conversation_moves_when_its_replica_is_clearly_busier_and_not_before(least, most):
    assert in_flight(most, least).take("home") == 0
    router = in_flight(most + 1, least)
    assert router.take("home") == 1
    router.in_flight[0] = 0
    assert router.take("home") == 1  # it has its caches there now


def test_a_conversation_moves_when_its_replica_is_gone():
    router = Router(2)
    home = router.take("a")
    router.remove(home)
    router.remove(home)
    router.give_back(home)  # the request that was there when it died
    assert router.open == [1 - home]
    assert [router.take("a"), router.take("b")] == [1 - home, 1 - home]
    for _ in range(2):
        router.give_back(1 - home)
    router.reopen(home)  # another one came in its place
    assert router.take("a") == 1 - home


def test_a_conversation_comes_home_when_its_replica_was_out_for_an_update():
    router = in_flight(0, 0)
    router.close(0)
    assert router.take("home") == 1
    router.give_back(1)
    router.reopen(0)
    assert router.take("home") == 0


def test_a_request_that_an_old_version_may_not_answer_goes_to_a_replica_that_has_come_so_far():
    """As if the others were out: its conversation is a guest there, and comes home after the update."""
    router = in_flight(0, 0)
    assert not router.serves(1)
    with pytest.raises(EngineGoneError, match="for version 1 or later"):
        router.take("home", 1)
    router.close(1)
    router.reopen(1, version=1)
    assert router.serves(1)
    assert router.take("home", 1) == 1
    router.give_back(1)
    assert router.take("home") == 0
    router.reopen(0, version=1)
    assert router.take("home", 1) == 0


def test_conversations_that_begin_during_a_rolling_update_do_not_all_live_with_the_replica_that_was_updated_first():
    router = Router(2)
    router.close(0)
    router.reopen(0, version=1)
    assert [router.take(name, least_version=1) for name in "abcd"] == [0, 0, 0, 0]  # no other may answer
    for _ in range(4):
        router.give_back(0)
    router.close(1)
    assert router.take("e", least_version=1) == 0
    router.give_back(0)
    router.reopen(1, version=1)
    homes = []
    for name in "abcd":
        homes.append(router.take(name, least_version=1))
        router.give_back(homes[-1])
    assert homes == [0, 1, 0, 1]


def test_the_oldest_version_is_that_of_the_replicas_which_are_there():
    router = Router(2)
    assert router.oldest == 0
    router.reopen(0, version=1)
    router.close(1)  # which still has version 0, and may come back with it
    assert router.oldest == 0
    router.remove(1)
    assert router.oldest == 1
    router.remove(0)
    with pytest.raises(EngineGoneError, match="no replica of the fleet"):
        router.take("a")
    assert router.oldest == 1  # who comes next has what was served last, or something newer
    router.reopen(1, version=2)
    assert router.oldest == 2


def test_requests_without_a_conversation_are_not_remembered():
    router = Router(2)
    assert [router.take() for _ in range(4)] == [0, 1, 0, 1]
    assert not router.homes


def test_conversations_that_were_silent_for_long_are_forgotten():
    router = Router(2)
    for number in range(MOST_HOMES + 10):
        router.give_back(router.take(str(number)))
        router.give_back(router.take("talker"))
    assert len(router.homes) == MOST_HOMES == sum(router._guests.values())
    assert "talker" in router.homes
    assert "0" not in router.homes
