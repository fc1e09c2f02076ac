"""The warm start of a run: the experiment that writes the policy which the run starts with.

Some policies come with the code (`experiments/warmstarts/`), so that training begins at once. Their weights are
rounded to float16, in half the space; a run gets them in float32.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from arpo.errors import ConfigError
from arpo.host.files import atomically, take_lock
from arpo.host.session import Session
from arpo.host.terminal import end_on_signals
from arpo.rollout.storage import TrajectoryStore
from arpo.run.choices import ROOT, choices_of
from arpo.run.folder import run_name
from arpo.run.overrides import override_of

log = logging.getLogger(__name__)

SHIPPED = ROOT / "experiments" / "warmstarts"
MADE = "made.json"
"""Beside each policy that comes with the code: the command, commit and machine that made it."""
WEIGHTS = "model.safetensors"
LOOK_S = 0.02
"""Between two looks whether another process has unpacked a policy."""
USUAL_PROMPT = "compact"
"""The prompt of every warm start whose run has no other."""
GRACES_S = (5.0, 20.0)
"""The time that a warm start has to finish its iteration and write a checkpoint; then, asked again, to end."""


@dataclass(frozen=True, slots=True)
class WarmStart:
    """An experiment that writes a policy, with what it has to know of the run, such as the prompt to answer."""

    name: str
    output: str
    image_window: int | None = None
    """Of the conversations that demonstrations become."""
    model: str | None = None
    """The choice of another tiny model than the usual one."""
    prompt: str | None = None
    """The choice of a prompt, or the name of its function."""

    @classmethod
    def of(cls, cfg: DictConfig) -> "WarmStart | None":
        """Return the warm start of a run, None where it has none."""
        if cfg.warmstart is None:
            return None
        window, model = cfg.rollout.settings.image_window, OmegaConf.select(cfg, "model.tiny")
        return cls(str(cfg.warmstart), cfg.paths.output, window, model, cfg.prompt["_target_"])

    @property
    def overrides(self) -> list[str]:
        """The overrides by which it knows the run."""
        prompt = (self.prompt or USUAL_PROMPT).rpartition(".")[2]
        known = prompt != USUAL_PROMPT and prompt in choices_of("prompt")
        given = {
            "model": self.model,
            "prompt": prompt if known else None,
            "rollout.settings.image_window": self.image_window,
        }
        return [f"{key}={value}" for key, value in given.items() if value is not None]

    @property
    def folder(self) -> str:
        """The folder of its run."""
        return f"{self.output}/{self.name}/{run_name(self.overrides)}"

    @property
    def policy(self) -> str:
        """The directory of the policy that it writes."""
        return f"{self.folder}/policy"

    @property
    def demonstrations(self) -> str:
        """The directory of its demonstrations."""
        return f"{self.folder}/demonstrations"

    @property
    def is_shipped(self) -> bool:
        """Whether the code has its policy, though not its demonstrations."""
        return not self.overrides and (SHIPPED / self.name).is_dir()

    def ensure(self, path: Path, *, desktops: int | None = None) -> None:
        """Write its policy to a directory, if none is there: the one that comes with the code, or a new one.

        A new one is made in a process of its own, as a person would run it, so that nothing of it stays in memory. So
        many desktops start there, whatever the experiment says; its folder is the same with more or fewer.
        """
        if (path / "config.json").exists():
            return
        if self.is_shipped:
            unpack(self.name, path)
            return
        overrides = [f"experiment={self.name}", override_of("paths.output", self.output), *self.overrides]
        if desktops is not None:
            overrides += [f"env.size={desktops}", override_of("hydra.run.dir", self.folder)]
        command = [sys.executable, sys.argv[0], *overrides]
        log.info("%s does not exist yet: running %s first", path, " ".join(command[1:]))
        process = subprocess.Popen([*command, "resume=auto"], process_group=0)  # Ctrl-C reaches it through us, once
        try:
            code = process.wait()
        except BaseException:
            log.warning(
                "stopping the warm start, which may take %g s; once more kills it. The same command goes on with it "
                "later",
                sum(GRACES_S),
            )
            stop(process)  # it must end what it started before we leave
            raise
        if code != 0:
            raise ConfigError(f"the warm start failed: see its output above; it was experiment={self.name}")
        if not (path / "config.json").exists():
            raise ConfigError(
                f"there is still nothing at model.path={path}: experiment={self.name} writes elsewhere; leave "
                "model.path out, or set it to a directory that exists"
            )


def policy_of(warmstart: str | None, *of: str | int | None) -> str:
    """Return the directory that a warm start writes its policy to; empty where there is no warm start.

    >>> policy_of("warmstart_fake", "outputs", 2, None, "arpo.agent.prompt.Prompt.compact")
    'outputs/warmstart_fake/rollout.settings.image_window=2/policy'
    """
    return WarmStart(warmstart, *of).policy if warmstart else ""  # type: ignore[arg-type]  # YAML knows which is which


def recordings_of(warmstart: str | None, *of: str | int | None) -> str:
    """Return the directory of a warm start's demonstrations; empty where there is no warm start."""
    return WarmStart(warmstart, *of).demonstrations if warmstart else ""  # type: ignore[arg-type]


def demonstrations_of(*of: str | int | None) -> list[str]:
    """Return the same directory in a list, as `experience` names it."""
    return list(filter(None, [recordings_of(*of)]))  # type: ignore[arg-type]


def write_source(cfg: DictConfig, check: Callable[[DictConfig], None]) -> None:
    """Run the warm start at once, after a check, where a run learns from what it writes: its tasks need that.

    It ends with its policy: where that is not there yet, its recordings may be a part of what they will be.
    """
    warmstart, source = WarmStart.of(cfg), str(cfg.source)
    if warmstart is None or source != warmstart.demonstrations:
        return
    policy = Path(warmstart.policy)
    if not (policy / "config.json").exists():
        check(cfg)
        end_on_signals()
        with Session.start():  # ends the warm start with this process
            warmstart.ensure(policy)
    if not TrajectoryStore(source).iterations():
        raise ConfigError(
            f"there is {policy}, and no trajectories in source={source}: `python train.py "
            f"experiment={warmstart.name}` writes both if it imitates demonstrations; or name the folder of a run "
            "with source=DIR"
        )


def stop(process: "subprocess.Popen[bytes]", graces_s: tuple[float, ...] = GRACES_S) -> None:
    """Ask a process to end, again after each grace, and kill it after the last, or when this is interrupted."""
    try:
        for grace_s in graces_s:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
                return
    finally:
        process.kill()
        process.wait()


def unpack(name: str, directory: Path) -> None:
    """Write the policy that comes with the code for a warm start to a directory; of several processes, one does."""
    from safetensors import SafetensorError
    from safetensors.torch import load, save  # torch takes seconds

    shipped = SHIPPED / name
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        while (lock := take_lock(directory.with_name(f"{directory.name}.lock"))) is None:
            time.sleep(LOOK_S)
        try:
            if (directory / "config.json").exists():
                return
            files = {path.name: path.read_bytes() for path in shipped.iterdir()}
            weights = {key: tensor.float() for key, tensor in load(files[WEIGHTS]).items()}
            with atomically(directory) as partial:
                partial.mkdir()
                for file, content in (files | {WEIGHTS: save(weights, {"format": "pt"})}).items():
                    (partial / file).write_bytes(content)
        finally:
            os.close(lock)
    except (OSError, LookupError, SafetensorError) as error:
        raise ConfigError(f"the policy of {shipped} cannot be written to {directory}: {error}") from error
    log.info("starting from the policy in %s; python train.py experiment=%s makes it again", shipped, name)
