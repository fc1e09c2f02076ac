"""A guest in a thread, and a container engine whose machines are such guests, for the tests of every desktop."""

import pytest

from tests.envs.osworld.guest import FakeEngine, running_guest, running_web


@pytest.fixture
def guest():
    with running_guest() as guest:
        yield guest


@pytest.fixture
def engine():
    engine = FakeEngine()
    yield engine
    for machine in engine.machines:
        machine.remove()


@pytest.fixture
def web(monkeypatch, tmp_path_factory):
    # No server of tests is asked over TLS, and to read all authorities takes longer than a request.
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("no-authorities")))
    with running_web() as web:
        yield web
