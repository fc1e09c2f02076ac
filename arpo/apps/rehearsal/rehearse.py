"""A dress rehearsal of an experiment, from its overrides to a verdict.

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
from arpo.apps.rehearsal.harness import (
    RehearsalError,
    check_end,
    checkpoint_to_resume_from,
    harnessed,
    iterations_of,
    summary,
)
from arpo.errors import ArpoError, ConfigError
from arpo.host.log_lines import log_to_terminal
from arpo.host.terminal import end_on_signals, print_table
from arpo.models.tiny import CONTEXT
from arpo.run import rules
from arpo.run.arguments import check_arguments
from arpo.run.build import compose, required_model, rolls_out
from arpo.run.check import check_constructors
from arpo.run.choices import CONF
from arpo.run.folder import folder_name, hold, run_name
from arpo.run.preflight import missing_here
from arpo.run.rules import check_rules

log = logging.getLogger(__name__)

TINY_POLICY = {
    "model.make.hidden": 64,
    "datamodule.steps": 80,
    "datamodule.batch_size": 4,
    "datamodule.per_task": 16,
    "datamodule.collector.demonstrator.success_rate": 1.0,
    "module.optimizer.lr": 4.0e-3,
    "module.micro_batch_tokens": 4400,
}
"""The lesson of the tiny policy: after half a minute most of its responses are actions, though hardly right ones."""


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
    """Run a scaled-down copy of a configuration, kill it, resume it, and check the results."""
    began = time.monotonic()
    cfg = compose("train", overrides)
    folder = Path(cfg.paths.output).resolve() / "rehearsal" / folder_name(cfg.name) / run_name(overrides)
    requires: Any = OmegaConf.to_container(cfg.requires, resolve=True)
    lacking, lesson = missing_here(requires, required_model(cfg)), _lesson(cfg)
    recast = recast_of(cfg, folder / "run", Path(lesson.paths.run_dir) / "policy")
    with hold(folder):
        rows = [(key, before, after) for key, (before, after) in recast.changes.items()]
        print_table(
            [("replaced", "experiment", "rehearsal"), *rows],
            title=f"The changes of the rehearsal of {cfg.name}",
            caption="everything else is the experiment's own",
        )
        print_table([("kept", "as in the experiment"), *kept(recast.cfg)], title="The parts that it runs", caption="")
        for line in lacking:
            log.info("The real run could not start here: %s.", line)
        _train_tiny_policy(lesson, Path(lesson.paths.run_dir))
        _play(recast.cfg, folder)
    log.info("The rehearsal of %s passed in %.0f s: %s.", cfg.name, time.monotonic() - began, summary(folder / "run"))


def recast_of(cfg: DictConfig, run_dir: Path, policy: Path) -> DryRunConfig:
    """Return the composition of the rehearsal, after the checks that the real run makes of its own."""
    if not rolls_out(cfg):
        raise ConfigError(f"a rehearsal is of a run that learns from rollouts, got experiment={cfg.name}")
    cfg.paths.run_dir = str(run_dir)
    whole = cfg.copy()
    if OmegaConf.is_missing(whole.model, "path"):
        whole.model.path = str(policy)
    at_its_place = [rules.tasks_suit_the_environment, rules.values_are_finite, rules.the_warm_start_writes_the_model]
    check_rules(whole, at_its_place, rules.NUMBERS, [rules.the_update_can_learn])
    check_arguments(whole)
    check_rules(whole, rules.CLASSES, [rules.conversations_fit_the_model])
    recast = with_stand_ins(cfg, policy)
    check_constructors(recast.cfg)
    with_small_numbers(recast)
    return recast


def _play(cfg: DictConfig, folder: Path) -> None:
    """Run a rehearsal until it is killed, and from there to its end."""
    run_dir, composition = folder / "run", folder / "rehearsal.yaml"
    shutil.rmtree(run_dir, ignore_errors=True)  # of an earlier rehearsal of the same composition
    for output in folder.glob("node_*.log"):
        output.unlink()
    _write(cfg, composition)
    with harnessed(folder, cfg.trainer.num_nodes, cfg.env.size) as harness:
        log.info("The run starts; %s has its output.", harness.output(0))
        harness.start(composition)
        harness.wait_until(lambda: len(iterations_of(run_dir)) >= ITERATIONS - 1, f"iteration {ITERATIONS - 1}")
        harness.kill()
        checkpoint = checkpoint_to_resume_from(run_dir)
        log.info("It was killed (kill -9) in iteration %d, and goes on from %s.", ITERATIONS, checkpoint.name)
        harness.start(composition, "resume=auto")
        harness.wait()
    check_end(run_dir, ITERATIONS)


def _train_tiny_policy(cfg: DictConfig, folder: Path) -> None:
    """Write the tiny policy, unless an earlier rehearsal has written the same one."""
    if (folder / "policy" / "config.json").exists():
        return
    log.info("A tiny policy learns to write actions: %s.", folder)
    folder.mkdir(parents=True, exist_ok=True)
    composition = folder / "lesson.yaml"
    _write(cfg, composition)
    with harnessed(folder, nodes=1, desktops=0) as harness:
        harness.start(composition, "resume=auto")
        harness.wait()


def _lesson(cfg: DictConfig) -> DictConfig:
    """Return the imitation that gives a policy the form of actions, in conversations as an experiment has them."""
    tiny = OmegaConf.select(cfg, "model.tiny")
    recast = DryRunConfig(compose("train", ["experiment=warmstart_fake", *([f"model={tiny}"] if tiny else [])]))
    recast.put("prompt", OmegaConf.to_container(cfg.prompt, resolve=True))
    recast.put("rollout.settings.image_window", cfg.rollout.settings.image_window)
    recast.put("model.make.context", max(CONTEXT, cfg.rollout.settings.max_context))
    for key, number in TINY_POLICY.items():
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
