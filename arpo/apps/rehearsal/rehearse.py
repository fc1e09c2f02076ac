"""A dress rehearsal of an experiment, from its words to a verdict.

python -m arpo rehearse experiment=arpo_subset32
"""

import hashlib
import logging
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from arpo.apps.rehearsal.changes import ITERATIONS, DryRunConfig, kept, with_small_numbers, with_stand_ins
from arpo.apps.rehearsal.harness import RehearsalError, harnessed
from arpo.apps.rehearsal.review import check_end, checkpoint_to_resume_from, iterations_on_disk, summary
from arpo.callbacks.graceful_stop import end_on_signals
from arpo.display.tables import print_table
from arpo.errors import ArpoError, ConfigError
from arpo.host.log_lines import log_to_terminal
from arpo.models.tiny import CONTEXT
from arpo.run.arguments import check_arguments
from arpo.run.before.words import CONF
from arpo.run.build import check_update, compose, required_model, rolls_out
from arpo.run.check import check_callbacks, check_constructors, check_tasks, check_values
from arpo.run.folder import folder_name, hold, run_name
from arpo.run.model import check_context
from arpo.run.preflight import missing_here
from arpo.run.warmstart import check_warmstart, shared_with_warmstart

log = logging.getLogger(__name__)

SCHOOL = {
    "model.make.hidden": 64,
    "datamodule.steps": 80,
    "datamodule.batch_size": 4,
    "datamodule.per_task": 16,
    "datamodule.collector.demonstrator.success_rate": 1.0,
    "module.optimizer.lr": 4.0e-3,
    "module.micro_batch_tokens": 4400,
}
"""The school of the tiny policy: after half a minute most of what it says is an action, though hardly a right one."""


def main(overrides: Sequence[str]) -> int:
    """Rehearse a composition and return the exit status: 0 when it passes, 1 when it fails, 2 when it is refused."""
    log_to_terminal()
    end_on_signals()
    try:
        rehearse(overrides)
    except RehearsalError as error:
        log.error("the rehearsal failed: %s", error)  # noqa: TRY400 - the sentence is for a person
        return 1
    except (ArpoError, HydraException, OmegaConfBaseException) as error:
        log.error("%s", error)  # noqa: TRY400
        return 2
    except KeyboardInterrupt:
        log.error("stopped by Ctrl-C")  # noqa: TRY400
        return 128 + signal.SIGINT
    return 0


def rehearse(overrides: Sequence[str]) -> None:
    """Check a composition, play it small, kill it, let it go on, and look at what it left.

    Args:
        overrides: Those of the run that is rehearsed.
    """
    began = time.monotonic()
    cfg = compose("train", overrides)
    folder = Path(cfg.paths.output).resolve() / "rehearsal" / folder_name(cfg.name) / run_name(overrides)
    lacking, school = _lacking(cfg), _school(cfg)
    recast = recast_of(cfg, folder / "run", Path(school.paths.run_dir) / "policy")
    with hold(folder):
        _announce(recast, cfg.name, lacking)
        _clear(folder)
        _teach(school, Path(school.paths.run_dir))
        _play(recast.cfg, folder)
    log.info("The rehearsal of %s passed in %.0f s: %s.", cfg.name, time.monotonic() - began, summary(folder / "run"))


def recast_of(cfg: DictConfig, run_dir: Path, policy: Path) -> DryRunConfig:
    """Return the composition of the rehearsal, after the checks that the real run makes of its own.

    Args:
        cfg: The experiment's.
        run_dir: The folder of the rehearsed run.
        policy: The directory of the tiny policy, which need not be there yet.
    """
    if not rolls_out(cfg):
        raise ConfigError(f"a rehearsal is of a run that learns from rollouts, got experiment={cfg.name}")
    cfg.paths.run_dir = str(run_dir)
    check_tasks(cfg)
    whole = cfg.copy()
    if OmegaConf.is_missing(whole.model, "path"):
        whole.model.path = str(policy)
    check_values(whole)
    check_update(whole)
    if cfg.warmstart is not None:
        check_warmstart(str(cfg.model.path), cfg.warmstart, cfg.paths.output, *shared_with_warmstart(cfg))
    check_arguments(whole)
    check_context(whole)
    recast = with_stand_ins(cfg, policy)
    check_constructors(recast.cfg)
    check_callbacks(cfg)
    with_small_numbers(recast)
    return recast


