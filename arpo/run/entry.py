"""The frame around a run: libraries are quiet, and an error of ours becomes one message and an exit code."""

import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig

from arpo.errors import ArpoError
from arpo.run.folder import remove_empty

log = logging.getLogger("arpo")

CONF = Path(__file__).parent.parent.parent / "conf"


@contextmanager
def explained(cfg: DictConfig) -> Iterator[None]:
    """Say what was wrong in one message, leave no empty folder behind, and exit with 2; with 130 after Ctrl-C."""
    try:
        yield
    except ArpoError as error:
        log.error("%s", error)  # noqa: TRY400 - the sentence is for a person, the traceback is not
        remove_empty(Path(cfg.paths.run_dir), Path(cfg.paths.output))
        sys.exit(2)
    except KeyboardInterrupt:
        log.error("stopped by Ctrl-C")  # noqa: TRY400
        sys.exit(128 + signal.SIGINT)


def check_choices(words: Sequence[str]) -> None:
    """Check that each folder of choices on the command line gets a name: Hydra ends in a traceback for `env=null`."""
    for word in words:
        group, _, value = word.partition("=")
        if value == "null" and (CONF / group).is_dir():
            choices = ", ".join(sorted(path.stem for path in (CONF / group).glob("*.yaml")))
            sys.stderr.write(f"{word}: this must be the name of a choice; choose one of {choices}\n")
            sys.exit(2)


def quiet() -> None:
    """Silence what libraries say about themselves; imports none of them."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # of transformers too
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # vLLM tells to which NUMA node it binds
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # nothing on a CPU needs Triton
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch.trainer.connectors.checkpoint_connector").setLevel(logging.WARNING)
    logging.getLogger("vllm").setLevel(logging.ERROR)
    for message in (
        ".*sync_dist=True.*",  # vLLM initialises torch.distributed with one process; there is nothing to sync
        ".*isinstance\\(treespec, LeafSpec\\).*",
        ".*torch.distributed.reduce_op.*",
        ".*IterableDataset. has .__len__. defined.*",
        ".*does not have many workers.*",
        ".*You have overridden `transfer_batch_to_device`.*",
    ):
        warnings.filterwarnings("ignore", message=message)
