"""Train a GUI agent: `python train.py experiment=arpo_miniwob`; see conf/ for every choice."""

import logging
import os
import sys

# before torch is imported: two OpenMP pools on the same cores run ten times slower than one thread each
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # vLLM's kernels warn of what they mean to do

import hydra
from omegaconf import DictConfig

from arpo.errors import ArpoError
from arpo.run.instantiate import quiet, register_resolvers, train

register_resolvers()
log = logging.getLogger("arpo")


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def main(cfg: DictConfig) -> None:
    """Compose, run, and leave with an exit code."""
    quiet()
    try:
        code = train(cfg)
    except ArpoError as error:
        log.error("%s", error)  # noqa: TRY400 - the sentence is for a person, the traceback is not
        code = 2
    if code:
        sys.exit(code)


if __name__ == "__main__":
    main()