def _announce(recast: DryRunConfig, name: str, lacking: Sequence[str]) -> None:
    """Say what is replaced, what stays, and what this machine lacks for the real run."""
    rows = [(change.key, change.before, change.after) for change in recast.changes]
    print_table(
        [("replaced", "experiment", "rehearsal"), *rows],
        title=f"What the rehearsal of {name} replaces",
        caption="everything else is the experiment's own",
    )
    print_table([("kept", "as in the experiment"), *kept(recast.cfg)], title="What it plays", caption="")
    for line in lacking:
        log.info("The real run could not start here: %s.", line)


def _play(cfg: DictConfig, folder: Path) -> None:
    """Play a rehearsal: until it is killed, and from there to its end."""
    run_dir, composition = folder / "run", folder / "rehearsal.yaml"
    _write(cfg, composition)
    with harnessed(folder, cfg.trainer.num_nodes, cfg.env.size) as harness:
        log.info("The run starts; %s has what it says.", harness.output(0))
        harness.start(composition)
        harness.wait_until(lambda: iterations_on_disk(run_dir) >= ITERATIONS - 1, f"iteration {ITERATIONS - 1}")
        harness.kill()
        checkpoint = checkpoint_to_resume_from(run_dir)
        log.info("It was killed (kill -9) in iteration %d, and goes on from %s.", ITERATIONS, checkpoint.name)
        harness.start(composition, "resume=auto")
        harness.wait()
    check_end(run_dir, ITERATIONS)


def _clear(folder: Path) -> None:
    """Remove what an earlier rehearsal of the same composition left."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    for output in folder.glob("node_*.log"):
        output.unlink()


def _teach(cfg: DictConfig, folder: Path) -> None:
    """Write the tiny policy, unless an earlier rehearsal has written the same one."""
    if (folder / "policy" / "config.json").exists():
        return
    log.info("A tiny policy learns to write actions: %s.", folder)
    folder.mkdir(parents=True, exist_ok=True)
    composition = folder / "school.yaml"
    _write(cfg, composition)
    with harnessed(folder, nodes=1, desktops=0) as harness:
        harness.start(composition, "resume=auto")
        harness.wait()


def _school(cfg: DictConfig) -> DictConfig:
    """Return the imitation that gives a policy the form of actions, in conversations as an experiment has them."""
    tiny = OmegaConf.select(cfg, "model.tiny")
    recast = DryRunConfig(compose("train", ["experiment=warmstart_fake", *([f"model={tiny}"] if tiny else [])]))
    recast.put("prompt", OmegaConf.to_container(cfg.prompt, resolve=True))
    recast.put("rollout.settings.image_window", cfg.rollout.settings.image_window)
    recast.put("model.make.context", max(CONTEXT, cfg.rollout.settings.max_context))
    for key, number in SCHOOL.items():
        recast.put(key, number)
    digest = hashlib.sha256(OmegaConf.to_yaml(recast.cfg).encode()).hexdigest()[:8]
    recast.cfg.paths.output = cfg.paths.output
    recast.cfg.paths.run_dir = str(Path(cfg.paths.output).resolve() / "rehearsal" / f"policy-{digest}")
    return recast.cfg


def _write(cfg: DictConfig, path: Path) -> None:
    """Write a composition as a file that `train.py` takes."""
    ours = OmegaConf.load(CONF / "hydra" / "default.yaml")
    frame = {
        "run": {"dir": cfg.paths.run_dir},
        "output_subdir": None,
        "job": ours.job,
        "job_logging": ours.job_logging,
    }
    path.write_text(OmegaConf.to_yaml(OmegaConf.merge(cfg, {"hydra": frame})), encoding="utf-8")


def _lacking(cfg: DictConfig) -> list[str]:
    """Return what the real run needs and this machine lacks."""
    requires: Any = OmegaConf.to_container(cfg.requires, resolve=True)
    return missing_here(requires, required_model(cfg))
