"""Train a GUI agent: `python train.py experiment=arpo_miniwob`; see conf/ for every choice."""

import os
import sys

from arpo.host.environment import set_up_process

if __name__ == "__main__":
    set_up_process()

# before torch is imported: two OpenMP pools on the same cores run ten times slower than one thread each
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # vLLM's kernels warn of what they mean to do

import hydra
from omegaconf import DictConfig

from arpo.run.build import register_resolvers
from arpo.run.check import check_choices, check_training
from arpo.run.entry import explained, start
from arpo.run.warmstart import write_source

register_resolvers()


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def main(cfg: DictConfig) -> None:
    """Compose, check, run, and leave with an exit code."""
    with explained(cfg):
        write_source(cfg, check_choices)
        check_training(cfg)
        from arpo.run.train import train  # after the check, because it imports torch and Lightning

        if code := train(cfg):
            sys.exit(code)


if __name__ == "__main__":
    start(main)
