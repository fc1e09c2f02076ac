"""One smoke run a session: the reference for everything that is done to a run."""

import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.runs import Run, Smoke


@pytest.fixture(scope="session")
def sessions() -> Iterator[Path]:
    """The temporary directory of the runs: with a short name, because the sockets of Ray lie in it."""
    directory = Path("/tmp") / secrets.token_hex(3)
    directory.mkdir(mode=0o700)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory, sessions: Path) -> Iterator[Smoke]:
    """`python train.py experiment=smoke`, as a person runs it on a fresh machine."""
    output = tmp_path_factory.mktemp("smoke")
    run = Run(output / "smoke" / "default", sessions, "experiment=smoke", f"paths.output={output}")
    run.log = output / "smoke.log"
    try:
        code = run.go()
        assert code == 0, run.said
        yield Smoke(run, output / "warmstart_fake" / "default" / "policy")
    finally:
        run.end()


@pytest.fixture
def ending(sessions: Path) -> Iterator[Callable[[Run], Run]]:
    """Ends every run passed to it when the test ends."""
    runs: list[Run] = []

    def remember(run: Run) -> Run:
        runs.append(run)
        return run

    yield remember
    for run in runs:
        run.end()
