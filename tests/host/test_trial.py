import pytest

from arpo.errors import ConfigError
from arpo.host.trial import before_start, on_trial


class Machine:
    def __init__(self, started, size):
        if size < 1:
            raise ConfigError("size must be at least 1")
        before_start()
        started.append(size)


def test_a_constructor_on_trial_checks_and_starts_nothing():
    started = []
    with on_trial():
        Machine(started, 1)
    assert started == []
    with pytest.raises(ConfigError, match="size"), on_trial():
        Machine(started, 0)
    Machine(started, 2)
    assert started == [2]
