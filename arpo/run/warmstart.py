"""The warm start of a run: the experiment that writes the policy which the run starts with."""

import logging
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from arpo.errors import ConfigError
from arpo.host.session import Session
from arpo.rollout.storage import TrajectoryStore
from arpo.run.before.words import override
from arpo.run.folder import run_name
from arpo.run.shipped import note_another, unpack

log = logging.getLogger(__name__)

CONF = Path(__file__).parent.parent.parent / "conf"
EXPERIMENTS, PROMPTS = CONF / "experiment", CONF / "prompt"
WARMSTART_GRACE_S = 20.0
"""The time that a warm start may take to end its browsers when the run is interrupted."""
ITERATION_S = 5.0
"""The time that it may take to finish its iteration first, and write a checkpoint; then it is asked again."""


WINDOW = "rollout.settings.image_window"
"""The key of a run by which its warm start tells demonstrations as conversations."""
USUAL_PROMPT = "compact"
"""The prompt of every warm start that is told no other."""


def policy_of(
    warmstart: str | None,
    output: str,
    image_window: int | None = None,
    model: str | None = None,
    prompt: str | None = None,
) -> str:
    """Return the directory that a warm start writes its policy to; empty where there is no warm start.

    >>> policy_of("warmstart_fake", "outputs")
    'outputs/warmstart_fake/default/policy'
    >>> policy_of("warmstart_fake", "outputs", image_window=2)
    'outputs/warmstart_fake/rollout.settings.image_window=2/policy'
    >>> policy_of("warmstart_fake", "outputs", model="tiny_qwen3")
    'outputs/warmstart_fake/model=tiny_qwen3/policy'
    >>> policy_of("warmstart_fake", "outputs", prompt="arpo.agent.prompt.Prompt.compact_computer_use")
    'outputs/warmstart_fake/prompt=compact_computer_use/policy'
    """
    return f"{_folder(warmstart, output, image_window, model, prompt)}/policy" if warmstart else ""


def demonstrations_of(
    warmstart: str | None,
    output: str,
    image_window: int | None = None,
    model: str | None = None,
    prompt: str | None = None,
) -> list[str]:
    """Return the directory of a warm start's demonstrations in a list; an empty one where there is no warm start.

    >>> demonstrations_of("warmstart_fake", "outputs")
    ['outputs/warmstart_fake/default/demonstrations']
    """
    return [f"{_folder(warmstart, output, image_window, model, prompt)}/demonstrations"] if warmstart else []


def recordings_of(*of: str | int | None) -> str:
    """Return the first directory that `demonstrations_of` returns, as `source` names it; empty where there is none.

    >>> recordings_of("warmstart_fake", "outputs")
    'outputs/warmstart_fake/default/demonstrations'
    """
    return next(iter(demonstrations_of(*of)), "")  # type: ignore[arg-type]  # YAML says which is which


def shared_with_warmstart(cfg: DictConfig) -> tuple[int | None, str | None, str | None]:
    """Return what a warm start has to know of a run: its image window, and its model and prompt where not the usual.

    A policy that has learned to answer one prompt would fail to answer another one.
    """
    return cfg.rollout.settings.image_window, OmegaConf.select(cfg, "model.tiny"), _word_of(cfg.prompt["_target_"])


def _folder(
    warmstart: str | None, output: str, image_window: int | None, model: str | None, prompt: str | None
) -> str:
    return f"{output}/{warmstart}/{run_name(_overrides(image_window, model, prompt))}"


def _overrides(image_window: int | None, model: str | None, prompt: str | None) -> list[str]:
    """Return what a warm start has to know of the run that goes on from it."""
    given = {"model": model, "prompt": _word_of(prompt), WINDOW: image_window}
    return [f"{key}={value}" for key, value in given.items() if value is not None]


def _word_of(prompt: str | None) -> str | None:
    """Return the word that chooses a prompt, the last of its function; None for the usual one, and where none does."""
    word = (prompt or USUAL_PROMPT).rpartition(".")[2]
    return word if word != USUAL_PROMPT and (PROMPTS / f"{word}.yaml").exists() else None


