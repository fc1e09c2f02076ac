"""One smoke run a session: the reference for everything that is done to a run; and trainings in this process."""

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from filelock import FileLock

from tests.integration.parts import MoodyEngine, train
from tests.integration.runs import KEEP, Run, Smoke


@contextmanager
def short_directory() -> Iterator[Path]:
    """Make a temporary directory with a short name, because the sockets of Ray lie in it."""
    directory = Path("/tmp") / secrets.token_hex(3)
    directory.mkdir(mode=0o700)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def sessions() -> Iterator[Path]:
    """The temporary directory of the runs."""
    with short_directory() as directory:
        yield directory


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory, sessions: Path, worker_id: str) -> Iterator[Smoke]:
    """`python train.py experiment=smoke` as a person runs it on a fresh machine, once for all processes of pytest."""
    own = tmp_path_factory.getbasetemp()
    output = (own if worker_id == "master" else own.parent) / "smoke"
    made = output / "sessions"  # written at the end: the temporary directory of the run
    with ExitStack() as stack:
        with FileLock(output.with_suffix(".lock")):
            directory = Path(made.read_text()) if made.exists() else stack.enter_context(short_directory())
            run = Run(output / "smoke" / "default", directory, "experiment=smoke", f"paths.output={output}", KEEP)
            run.log = output / "smoke.log"
            if not made.exists():
                stack.callback(run.end)
                assert run.go() == 0, run.said
                made.write_text(str(directory))
        yield Smoke(run, output / "warmstart_fake" / "default" / "policy", sessions)


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


@pytest.fixture
def learn(tiny_model, tmp_path):
    """Trains with responses of a mood."""

    def of(mood, folder="run", *, replay=False, iterations=2, **options):
        engine = partial(MoodyEngine, mood=mood)
        return train(tiny_model, tmp_path / folder, engine, replay=replay, iterations=iterations, **options)

    return of
