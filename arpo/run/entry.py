"""The frame around a run: libraries are quiet, and an error of ours becomes one message and an exit code."""

import gc
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig

from arpo.errors import ArpoError, ConfigError
from arpo.run.folder import remove_empty
from arpo.run.overrides import check_command, explain

log = logging.getLogger("arpo")

RAISES = "HYDRA_FULL_ERROR"
"""The variable by which Hydra raises errors, in place of showing them."""
WAS_SET = RAISES in os.environ
REFUSED = 2
"""The exit code of a run that was refused, or whose infrastructure failed."""
SIGNALLED = 128
"""The least exit code of a run that a signal ended: it ends a multirun too."""
MOST_CHARACTERS = 400
"""Characters of a reason in the list of jobs that failed; the whole one stands above, where the job ended."""
FAILURES: list[str] = []
"""A line for each job of this process that failed; a run that is no multirun ends with its failure instead."""


def start(main: Callable[[], None]) -> None:
    """Run the jobs of the command line, and exit: those of a multirun that failed are named last, for a code of 1."""
    try:
        check_command(sys.argv[1:])
        os.environ.setdefault(RAISES, "1")  # or Hydra would show itself what it cannot compose
        main()
    except (ConfigError, HydraException) as error:
        message = str(error)
        if isinstance(error, HydraException):
            arguments = get_args_parser().parse_args()
            message = explain(error, arguments.config_name or Path(sys.argv[0]).stem, arguments.overrides)
        sys.stderr.write(f"{message}\n")
        sys.exit(REFUSED)
    finally:
        for failure in FAILURES:
            log.error("failed: %s", failure)
    if FAILURES:
        sys.exit(1)


@contextmanager
def explained(cfg: DictConfig) -> Iterator[None]:
    """Show an error as one message, leave no empty folder behind, and exit with 2; with 130 after Ctrl-C."""
    if not WAS_SET:
        os.environ.pop(RAISES, None)  # what a job raises is shown as Hydra shows it
    is_job = HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
    with _listed(cfg) if is_job else nullcontext():
        try:
            yield
        except ArpoError as error:
            log.error("%s", error)  # noqa: TRY400 - the sentence is for a person, the traceback is not
            remove_empty(Path(cfg.paths.run_dir), Path(cfg.paths.output))
            sys.exit(REFUSED)
        except (KeyboardInterrupt, SystemExit) as ended:
            if isinstance(ended, SystemExit) and not isinstance(ended.__context__, KeyboardInterrupt):
                raise  # Lightning makes an exit status of 1 from Ctrl-C
            log.error("stopped by Ctrl-C")  # noqa: TRY400
            sys.exit(SIGNALLED + signal.SIGINT)


@contextmanager
def _listed(cfg: DictConfig) -> Iterator[None]:
    """Put a job that fails on the list, and leave none of its variables to the next; a signal ends all jobs."""
    before = dict(os.environ)
    try:
        yield
    except SystemExit as ended:
        if isinstance(ended.code, int) and ended.code >= SIGNALLED:
            raise
        FAILURES.append(_failure(cfg, str(ended.__context__ or f"it ended with exit status {ended.code}")))
    except Exception as error:  # whatever it is: the other jobs run
        log.exception("this job has crashed")
        FAILURES.append(_failure(cfg, f"{type(error).__name__}: {error}"))
        return
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
        gc.collect()  # the engine of a job may be part of a circle


def _failure(cfg: DictConfig, reason: str) -> str:
    line, job = " ".join(reason.split()), HydraConfig.get()
    shown = line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]}…"
    overrides = " ".join(job.overrides.task) or "without overrides"
    return f"job {job.job.num} ({overrides}) in {Path(cfg.paths.run_dir)}: {shown}"


def quiet() -> None:
    """Silence what libraries log about themselves; none of them is imported."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # of transformers too
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # vLLM logs to which NUMA node it binds
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # nothing on a CPU needs Triton
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch.trainer.connectors.checkpoint_connector").setLevel(logging.WARNING)
    logging.getLogger("vllm").setLevel(logging.ERROR)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it has a line for each request
    for message in (
        ".*sync_dist=True.*",  # vLLM initialises torch.distributed with one process; there is nothing to sync
        ".*Detected call of `lr_scheduler.step.*",  # the first gradient was refused, which has a message of its own
        ".*isinstance\\(treespec, LeafSpec\\).*",
        ".*torch.distributed.reduce_op.*",
        ".*IterableDataset. has .__len__. defined.*",
        ".*does not have many workers.*",
        ".*You have overridden `transfer_batch_to_device`.*",
    ):
        warnings.filterwarnings("ignore", message=message)
