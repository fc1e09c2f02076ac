"""The warm start of a run: the experiment that writes the policy which the run starts with."""

import logging
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from arpo.errors import ConfigError

log = logging.getLogger(__name__)

EXPERIMENTS = Path(__file__).parent.parent.parent / "conf" / "experiment"
WARMSTART_GRACE_S = 30.0
"""The time that a warm start may take to end its browsers when the run is interrupted."""


def policy_of(warmstart: str | None, output: str) -> str:
    """Return the directory that a warm start writes its policy to; empty where there is no warm start.

    >>> policy_of("warmstart_fake", "outputs")
    'outputs/warmstart_fake/default/policy'
    """
    return f"{output}/{warmstart}/default/policy" if warmstart else ""


def check_warmstart(model_path: str, warmstart: str | None, output: str) -> None:
    """Check that a checkpoint which is not there yet is the one that the warm start writes.

    Raises:
        ConfigError: When nothing would ever be there.
    """
    if warmstart is None or (Path(model_path) / "config.json").exists():
        return
    known = sorted(path.stem for path in EXPERIMENTS.glob("warmstart_*.yaml"))
    if warmstart not in known:
        raise ConfigError(
            f"warmstart={warmstart} is no experiment that writes a policy; choose one of {', '.join(known)}"
        )
    written = policy_of(warmstart, output)
    if Path(model_path) != Path(written):
        raise ConfigError(
            f"there is no checkpoint at model.path={model_path}, and experiment={warmstart} would write one to "
            f"{written}: leave model.path out, or set it to a directory that exists"
        )


def ensure_model(path: Path, warmstart: str, output: str) -> None:
    """Run the warm start that writes the policy to `path`, where it has not run yet.

    It runs in a process of its own, as a person would run it, so that nothing of it stays in memory.

    Raises:
        ConfigError: When the warm start fails, or writes to another place.
    """
    if (path / "config.json").exists():
        return
    command = [sys.executable, sys.argv[0], f"experiment={warmstart}", f"paths.output={output}"]
    log.info("%s does not exist yet: running %s first", path, " ".join(command[1:]))
    process = subprocess.Popen([*command, "resume=auto"])
    try:
        code = process.wait()
    except BaseException as error:  # the warm start must end what it started before we leave
        if not isinstance(error, KeyboardInterrupt):  # Ctrl-C has reached it already
            process.terminate()
        wait_or_kill(process, WARMSTART_GRACE_S)
        raise
    if code != 0:
        raise ConfigError(f"the warm start failed: see its output above; it was experiment={warmstart}")
    if not (path / "config.json").exists():
        raise ConfigError(
            f"there is still nothing at model.path={path}: experiment={warmstart} writes elsewhere; leave model.path "
            "out, or set it to a directory that exists"
        )


def wait_or_kill(process: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """Wait for a process, and kill it after a while, or at once when somebody interrupts the waiting."""
    with suppress(subprocess.TimeoutExpired):
        try:
            process.wait(timeout=grace_s)
        finally:
            process.kill()
            process.wait()
