"""Items that one thread makes while another one uses the first of them."""

import threading
from contextlib import closing

import pytest

from arpo.datamodules.prefetch import PrefetchBuffer
from arpo.errors import EnvError, RolloutError


class Source:
    """Numbers, each after a permit; says when it was closed."""

    def __init__(self, count=100, error=None):
        self.permits = threading.Semaphore(0)
        self.made = 0
        self.closed = False
        self._count = count
        self._error = error

    def __call__(self):
        try:
            for number in range(self._count):
                self.permits.acquire()
                self.made += 1
                yield number
            if self._error:
                raise self._error
        finally:
            self.closed = True


def test_the_first_items_are_there_before_the_others_are_made():
    source = Source()
    source.permits.release(3)
    arrivals = PrefetchBuffer(source(), "arrivals")
    assert arrivals.first(3) == [0, 1, 2]
    assert arrivals.first(2) == [0, 1]
    source.permits.release()
    arrivals.close()
    assert source.made <= 4


def test_who_waits_for_more_than_there_will_be_is_woken_by_the_end():
    over = threading.Event()

    def nothing():
        over.wait()
        yield from ()

    arrivals = PrefetchBuffer(nothing(), "arrivals")
    waiting = threading.Thread(target=arrivals.first, daemon=True)
    waiting.start()
    threading.Timer(0.1, over.set).start()
    waiting.join(10)
    assert not waiting.is_alive()
    arrivals.close()


def test_all_of_them_are_waited_for():
    source = Source(count=5)
    source.permits.release(5)
    with closing(PrefetchBuffer(source(), "arrivals")) as arrivals:
        assert arrivals.first() == [0, 1, 2, 3, 4]
        assert arrivals.first(9) == [0, 1, 2, 3, 4]  # there will never be more
        assert source.closed


@pytest.mark.parametrize(
    ("error", "raised"), [(RolloutError("no space left"), RolloutError), (OSError("no space left"), EnvError)]
)
def test_an_error_of_the_source_is_raised_in_whoever_waits_for_what_it_did_not_make(error, raised):
    source = Source(count=2, error=error)
    source.permits.release(2)
    with closing(PrefetchBuffer(source(), "arrivals")) as arrivals:
        assert arrivals.first(2) == [0, 1]
        for count in (3, None):
            with pytest.raises(raised, match="no space left"):
                arrivals.first(count)


def test_a_source_that_is_not_wanted_any_more_is_closed():
    source = Source()
    source.permits.release(2)
    arrivals = PrefetchBuffer(source(), "arrivals")
    arrivals.first(1)
    closing = threading.Thread(target=arrivals.close)
    closing.start()
    source.permits.release(2)  # it may be in the middle of an item
    closing.join(10)
    assert source.closed
    assert source.made < 5
    arrivals.close()
