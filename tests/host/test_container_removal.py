"""What happens to containers that an engine cannot remove, with an engine that only says so."""

import logging
import subprocess
from types import SimpleNamespace

import pytest

from arpo.errors import EnvError
from arpo.host.container_spec import ContainerSpec
from arpo.host.containers import Containers, reap, remove_session

docker = pytest.importorskip("docker")


class Engine:
    """A client of an engine with two cores that starts nothing, and cannot remove what is stuck."""

    def __init__(self, *there, stuck):
        gone = subprocess.Popen(["true"])
        gone.wait()
        labels = {"arpo.owner": f"{gone.pid}-1"}
        self.there = {name: SimpleNamespace(id=name, labels=labels) for name in there}
        self.stuck = stuck
        self.containers = self.api = self

    def info(self):
        return {"NCPU": 2}

    def list(self, **_):
        return list(self.there.values())

    def create(self, image, **options):
        self.options = options
        self.there["new"] = SimpleNamespace(id="new", start=self.start)
        return self.there["new"]

    def start(self):
        raise docker.errors.APIError("it does not start")

    def remove_container(self, name, **_):
        if name in self.stuck:
            raise docker.errors.APIError("device or resource busy")
        if self.there.pop(name, None) is None:
            raise docker.errors.NotFound("it is gone")

    def close(self):
        pass


@pytest.fixture
def use(monkeypatch):
    """Leads this package to an engine, and forgets what it has left over."""
    monkeypatch.setattr(Containers, "left_over", set())
    monkeypatch.setattr(Containers, "reaped", True)
    return lambda engine: monkeypatch.setattr(docker, "from_env", lambda timeout: engine)


def test_one_that_cannot_be_removed_does_not_keep_the_others(use, caplog):
    engine = Engine("a", "b", "c", stuck=["b"])
    with caplog.at_level(logging.WARNING):
        assert reap(engine) == 2
    assert list(engine.there) == ["b"]
    assert "device or resource busy" in caplog.text


def test_a_session_ends_with_one_that_cannot_be_removed(use):
    engine = Engine("a", "b", "c", stuck=["a"])
    use(engine)
    assert remove_session("label") == 2
    assert list(engine.there) == ["a"]


def test_a_start_goes_on_and_forgets_nothing_that_it_could_not_remove(use):
    engine = Engine("a", "b", stuck=["a", "new"])
    use(engine)
    Containers.left_over.update(["a", "b", "long gone"])
    with pytest.raises(EnvError, match="it does not start"):
        Containers().start(ContainerSpec("image", ()))
    assert Containers.left_over == {"a", "new"}
    engine.stuck = []
    with pytest.raises(EnvError, match="it does not start"):
        Containers().start(ContainerSpec("image", ()))
    assert not Containers.left_over
    assert not engine.there


def test_a_container_gets_no_more_cores_than_there_are(use):
    engine = Engine(stuck=[])
    use(engine)
    for wanted, given in ((64.0, 2_000_000_000), (0.5, 500_000_000)):
        with pytest.raises(EnvError, match="it does not start"):
            Containers().start(ContainerSpec("image", (), cpus=wanted))
        assert engine.options["nano_cpus"] == given