def check_warmstart(
    model_path: str,
    warmstart: str | None,
    output: str,
    image_window: int | None = None,
    model: str | None = None,
    prompt: str | None = None,
) -> None:
    """Check that a checkpoint which is not there yet is the one that the warm start writes."""
    if warmstart is None or (Path(model_path) / "config.json").exists():
        return
    known = sorted(path.stem for path in EXPERIMENTS.glob("warmstart_*.yaml"))
    if warmstart not in known:
        raise ConfigError(
            f"warmstart={warmstart} is no experiment that writes a policy; choose one of {', '.join(known)}"
        )
    written = policy_of(warmstart, output, image_window, model, prompt)
    if Path(model_path) != Path(written):
        raise ConfigError(
            f"there is no checkpoint at model.path={model_path}, and experiment={warmstart} would write one to "
            f"{written}: leave model.path out, or set it to a directory that exists"
        )


def write_source(cfg: DictConfig, check: Callable[[DictConfig], None]) -> None:
    """Run the warm start at once where a run learns from what it writes, whose tasks nobody could check before.

    It ends with its policy: where that is not there yet, its recordings may be a part of what they will be.

    Args:
        cfg: Of the run.
        check: Called before a warm start runs, with the configuration.
    """
    shared, source = shared_with_warmstart(cfg), str(cfg.source)
    if not source or source not in demonstrations_of(cfg.warmstart, cfg.paths.output, *shared):
        return
    policy = Path(policy_of(cfg.warmstart, cfg.paths.output, *shared))
    if not (policy / "config.json").exists():
        check(cfg)
        from arpo.callbacks.graceful_stop import end_on_signals  # imports Lightning

        end_on_signals()
        with Session.start():  # ends the warm start with this process
            ensure_model(policy, cfg.warmstart, cfg.paths.output, *shared)
    if not TrajectoryStore(source).iterations():
        raise ConfigError(
            f"there is {policy}, and no trajectories in source={source}: `python train.py experiment={cfg.warmstart}` "
            "writes both if it imitates demonstrations; or name the folder of a run with source=DIR"
        )


def ensure_model(
    path: Path,
    warmstart: str,
    output: str,
    image_window: int | None = None,
    model: str | None = None,
    prompt: str | None = None,
    *,
    desktops: int | None = None,
) -> None:
    """Write the policy of a warm start to `path`, if none is there: the one that comes with the code, or a new one.

    A new one is made in a process of its own, as a person would run it, so that nothing of it stays in memory.

    Args:
        path: The directory of the policy.
        warmstart: The experiment.
        output: The folder of all runs.
        image_window: Of the run that goes on from it.
        model: The word by which the run chooses another tiny model than the usual one.
        prompt: The word by which it chooses another prompt, or the name of its function.
        desktops: How many to start, whatever the experiment says; its folder is the same with more or fewer.
    """
    if (path / "config.json").exists():
        note_another(warmstart, path)
        return
    shared = _overrides(image_window, model, prompt)
    if not shared and unpack(warmstart, path):
        return
    what = [f"experiment={warmstart}", override("paths.output", output), *shared]
    if desktops is not None:
        folder = _folder(warmstart, output, image_window, model, prompt)
        what += [f"env.size={desktops}", override("hydra.run.dir", folder)]
    command = [sys.executable, sys.argv[0], *what]
    log.info("%s does not exist yet: running %s first", path, " ".join(command[1:]))
    process = subprocess.Popen([*command, "resume=auto"], process_group=0)  # Ctrl-C reaches it through us, once
    try:
        code = process.wait()
    except BaseException:
        stop(process)  # it must end what it started before we leave
        raise
    if code != 0:
        raise ConfigError(f"the warm start failed: see its output above; it was experiment={warmstart}")
    if not (path / "config.json").exists():
        raise ConfigError(
            f"there is still nothing at model.path={path}: experiment={warmstart} writes elsewhere; leave model.path "
            "out, or set it to a directory that exists"
        )


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Ask a warm start to end, a second time if its iteration is long, and kill it if it does not."""
    log.warning(
        "stopping the warm start, which may take %g s; once more kills it. The same command goes on with it later",
        ITERATION_S + WARMSTART_GRACE_S,
    )
    process.terminate()
    try:
        process.wait(ITERATION_S)
    except subprocess.TimeoutExpired:
        process.terminate()  # the first signal lets it finish its iteration, the second does not
    except BaseException:
        process.kill()
        raise
    wait_or_kill(process, WARMSTART_GRACE_S)


def wait_or_kill(process: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """Wait for a process, and kill it after a while, or at once when somebody interrupts the waiting."""
    with suppress(subprocess.TimeoutExpired):
        try:
            process.wait(timeout=grace_s)
        finally:
            process.kill()
            process.wait()
